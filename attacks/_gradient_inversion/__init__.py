"""Attacks that recover rows of data from gradients. Importing this package registers them."""

from __future__ import annotations

from securefed.attacks._base import attacks
from securefed.attacks._gradient_inversion.dlg import DLG
from securefed.attacks._gradient_inversion.naive_descent import NaiveDescent
from securefed.attacks._gradient_inversion.sample_fit import SampleFit
from securefed.attacks._gradient_inversion.telescoping_fit import TelescopingFit

__all__ = ["DLG", "NaiveDescent", "SampleFit", "TelescopingFit"]

attacks.register(
    NaiveDescent.name,
    NaiveDescent,
    summary="The papers' plain gradient descent on one round; its failure shows nothing",
    source="Zhu et al. 2019, (3)-(4); LoSAC (Liu et al.), Fig. 6",
    reads="one round: the gradient, or the difference of two models",
)
attacks.register(
    DLG.name,
    DLG,
    summary="Ratio of weight to bias gradients, then L-BFGS through simulated local steps",
    source="Zhu et al. 2019; Zhao et al. 2020 (iDLG); Geng et al. 2021",
    reads="the differences of models, and of control variates where there are any, over several rounds",
)
attacks.register(
    TelescopingFit.name,
    TelescopingFit,
    summary="Running sums of dc and dphi are stored gradients; fit the samples to them",
    source="LoSAC (Liu et al.), (12)-(13), read backwards",
    reads="the differences of models, and of control variates where there are any, over several rounds",
)
attacks.register(
    SampleFit.name,
    SampleFit,
    summary="Joint Levenberg-Marquardt fit of all rows to simulated rounds, in the messages' row space",
    source="this package",
    reads="the differences of models, and of control variates where there are any, over several rounds",
)

"""Attacks that recover samples from gradients. Importing this registers them."""

from __future__ import annotations

from securefed.attacks.base import attacks
from securefed.attacks.gradient_inversion.dlg import DLG
from securefed.attacks.gradient_inversion.fit import Fit
from securefed.attacks.gradient_inversion.naive import Naive
from securefed.attacks.gradient_inversion.telescoping import Telescoping

__all__ = ["DLG", "Fit", "Naive", "Telescoping"]

attacks.register(
    Naive.name,
    Naive,
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
    Telescoping.name,
    Telescoping,
    summary="Running sums of dc and dphi are stored gradients; fit the samples to them",
    source="LoSAC (Liu et al.), (12)-(13), read backwards",
    reads="the differences of models, and of control variates where there are any, over several rounds",
)
attacks.register(
    Fit.name,
    Fit,
    summary="Joint Levenberg-Marquardt fit of all rows to simulated rounds, in the messages' row space",
    source="this package",
    reads="the differences of models, and of control variates where there are any, over several rounds",
)

"""Training problems for the gradient algorithms.

A problem is a model with its loss over rows and the gradient of that loss, such as softmax regression. An algorithm
takes one as a setting, `FedAvg(problem=SoftmaxRegression())`. Importing this package registers all problems under their
names (`softmax`, `2nn`, ...); networks import torch when they are made.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from securefed._extras import is_installed, needed_for
from securefed.problems._base import BaseProblem, Classifier, Problem, known_smoothness, problems
from securefed.problems._linear import LogisticRegression, SoftmaxRegression
from securefed.problems._low_rank import LowRankMatrix
from securefed.problems._svm import SupportVectorMachine

if TYPE_CHECKING:
    from securefed.problems._autoencoder import Autoencoder
    from securefed.problems._bigan import BiGAN
    from securefed.problems._convolutional import ConvolutionalNetwork
    from securefed.problems._dense import DenseNetwork
    from securefed.problems._torch_module import TorchModule

# By name of a class that needs torch, its module.
_NETWORKS = {
    "Autoencoder": "autoencoder",
    "BiGAN": "bigan",
    "ConvolutionalNetwork": "convolutional",
    "DenseNetwork": "dense",
    "TorchModule": "torch_module",
}

__all__ = [
    "Autoencoder",
    "BaseProblem",
    "BiGAN",
    "Classifier",
    "ConvolutionalNetwork",
    "DenseNetwork",
    "LogisticRegression",
    "LowRankMatrix",
    "Problem",
    "SoftmaxRegression",
    "SupportVectorMachine",
    "TorchModule",
    "known_smoothness",
    "problems",
]
if not is_installed("torch"):  # so that `import *` imports what there is
    __all__ = [name for name in __all__ if name not in _NETWORKS]


def __getattr__(name: str) -> Any:
    if name in _NETWORKS:
        with needed_for(f"securefed.problems.{name}"):
            return getattr(import_module(f"securefed.problems._{_NETWORKS[name]}"), name)
    raise AttributeError(f"module 'securefed.problems' has no attribute {name!r}")


def _network(kind: str, **fixed: Any) -> Callable[..., Problem]:
    """Return a function that makes the class `kind` with these settings, unless it is given others."""

    def make(**settings: Any) -> Problem:
        problem: Problem = __getattr__(kind)(**fixed | settings)
        return problem

    return make


for _name, _make, _summary, _source in (
    (LogisticRegression.name, LogisticRegression, "Binary logistic regression, labels 0 and 1", "textbook"),
    (SoftmaxRegression.name, SoftmaxRegression, "Multinomial logistic (softmax) regression", "textbook"),
    (
        SupportVectorMachine.name,
        SupportVectorMachine,
        "Linear support vector machine of several classes",
        "Weston and Watkins 1999; FLAME (Zhu et al.), Table I: 610 parameters",
    ),
    (
        LowRankMatrix.name,
        LowRankMatrix,
        "Matrix from noisy linear observations",
        "LoSAC (Liu et al.), (20)-(21); Negahban and Wainwright 2010",
    ),
    (
        "2nn",
        _network("DenseNetwork", hidden=(200, 200)),
        "Network of two hidden layers of 200 ReLU",
        "McMahan et al. 2017, sec. 3; LoSAC (Liu et al.), sec. 5.1.1",
    ),
    (
        "mlp",
        _network("DenseNetwork", hidden=(100,), start="uniform"),
        "Network of one hidden layer of 100 ReLU",
        "FLAME (Zhu et al.), Table I: 79,510 parameters on Fashion-MNIST",
    ),
    (
        "cnn",
        _network("ConvolutionalNetwork"),
        "Two convolutions with pooling and two linear layers",
        "FLAME (Zhu et al.), Table I: 206,678 parameters on Medical MNIST",
    ),
    (
        "autoencoder",
        _network("Autoencoder"),
        "Autoencoder, needs no labels",
        "Federated PCA on Grassmann Manifold (Nguyen et al.), sec. V-A2: FedAE, FedAE-2",
    ),
    (
        "bigan",
        _network("BiGAN"),
        "Bidirectional GAN, needs no labels",
        "Donahue et al. 2017, (2)-(3); Federated PCA on Grassmann Manifold (Nguyen et al.), sec. V-A2: FedBiGAN",
    ),
):
    problems.register(_name, _make, summary=_summary, source=_source)

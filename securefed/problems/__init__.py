"""Training problems for the gradient algorithms.

Importing this package registers them; networks import torch when they are made.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    if name in _NETWORKS:
        return getattr(import_module(f"securefed.problems._{_NETWORKS[name]}"), name)
    raise AttributeError(f"module 'securefed.problems' has no attribute {name!r}")


def _network(kind: str, **fixed: Any) -> Callable[..., Problem]:
    def make(**settings: Any) -> Problem:
        problem: Problem = __getattr__(kind)(**fixed | settings)
        return problem

    return make


problems.register(
    LogisticRegression.name,
    LogisticRegression,
    summary="Binary logistic regression, labels 0 and 1",
    source="textbook",
)
problems.register(
    SoftmaxRegression.name,
    SoftmaxRegression,
    summary="Multinomial logistic (softmax) regression",
    source="textbook",
)
problems.register(
    SupportVectorMachine.name,
    SupportVectorMachine,
    summary="Linear support vector machine of several classes",
    source="Weston and Watkins 1999; FLAME (Zhu et al.), Table I: 610 parameters",
)
problems.register(
    LowRankMatrix.name,
    LowRankMatrix,
    summary="Matrix from noisy linear observations",
    source="LoSAC (Liu et al.), (20)-(21); Negahban and Wainwright 2010",
)
problems.register(
    "2nn",
    _network("DenseNetwork", hidden=(200, 200)),
    summary="Network of two hidden layers of 200 ReLU",
    source="McMahan et al. 2017, sec. 3; LoSAC (Liu et al.), sec. 5.1.1",
)
problems.register(
    "mlp",
    _network("DenseNetwork", hidden=(100,), start="uniform"),
    summary="Network of one hidden layer of 100 ReLU",
    source="FLAME (Zhu et al.), Table I: 79,510 parameters on Fashion-MNIST",
)
problems.register(
    "cnn",
    _network("ConvolutionalNetwork"),
    summary="Two convolutions with pooling and two linear layers",
    source="FLAME (Zhu et al.), Table I: 206,678 parameters on Medical MNIST",
)
problems.register(
    "autoencoder",
    _network("Autoencoder"),
    summary="Autoencoder, needs no labels",
    source="Federated PCA on Grassmann Manifold (Nguyen et al.), sec. V-A2: FedAE, FedAE-2",
)
problems.register(
    "bigan",
    _network("BiGAN"),
    summary="Bidirectional GAN, needs no labels",
    source="Donahue et al. 2017, (2)-(3); Federated PCA on Grassmann Manifold (Nguyen et al.), sec. V-A2: FedBiGAN",
)

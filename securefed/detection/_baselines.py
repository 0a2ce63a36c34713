"""Register FedAE and FedBiGAN: networks that reconstruct rows, trained by FedAvg (fedpca_grassmann, section V-A2).

A network is trained on normal rows; rows that it reconstructs badly are anomalies. FedAE is an autoencoder, FedBiGAN a
bidirectional GAN; "-2" has four layers instead of two. Registered, they are known by name to the command line and the
audit. Importing this module registers them; torch is imported when one of them is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.fedavg import FedAvg
from securefed.problems import problems

SHALLOW_AUTOENCODER, SHALLOW_BIGAN, DEEP = (32,), (16,), (32, 16, 8)
"""Widths between rows and code. The paper gives two and four layers; widths are those of its authors' code."""
CODE = 4
"""Width of the code, which neither the paper nor its code gives."""


def _maker(problem: str, widths: tuple[int, ...], learning_rate: float) -> Callable[..., FedAvg]:
    """Return a function that makes FedAvg of a network, with these defaults.

    Args:
        problem: name of the network's problem.
        widths: widths of the layers between rows and code.
        learning_rate: step size of the local steps.
    """
    defaults: dict[str, Any] = {"learning_rate": learning_rate, "local_epochs": 1, "batch_size": 32}

    def make(widths: tuple[int, ...] = widths, code: int = CODE, **settings: Any) -> FedAvg:
        return FedAvg(problem=problems.make(problem, layers=(*widths, code)), **defaults | settings)

    return make


# (name, problem, widths, learning rate, summary) of each baseline
_BASELINES = (
    ("fedae", "autoencoder", SHALLOW_AUTOENCODER, 0.05, "FedAvg of an autoencoder, two layers each way"),
    ("fedae-2", "autoencoder", DEEP, 0.05, "FedAvg of an autoencoder, four layers each way"),
    ("fedbigan", "bigan", SHALLOW_BIGAN, 0.02, "FedAvg of a bidirectional GAN, two layers a part"),
    ("fedbigan-2", "bigan", DEEP, 0.02, "FedAvg of a bidirectional GAN, four layers a part"),
)
for _name, _problem, _widths, _rate, _summary in _BASELINES:
    algorithms.register(
        f"detection/{_name}",
        _maker(_problem, _widths, _rate),
        summary=_summary,
        source="fedpca_grassmann section V-A2; McMahan et al. 2017, Algorithm 1",
        transmits="weighted local update of all networks",
        test_settings={"widths": (3, 2, 2) if _widths is DEEP else (3,), "code": 2},
    )

"""Cases of the subspace methods: the secret is a client's Gram matrix."""

from __future__ import annotations

import numpy as np

from securefed.auditing.cases.base import Case, WideCase, register
from securefed.auditing.cases.data import SMALL_CLIENT, even_shares, one_small_client, standardised
from securefed.datasets.base import Dataset
from securefed.tensors import Array, Tensors

STANDARDISED_FEATURES = 20
_RANK = 5
_SUBSPACE_DATA = (
    f"raw rows; client 0 (the target) holds {SMALL_CLIENT}, the others share the rest evenly "
    "(changing survivors: even shares)"
)


def captured_variance(output: Tensors, test: Dataset) -> float:
    """Share of the held-out rows' energy in the span of `basis`, over the best share of that rank (1 is optimal)."""
    basis, _ = np.linalg.qr(output["basis"])
    best = np.linalg.svd(test.x, compute_uv=False)[: basis.shape[1]]
    return float(np.sum((test.x @ basis) ** 2) / np.sum(best**2))


def mean_share(output: Tensors, test: Dataset) -> float:
    """What self-learning PCA puts out: no basis leaves a client, so held-out rows say nothing."""
    return float(output["share"])


def pooled_gram(clients: tuple[Dataset, ...]) -> Array:
    """Sum of the clients' Gram matrices, (features, features)."""
    rows = np.concatenate([data.x for data in clients])
    return np.asarray(rows.T @ rows)


for _name in ("pca/ssi", "pca/localpower", "pca/faps"):
    register(
        Case(
            name=_name,
            setting={"rank": _RANK},
            secret="gram",
            prepare=one_small_client,
            rounds=10,
            clip=300.0,
            utility=captured_variance,
            utility_name="captured variance",
            data=_SUBSPACE_DATA,
            absences=even_shares if _name == "pca/ssi" else None,
            traced=1 if _name == "pca/faps" else 3,  # a fit for every prefix takes seconds
            default=True,
        )
    )
register(
    Case(
        name="pca/faps-guarded",
        setting={"rank": _RANK, "patience": 4},
        secret="gram",
        prepare=one_small_client,
        rounds=12,
        clip=300.0,
        utility=captured_variance,
        utility_name="captured variance",
        data=_SUBSPACE_DATA,
        traced=1,
    )
)
register(
    Case(
        name="pca/self",
        setting={"rank": _RANK},
        secret="gram",
        prepare=one_small_client,
        rounds=1,
        clip=1.0,
        utility=mean_share,
        utility_name="mean share of a client's energy in its own basis, on its own rows",
        data=_SUBSPACE_DATA,
    )
)
_STANDARDISED_DATA = f"the {STANDARDISED_FEATURES} columns of highest variance, even shares, z-scored by each client"
_CONSENSUS = {"rank": 3, "rho": 1.0, "step_size": 0.01, "local_steps": 1, "normalise": True}
register(
    Case(
        name="pca/fedpg",
        setting=_CONSENSUS,
        secret="gram",
        prepare=standardised(STANDARDISED_FEATURES),
        rounds=13,
        clip=2.0,
        utility=captured_variance,
        utility_name="captured variance",
        data=_STANDARDISED_DATA,
        wide=WideCase(standardised(None), (13, 25, 40, 60)),
        default=True,
    )
)
register(
    Case(
        name="pca/fedpe",
        setting=_CONSENSUS,
        secret="gram",
        prepare=standardised(STANDARDISED_FEATURES),
        rounds=13,
        clip=2.0,
        utility=captured_variance,
        utility_name="captured variance",
        data=_STANDARDISED_DATA,
    )
)

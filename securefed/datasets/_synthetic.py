"""Generate the papers' synthetic data: linear classification rules by client, and readings of a low-rank matrix.

Each client's rows follow a law of its own, or share one truth; the results are one `Dataset` for each client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._hyperparameters import check_integer, check_number
from securefed._tensors import Array
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError

SPECTRAL_DECAY = 1.2
"""Variance of feature j is j^-1.2 in the source (Li et al. 2020)."""


def linear_rules(
    sizes: Sequence[int],
    rng: np.random.Generator,
    *,
    rule_spread: float = 0.5,
    input_spread: float = 0.5,
    features: int = 60,
    classes: int = 10,
    alike: bool = False,
) -> list[Dataset]:
    """Draw Synthetic(alpha, beta): client k labels rows by a rule of its own, y = argmax(W_k^T x + b_k).

    Second arguments of N are standard deviations here, but for the covariance of x.

    Entries of W_k and b_k ~ N(u_k, 1), u_k ~ N(0, alpha);  x ~ N(v_k, diag(j^-1.2)), entries of v_k ~ N(B_k, 1),
    B_k ~ N(0, beta).

    Source: Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020), sec. 5.1. FLAME takes it for its
    Synthetic-SVM with 5000 to 10000 rows a client (Table I), `rng.integers(5000, 10000, clients)`; its authors' code
    has alpha = beta = .5. As in the code of both papers, alpha and beta are standard deviations, not variances.

    Args:
        sizes: rows of each client.
        rng: generator of everything random.
        rule_spread: alpha.
        input_spread: beta.
        features: width of a row.
        classes: number of labels.
        alike: one rule for all clients, and v_k = (B_k, ..., B_k), as in the i.i.d. variant of the source's code; B_k
            still differs from client to client unless beta = 0.

    Raises:
        ConfigError: no client, an empty one, a negative spread, fewer than 1 feature or 2 classes.
    """
    if not (len(sizes) > 0 and min(sizes) >= 1):
        raise ConfigError("every client must hold at least one row")
    check_number("rule_spread (alpha)", rule_spread, 0)
    check_number("input_spread (beta)", input_spread, 0)
    check_integer("features", features, 1)
    check_integer("classes", classes, 2)
    shared = rng.standard_normal((features + 1, classes))  # W over b, of all clients where they are `alike`
    deviation = np.arange(1.0, features + 1) ** (-SPECTRAL_DECAY / 2)
    clients = []
    for size in sizes:
        rule = rng.normal(rng.normal(0.0, rule_spread), 1.0, (features + 1, classes))
        # v_k; a deviation of 0 gives every feature the mean B_k
        centre = rng.normal(rng.normal(0.0, input_spread), 0.0 if alike else 1.0, features)
        x = centre + deviation * rng.standard_normal((size, features))
        weight = shared if alike else rule
        clients.append(Dataset(x, np.argmax(x @ weight[:-1] + weight[-1], axis=1)))
    return clients


@dataclass(frozen=True)
class LowRankReadings:
    """Linear readings of a matrix of low rank, by client.

    Attributes:
        clients: rows vec(D_j) of d * d entries (row by row), responses y_j.
        truth: (d, d), the matrix X_G.
    """

    clients: tuple[Dataset, ...]
    truth: Array


def low_rank(
    clients: int,
    rows: int,
    rank: int,
    rng: np.random.Generator,
    *,
    dimension: int = 64,
    mean: float = 0.1,
    noise: float = 0.1,
) -> LowRankReadings:
    """Draw readings y_j = <X_G, D_j> + N(0, noise), entries of D_j ~ N(mean, 1), X_G = diag(1, ..., 1, 0, ..., 0).

    X_G is d x d, d = `dimension`, with `rank` ones; each client has `rows` readings. <X, D> is the sum of the entries'
    products. The second argument of N is a standard deviation.

    Source: LoSAC, sec. 5.5, (21), with d = 64, rank 32, 16, 8, 4, 2 and 100 clients. The paper gives no number of rows
    a client, and leaves open whether its N(0, .1) names a standard deviation (taken here) or a variance.

    Raises:
        ConfigError: a rank outside 1..d, no client, no row, or negative noise.
    """
    check_integer("clients", clients, 1)
    check_integer("rows", rows, 1)
    check_integer("rank", rank, 1, dimension, note="(the dimension)")
    check_number("noise (a standard deviation)", noise, 0)
    truth = np.diag((np.arange(dimension) < rank).astype(np.float64))
    parts = []
    for _ in range(clients):
        readings = rng.normal(mean, 1.0, (rows, dimension * dimension))
        parts.append(Dataset(readings, readings @ truth.ravel() + rng.normal(0.0, noise, rows)))
    return LowRankReadings(tuple(parts), truth)

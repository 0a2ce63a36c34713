"""Bound the change of a message when ONE record of a client changes; record-level noise is proportional to this bound.

Neighbours: one record of one client is replaced by a record of zeros; how many records each client has is public.
Records are clipped to a public norm R at enrolment. In the proofs x is the record (features,), ||x|| <= R, and "'"
marks the neighbour's side, where it is zero; everything else, the broadcast included, is the same on both sides.

`subspace`: SSI, and LocalPower with one local step, send Y = S Z with S = sum_j x_j x_j^T, and tr Z^T S Z. Since
    S - S' = x x^T and ||Z||_2 <= 1 (a client refuses any other Z),
    ||Y - Y'||_F = ||x|| ||Z^T x|| <= R^2   and   |tr Z^T (S - S') Z| = ||Z^T x||^2 <= R^2.
`smooth_graph`: FedAvg and FedProx on graphs start at the broadcast w and make K projected gradient steps on
    z^T w / n + h(w), h without data, z_ab = sum_j (x_ja - x_jb)^2 over pairs a < b of d vertices; they send n / max n
    times the result. Since z - z' has entries (x_a - x_b)^2 <= 2 R^2 whose sum is d ||x||^2 - (sum_a x_a)^2 <= d R^2,
    ||z - z'|| <= sqrt(2 R^2 d R^2) = sqrt(2 d) R^2. One step moves by eta (z - z') / n between the two sides and
    projects, which brings no two points further apart: eta sqrt(2 d) R^2 / max n after the scaling. With K > 1 the
    same is added K times where the step w - eta grad h(w) brings no two points w >= 0 further apart either: without
    momentum, and with eta at most 2 / L of h on w >= 0 (a client refuses any other broadcast).
No bound is derived for other algorithms: inner iterations (FAPS, LocalPower with several local steps) and duals
(FedPG, PPGL) carry a record's change on through steps that are no contractions. `record_level` refuses them by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from securefed._messages import SERVER, Aggregate
from securefed._public import Public, require
from securefed._tensors import Array, Layout, Tensors
from securefed.algorithms._base import Algorithm
from securefed.algorithms._graph.fedavg import GraphFedAvg
from securefed.algorithms._graph.fedprox import GraphFedProx
from securefed.algorithms._graph.method import CONSENSUS, GRAPH
from securefed.algorithms._pca.localpower import LocalPower
from securefed.algorithms._pca.operators import SLACK
from securefed.algorithms._pca.server import BASIS, CAPTURED, PRODUCT
from securefed.algorithms._pca.ssi import SSI
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError, MalformedError, SecureFedError

_EPS = float(np.finfo(np.float64).eps)
_ORTHONORMAL = 1 + 2.0**-42


@dataclass(frozen=True)
class RecordLevel(Algorithm[Any, Any]):
    """An algorithm on clipped records, with the sensitivity of every tensor to one record in its layout.

    It is made for `chain(records(), gaussian(...) or skellam(...), ...)`. Everything else is the algorithm's own.

    Attributes:
        algorithm: the algorithm to run.
        norm: R, the largest L2 norm of a record, a public number chosen without looking at data.

    Raises:
        ConfigError: `norm` is not positive and finite, or no bound is derived for the algorithm.
    """

    algorithm: Algorithm[Any, Any]
    norm: float

    def __post_init__(self) -> None:
        require(0 < self.norm < math.inf, f"a record's norm must be positive and finite, not {self.norm}")
        _check_derived(self.algorithm)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "algorithm":
            raise AttributeError(name)
        if name == "contribute_together" and not hasattr(self.algorithm, name):
            raise AttributeError(name)
        return self.together if name == "contribute_together" else getattr(self.algorithm, name)

    def layout(self, public: Public) -> Layout:
        """The algorithm's layout with `sensitivity`, and bounds that the norm implies."""
        found = _sensitivities(self.algorithm, public, self.norm)
        largest = max(public.rows) * self.norm**2 * SLACK if PRODUCT in found else math.inf
        specs = self.algorithm.layout(self._public(public)).specs
        return Layout(
            tuple(replace(s, bound=min(s.bound or math.inf, largest), sensitivity=found[s.name]) for s in specs)
        )

    def start(self, public: Public, rng: np.random.Generator) -> Any:
        """Return the server's state before the first round."""
        return self.algorithm.start(self._public(public), rng)

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> Any:
        """The algorithm's client, on clipped records."""
        return self.algorithm.enroll(clip_records(data, self.norm), self._public(public), rng)

    def contribute(self, client: Any, broadcast: Tensors, rng: np.random.Generator) -> tuple[Any, Tensors]:
        """Refuse a broadcast for which the sensitivity does not hold.

        Raises:
            MalformedError: the sensitivity does not hold.
        """
        _check_broadcast(broadcast)
        return self.algorithm.contribute(client, broadcast, rng)

    def broadcast(self, server: Any) -> Tensors:
        """Return what the server sends to the clients of the next round."""
        return self.algorithm.broadcast(server)

    def combine(self, server: Any, aggregate: Aggregate) -> Any:
        """Return the server's next state from the sum of the contributions."""
        return self.algorithm.combine(server, aggregate)

    def evaluation_layout(self, public: Public) -> Layout:
        """Name the sums that `evaluate` returns, with bounds."""
        return self.algorithm.evaluation_layout(public)

    def evaluate(self, client: Any, broadcast: Tensors) -> Tensors:
        """Return sums over the client's rows."""
        return self.algorithm.evaluate(client, broadcast)

    def finished(self, server: Any) -> str | None:
        """Return the reason why the run may stop, or `None`."""
        return self.algorithm.finished(server)

    def together(
        self, clients: Sequence[Any], broadcast: Tensors, rngs: Sequence[np.random.Generator]
    ) -> Sequence[tuple[Any, Tensors] | SecureFedError]:
        """As `SupportsBatches.contribute_together`, where the algorithm offers it."""
        try:
            _check_broadcast(broadcast)
        except MalformedError as error:
            return [error] * len(clients)
        batched: Any = self.algorithm
        return batched.contribute_together(clients, broadcast, rngs)  # type: ignore[no-any-return]

    def _public(self, public: Public) -> Public:
        return replace(public, feature_bound=min(public.feature_bound, self.norm))


def record_level(algorithm: Algorithm[Any, Any], norm: float) -> RecordLevel:
    """Clip the records of `algorithm` to `norm`, and declare the sensitivity of its messages to one record."""
    return RecordLevel(algorithm, norm)


def clip_records(data: Dataset, norm: float) -> Dataset:
    """Scale each row longer than `norm` to an L2 norm of at most `norm`, rounding included; keep shorter rows."""
    largest = np.abs(data.x).max(axis=1, keepdims=True)
    units = np.divide(data.x, largest, out=np.zeros_like(data.x), where=largest > 0)
    relative = np.linalg.norm(units, axis=1, keepdims=True) * (1 + (data.features + 8) * _EPS)
    with np.errstate(over="ignore"):
        long = largest * relative > norm
    return Dataset(np.where(long, units * (norm / np.maximum(relative, 1.0)), data.x), data.y)


def _check_derived(algorithm: Algorithm[Any, Any]) -> None:
    name, kind = type(algorithm).__name__, type(algorithm)
    if kind in (SSI, LocalPower):
        steps = getattr(algorithm, "local_steps", (1,))
        require(max(steps) == 1, f"LocalPower with local steps {steps} is not linear in a record; use local_steps=(1,)")
    elif isinstance(algorithm, GraphFedAvg) and kind in (GraphFedAvg, GraphFedProx):
        if algorithm.local_steps > 1:
            _check_contraction(algorithm)
    else:
        raise ConfigError(
            f"for {kind.__module__.rpartition('.')[2]}.{name} no bound on what one record changes is derived; "
            "derived are pca/ssi, pca/localpower with one local step, graph/fedavg and graph/fedprox"
        )


def _check_contraction(algorithm: GraphFedAvg) -> None:
    require(
        algorithm.momentum == 0,
        f"several local steps with momentum {algorithm.momentum:g} may carry a record's change further each; "
        "use momentum=0, or local_steps=1",
    )


def _sensitivities(algorithm: Algorithm[Any, Any], public: Public, norm: float) -> dict[str, float]:
    """By tensor, as proved above, with room for the rounding of float64 sums over all records on both sides."""
    rows = max(public.rows)
    if isinstance(algorithm, SSI):
        rounding = 4 * (rows + public.features + 8) * rows * math.sqrt(algorithm.rank) * _EPS
        squares = norm**2 * (SLACK + rounding)
        return {PRODUCT: squares, CAPTURED: squares}
    assert isinstance(algorithm, GraphFedAvg)
    steps, rate = algorithm.local_steps, algorithm.step_size
    if steps > 1:
        curvature = algorithm.problem(public).smoothness(0.0) + algorithm.pull
        require(
            rate * curvature <= 2,
            f"{steps} local steps of {rate:g} carry a record's change on unchecked: step_size must be at most "
            f"{2 / curvature:.3g} (2 / L at degree zero; a larger zeta lowers L), or local_steps=1",
        )
    moved = steps * rate * math.sqrt(2 * public.features) * norm**2 / rows
    weight = algorithm.largest_weight(public)
    slope = 4 * norm**2 * (rows + public.features) + 2 * algorithm.alpha / algorithm.zeta + 4 * algorithm.beta * weight
    rounding = 32 * steps * public.features * (rate * slope + weight) * _EPS  # of fewer than features^2 entries
    return {GRAPH: moved * SLACK + rounding}


def _check_broadcast(broadcast: Tensors) -> None:
    if BASIS in broadcast and not _spectral(broadcast[BASIS]) <= _ORTHONORMAL:
        raise MalformedError(
            SERVER, "its basis is longer than orthonormal, so a record would change the message by more than declared"
        )
    if CONSENSUS in broadcast and not broadcast[CONSENSUS].min() >= 0:
        raise MalformedError(SERVER, "its graph has negative weights, where the bound on a record's change fails")


def _spectral(basis: Array) -> float:
    return float(np.linalg.norm(basis, 2)) if np.isfinite(basis).all() else math.inf

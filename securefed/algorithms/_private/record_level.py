"""Bound how much a client's message changes when ONE record of the client changes: the message's sensitivity.

Record-level differential privacy adds noise in proportion to the sensitivity. `RecordLevel` wraps an algorithm: it
clips the records, and writes the sensitivity of every tensor into the layout, the declaration of the tensors that a
client sends. The noise itself is added by a defence, which reads the layout.

Neighbours: one record x (features,) of one client is replaced by a record of zeros; how many records each client has
is public. Records are clipped to a public L2 norm R when a client enrols, so ||x|| <= R. In the proofs a prime marks
the neighbour's side, where x is zero; everything else, the broadcast included, is the same on both sides.

SSI, and LocalPower with one local step. The client sends Y = S Z and the scalar tr(Z^T S Z), where S = sum_j x_j x_j^T
is the Gram matrix of its records and Z the broadcast basis. Since S - S' = x x^T, and ||Z||_2 <= 1 (a client refuses
any other Z),

    ||Y - Y'||_F = ||x|| ||Z^T x|| <= R^2    and    |tr Z^T (S - S') Z| = ||Z^T x||^2 <= R^2.

FedAvg and FedProx on graphs. The client starts at the broadcast edge weights w, makes K projected gradient steps of
size eta on z^T w / n + h(w), and sends n / n_max times the result. Here n is its number of records, n_max the largest
such number of any client, and h does not depend on data; z has one entry z_ab = sum_j (x_ja - x_jb)^2 for each pair of
features a < b out of d. The entries (x_a - x_b)^2 of z - z' are at most 2 R^2 each, and their sum is
d ||x||^2 - (sum_a x_a)^2 <= d R^2, so

    ||z - z'|| <= sqrt(2 R^2 d R^2) = sqrt(2 d) R^2.

One step separates the two sides by at most eta ||z - z'|| / n, and the projection separates no two points further:
after the scaling, by eta sqrt(2 d) R^2 / n_max. K steps add up to K times that, if the map w -> w - eta grad h(w)
separates no two points w >= 0 further either. That holds without momentum and for eta <= 2 / L, with L the smoothness
of h on w >= 0 (a client refuses a broadcast with a negative weight). Without the wrapper a client whose steps end far
above its objective at the start reports divergence instead of a message. One record could decide that, and under noise
the client then sends zeros; so this check is switched off here.

No bound is derived for other algorithms, because their steps may amplify a record's change: the inner iterations of
FAPS and of LocalPower with several local steps, the dual variables of FedPG, the weights of PPGL. `record_level`
refuses them by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from securefed._hyperparameters import check_positive
from securefed._messages import SERVER, Aggregate
from securefed._public import Public, require
from securefed._tensors import Array, Layout, Tensors
from securefed.algorithms._base import Algorithm, RoundOutcome
from securefed.algorithms._capabilities import SupportsBatches, supports
from securefed.algorithms._graph.fedavg import GraphFedAvg
from securefed.algorithms._graph.fedprox import GraphFedProx
from securefed.algorithms._graph.method import CONSENSUS, GRAPH, GraphClient
from securefed.algorithms._pca.localpower import LocalPower
from securefed.algorithms._pca.operators import SLACK
from securefed.algorithms._pca.server import BASIS, CAPTURED, PRODUCT
from securefed.algorithms._pca.ssi import SSI
from securefed.algorithms._validation import check_object
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError, MalformedError, SecureFedError

_EPS = float(np.finfo(np.float64).eps)
_LARGEST_NORM = 1 + 2.0**-42
"""Largest accepted ||Z||_2 of a broadcast basis: 1, and room for its rounding, which `SLACK` = 1 + 2^-40 covers."""


@dataclass(frozen=True)
class RecordLevel(Algorithm[Any, Any]):
    """Run an algorithm on clipped records, and declare in its layout the sensitivity of every tensor to one record.

    Use it under a defence that reads these sensitivities, `chain(records(), gaussian(...), secure_aggregation())` or
    with `skellam(...)`. All other methods and attributes are those of the algorithm.

    Attributes:
        algorithm: the algorithm to run.
        norm: R, the largest L2 norm of a record, a public number chosen without looking at data.

    Raises:
        ConfigError: `norm` is not positive and finite, or no bound is derived for the algorithm.
    """

    algorithm: Algorithm[Any, Any]
    norm: float

    def __post_init__(self) -> None:
        check_positive("norm", self.norm)
        _check_derived(self.algorithm)
        if supports(self.algorithm, SupportsBatches):
            object.__setattr__(self, "contribute_together", self._contribute_together)  # so that `isinstance` sees it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "algorithm":  # while a copy or a pickle is made there is no algorithm yet
            raise AttributeError(name)
        return getattr(self.algorithm, name)

    def layout(self, public: Public) -> Layout:
        """Return the algorithm's layout with the tensors' sensitivities, and with bounds that the norm implies."""
        sensitivities = _sensitivities(self.algorithm, public, self.norm)
        # entries of S Z, and tr(Z^T S Z), are at most tr S <= n R^2
        most = max(public.rows) * self.norm**2 * SLACK if PRODUCT in sensitivities else math.inf
        specs = self.algorithm.layout(self._public(public)).specs
        return Layout(
            tuple(replace(s, bound=min(s.bound or math.inf, most), sensitivity=sensitivities[s.name]) for s in specs)
        )

    def start(self, public: Public, rng: np.random.Generator) -> Any:
        """Return the server's state before the first round."""
        return self.algorithm.start(self._public(public), rng)

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> Any:
        """Return a client's state before its first round, made from clipped records."""
        state = self.algorithm.enroll(clip_records(data, self.norm), self._public(public), rng)
        # Above its ceiling a graph's client would report divergence: a record must not decide that.
        return replace(state, ceiling=math.inf) if isinstance(state, GraphClient) else state

    def contribute(self, client: Any, broadcast: Tensors, rng: np.random.Generator) -> tuple[Any, Tensors]:
        """Compute one client's contribution.

        Raises:
            MalformedError: the sensitivity does not hold for this broadcast.
        """
        _check_broadcast(broadcast)
        return self.algorithm.contribute(client, broadcast, rng)

    def broadcast(self, server: Any) -> Tensors:
        """Return what the server sends to the clients of the next round."""
        return self.algorithm.broadcast(server)

    def combine(self, server: Any, aggregate: Aggregate) -> Any:
        """Return the server's next state from the sum of the contributions."""
        return self.algorithm.combine(server, aggregate)

    def commit(self, client: Any, outcome: RoundOutcome) -> Any:
        """Return the committed state for a tentative one."""
        return self.algorithm.commit(client, outcome)

    def check_broadcast(self, broadcast: Tensors, public: Public) -> None:
        """Refuse a broadcast that no server of the algorithm sends; raise `DataError`."""
        checking: Any = self.algorithm
        checking.check_broadcast(broadcast, self._public(public))

    def evaluation_layout(self, public: Public) -> Layout:
        """Name the sums that `evaluate` returns, with bounds."""
        return self.algorithm.evaluation_layout(public)

    def evaluate(self, client: Any, broadcast: Tensors) -> Tensors:
        """Return sums over the client's rows."""
        return self.algorithm.evaluate(client, broadcast)

    def personal(self, client: Any) -> Tensors | None:
        """Return the result that stays with the client, or `None`."""
        return self.algorithm.personal(client)

    def finished(self, server: Any) -> str | None:
        """Return the reason why the run may stop, or `None`."""
        return self.algorithm.finished(server)

    def _contribute_together(
        self, clients: Sequence[Any], broadcast: Tensors, rngs: Sequence[np.random.Generator]
    ) -> Sequence[tuple[Any, Tensors] | SecureFedError]:
        """Compute the contributions of several clients at once, for algorithms that support it."""
        try:
            _check_broadcast(broadcast)
        except MalformedError as error:
            return [error] * len(clients)
        batched: Any = self.algorithm
        return batched.contribute_together(clients, broadcast, rngs)  # type: ignore[no-any-return]

    def _public(self, public: Public) -> Public:
        """Return the public facts with the range that clipped records have: no entry is longer than its record."""
        return replace(public, feature_bound=min(public.feature_bound, self.norm))


def record_level(algorithm: Algorithm[Any, Any], norm: float) -> RecordLevel:
    """Clip the records of `algorithm` to `norm`, and declare the sensitivity of its messages to one record."""
    return RecordLevel(algorithm, norm)


def clip_records(data: Dataset, norm: float) -> Dataset:
    """Scale each row longer than `norm` to an L2 norm of at most `norm`, rounding included; keep shorter rows."""
    check_positive("norm", norm)
    largest = np.abs(data.x).max(axis=1, keepdims=True)
    # rows over their largest entry: squares of these neither overflow nor vanish
    units = np.divide(data.x, largest, out=np.zeros_like(data.x), where=largest > 0)
    # the norm of `units`, rounded up by more than the rounding of its sum of squares
    relative = np.linalg.norm(units, axis=1, keepdims=True) * (1 + (data.features + 8) * _EPS)
    with np.errstate(over="ignore"):
        too_long = largest * relative > norm
    return replace(data, x=np.where(too_long, units * (norm / np.maximum(relative, 1.0)), data.x))


def _check_derived(algorithm: Any) -> None:
    """Raise `ConfigError` unless the proofs above cover the algorithm with its settings."""
    check_object(algorithm)
    kind = type(algorithm)
    if kind in (SSI, LocalPower):
        steps = getattr(algorithm, "local_steps", (1,))
        require(max(steps) == 1, f"LocalPower with local steps {steps} is not linear in a record; use local_steps=(1,)")
    elif kind in (GraphFedAvg, GraphFedProx):
        require(
            algorithm.local_steps == 1 or algorithm.momentum == 0,
            f"several local steps with momentum {algorithm.momentum:g} may amplify a record's change; use momentum=0, "
            "or local_steps=1",
        )
    else:
        raise ConfigError(
            f"for {kind.__module__.rpartition('.')[2]}.{kind.__name__} no bound on what one record changes is derived; "
            "use pca/ssi, pca/localpower with local_steps=(1,), or graph/fedavg or graph/fedprox with local_steps=1"
        )


def _sensitivities(algorithm: Algorithm[Any, Any], public: Public, norm: float) -> dict[str, float]:
    """Return the proven bound of each tensor, with room for the rounding of float64 sums over all records."""
    rows = max(public.rows)
    if isinstance(algorithm, SSI):  # LocalPower too, a subclass
        # a sum over n records and d features is rounded by about (n + d) eps of itself, on both sides of the difference
        rounding = 4 * (rows + public.features + 8) * rows * math.sqrt(algorithm.rank) * _EPS
        squares = norm**2 * (SLACK + rounding)
        return {PRODUCT: squares, CAPTURED: squares}
    assert isinstance(algorithm, GraphFedAvg)  # or its subclass GraphFedProx
    steps, rate = algorithm.local_steps, algorithm.step_size
    if steps > 1:
        curvature = algorithm.problem(public).smoothness(0.0) + algorithm.pull  # L
        below = 0.995 * 2 / curvature  # three digits of it are within the limit, also where they are rounded up
        require(
            rate * curvature <= 2,
            f"{steps} local steps of {rate:g} may amplify a record's change: step_size must be at most "
            f"{below:.3g} (2 / L at degree zero; a larger zeta lowers L), or local_steps=1",
        )
    moved = steps * rate * math.sqrt(2 * public.features) * norm**2 / rows  # K eta sqrt(2 d) R^2 / n_max
    weight = algorithm.largest_weight(public)
    # Rounding grows with the entries of the gradient z / n - alpha (1 / (deg_a + zeta) + 1 / (deg_b + zeta)) + 4 beta
    # w. Term by term these are at most 2 R^2 (rounded once for each record and feature), 2 alpha / zeta, 4 beta weight.
    slope = 4 * norm**2 * (rows + public.features) + 2 * algorithm.alpha / algorithm.zeta + 4 * algorithm.beta * weight
    rounding = 32 * steps * public.features * (rate * slope + weight) * _EPS  # of fewer than features^2 entries
    return {GRAPH: moved * SLACK + rounding}


def _check_broadcast(broadcast: Tensors) -> None:
    """Raise `MalformedError` for a basis Z with ||Z||_2 > 1, or a graph with a negative weight."""
    if BASIS in broadcast and not _spectral_norm(broadcast[BASIS]) <= _LARGEST_NORM:
        raise MalformedError(
            SERVER, "its basis is longer than orthonormal, so a record would change the message by more than declared"
        )
    if CONSENSUS in broadcast and not broadcast[CONSENSUS].min() >= 0:
        raise MalformedError(SERVER, "its graph has negative weights, where the bound on a record's change fails")


def _spectral_norm(basis: Array) -> float:
    """Return ||Z||_2, infinity for a basis that is not finite."""
    return float(np.linalg.norm(basis, 2)) if np.isfinite(basis).all() else math.inf

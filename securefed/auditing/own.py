"""Audit of one's own algorithm: an object that satisfies `Algorithm`, or a client function, attacked as it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from securefed.algorithms.base import Algorithm, Public
from securefed.attacks import views
from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.generic import ClearRows, FitRows, ProbeGram, Replay
from securefed.attacks.membership import Confirmation, ShadowMembership, rates
from securefed.attacks.membership.lira import Candidate, Membership
from securefed.attacks.scores import leakage, match, relative_error
from securefed.auditing.own_function import Backend, Combine, Contribute, as_algorithm
from securefed.auditing.statistics import NOT_DETECTED, Interval, Verdict, interval, verdict
from securefed.datasets.base import Dataset
from securefed.errors import ConfigError, SecureFedError
from securefed.federation import Federation
from securefed.server import Result
from securefed.tensors import Array, Tensors

Secret = Literal["gram", "samples", "membership", "confirmation"]
SECRETS: Final[tuple[Secret, ...]] = ("gram", "samples", "membership", "confirmation")
GATED: Final[tuple[Secret, ...]] = ("gram", "samples", "membership")
"""What a gate looks at unless told otherwise: a guess of all of a client's data can be confirmed against any message
without noise, so `confirmation` asks for differential privacy and nothing less."""
_CANDIDATES = 20


@dataclass(frozen=True)
class OwnCell:
    """One attack on one view, over all seeds.

    Attributes:
        view, attack, secret: what saw what.      leakage, null: with their intervals; the null attacks shuffled rounds,
            or deals membership scores out at random.
        verdict: as everywhere in an audit.      error: mean relative error (NaN for membership).
        tpr: of membership, at a false positive rate of 1 % (NaN elsewhere).
        residual, rank, unknowns, condition: means, as the attack reported them (NaN or 0 where it reports none).
    """

    view: str
    attack: str
    secret: Secret
    leakage: Interval
    null: Interval
    verdict: Verdict
    error: float
    tpr: float
    residual: float
    rank: float
    unknowns: int
    condition: float


@dataclass(frozen=True)
class OwnAudit:
    """What the generic attacks found.

    Attributes:
        name: of the algorithm.      cells: every attack that ran.      skipped: what did not, and why.
        seeds, rounds: of each run.      assumptions: what the attackers were given.
    """

    name: str
    cells: tuple[OwnCell, ...]
    skipped: tuple[str, ...]
    seeds: int
    rounds: int
    assumptions: tuple[str, ...]

    @property
    def worst(self) -> OwnCell:
        """The gated cell of highest mean leakage. Raises `ConfigError` where no attack ran."""
        gated = [cell for cell in self.cells if cell.secret in GATED]
        if not gated:
            raise ConfigError(f"no attack applied to {self.name}: {'; '.join(self.skipped)}")
        return max(gated, key=lambda cell: cell.leakage.mean)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.seeds} seeds of {self.rounds} rounds; 1 = exact, 0 = nothing"]
        for cell in self.cells:
            found = f"{cell.leakage.mean:5.2f} [{cell.leakage.low:.2f}, {cell.leakage.high:.2f}]"
            power = f" (a leak of {cell.verdict.detectable:.2f} would have been)" * (cell.verdict.word == NOT_DETECTED)
            lines.append(f"  {cell.view:14} {cell.secret:12} {cell.attack:24} {found:20} {cell.verdict.word}{power}")
        lines += [f"  skipped: {reason}" for reason in self.skipped]
        return "\n".join([*lines, *(f"  assumed: {assumption}" for assumption in self.assumptions)])


Clients = Sequence[Dataset | Array] | Callable[[int], Sequence[Dataset | Array]]
"""The clients' rows, or a function of the seed that draws them (better: seeds then vary the data too)."""


def audit_algorithm(
    algorithm: Algorithm[Any, Any] | Contribute,
    clients: Clients,
    *,
    rounds: int = 5,
    seeds: int = 10,
    start: Tensors | None = None,
    combine: Combine | None = None,
    backend: Backend = "numpy",
    population: Array | None = None,
    feature_bound: float | None = None,
    view: Sequence[str] = (views.SERVER_VIEW, views.SUM_ONLY),
    fit: FitRows | None = None,
) -> OwnAudit:
    """Run an algorithm in the clear and attack what a server, or a sum, would show. No code for the attack is needed.

    Args:
        algorithm: an instance that satisfies `Algorithm`; or a function `contribute(rows, broadcast)` that returns
            tensors by name. It gets each client's rows as a (rows, features) array and may also have parameters named
            `labels` and `rng`.
        clients: each client's rows (`Dataset` where there are labels), at least 2 clients; or a function of the seed.
        rounds: of each run; a linear message needs features / width of them.      seeds: runs; 10 to rely on.
        start: for a function: the first broadcast.      combine: for a function: (broadcast, total, clients) -> the
            next broadcast; without it every round repeats `start`.
        backend: of a function: "torch" where it takes and returns float64 torch tensors (exact derivatives).
        population: rows that the membership attack knows to be like the clients'; the other clients' by default.
        feature_bound: declared range of the data; the largest entry of all clients by default.
        view: "server" (one client in the clear), "sum only" (what secure aggregation leaves).
        fit: limits of the fitting attack.

    Returns:
        Cells by view, secret and attack. Samples are compared with the mean row, Gram matrices with the pooled one.

    Raises:
        ConfigError: parameters that clash.      DataError: clients or messages that cannot be run.
    """
    if seeds < 1 or rounds < 1:
        raise ConfigError(f"an audit needs at least one seed and one round, not {seeds} and {rounds}")
    unknown = sorted(set(view) - {views.SERVER_VIEW, views.SUM_ONLY})
    if unknown:
        raise ConfigError(f'views are "server" and "sum only", not {unknown[0]!r}')
    is_algorithm = isinstance(algorithm, Algorithm)
    if is_algorithm and (start is not None or combine is not None):
        raise ConfigError("start and combine belong to a function; an Algorithm has steps of its own")
    if not is_algorithm and (start is None or not callable(algorithm)):
        raise ConfigError("give an Algorithm, or a function with its first broadcast as `start`")
    tally, labelled, name = _Tally(), False, ""
    for seed in range(seeds):
        data = _datasets(clients(seed) if callable(clients) else clients)
        labelled = labelled or data[0].y is not None
        if is_algorithm:
            method: Any = algorithm
        else:
            assert start is not None
            method = as_algorithm(algorithm, data[0], start, combine, backend)  # type: ignore[arg-type]
        name = getattr(method, "name", type(method).__name__)
        run = _Run(method, data, rounds, seed, population, feature_bound, fit or FitRows(), tally)
        for what in view:
            run.look(what)
    known = ["the algorithm, its hyper-parameters, every broadcast and each client's number of rows are public"]
    known += ["the probe fills in what the rounds leave open from the pooled rows, which are its baseline too"]
    known += ["labels are known to the attacker"] if labelled else []
    return OwnAudit(name, tally.cells(), tuple(tally.skipped.values()), seeds, rounds, tuple(known))


def _datasets(clients: Sequence[Dataset | Array]) -> list[Dataset]:
    data = [item if isinstance(item, Dataset) else Dataset(np.asarray(item)) for item in clients]
    if len(data) < 2:
        raise ConfigError(f"an audit needs at least 2 clients, not {len(data)}; the others are the baseline")
    return data


@dataclass(frozen=True)
class _Attempt:
    leak: float
    null: float
    error: float = float("nan")
    tpr: float = float("nan")
    found: Reconstruction | None = None


@dataclass
class _Tally:
    """Attempts by view, attack and secret."""

    attempts: dict[tuple[str, str, Secret], list[_Attempt]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, key: tuple[str, str, Secret], attempt: _Attempt) -> None:
        self.attempts.setdefault(key, []).append(attempt)

    def skip(self, where: str, reason: str) -> None:
        """Only the first reason of each place: seeds differ in figures at most."""
        self.skipped.setdefault(where, f"{where}: {reason}")

    def cells(self) -> tuple[OwnCell, ...]:
        return tuple(self._cell(key, group) for key, group in self.attempts.items())

    def _cell(self, key: tuple[str, str, Secret], group: list[_Attempt]) -> OwnCell:
        leak, null = interval([a.leak for a in group]), interval([a.null for a in group])
        found = [a.found for a in group if a.found is not None]
        return OwnCell(
            *key,
            leak,
            null,
            verdict(leak, null),
            float(np.mean([a.error for a in group])),
            float(np.mean([a.tpr for a in group])),
            float(np.mean([f.residual for f in found])) if found else float("nan"),
            float(np.mean([f.rank for f in found])) if found else 0.0,
            found[0].unknowns if found else 0,
            float(np.mean([f.condition for f in found])) if found else float("nan"),
        )


class _Run:
    """One seed: a run in the clear, and everything that is tried on it."""

    def __init__(
        self,
        method: Algorithm[Any, Any],
        data: list[Dataset],
        rounds: int,
        seed: int,
        population: Array | None,
        feature_bound: float | None,
        fit: FitRows,
        tally: _Tally,
    ) -> None:
        self.public = Public.of(data, feature_bound=feature_bound)
        self.method, self.data, self.seed, self.tally, self.fit = method, data, seed, tally, fit
        self.target = seed % len(data)  # the targets take turns, so that no client's luck decides
        self.population = population
        self.result: Result = Federation(method, data, seed=seed, public=self.public).run(rounds)

    def look(self, what: str) -> None:
        transcript = self.result.transcript
        see: Mapping[str, Callable[[], Observed]] = {
            views.SERVER_VIEW: lambda: views.server(transcript, self.target),
            views.SUM_ONLY: lambda: views.sum_only(transcript, self.target),
        }
        observed = see[what]()
        shuffled = views.shuffled(observed, np.random.default_rng([self.seed, 2]))
        attacks: list[ProbeGram | ClearRows | FitRows] = [ProbeGram()]
        if self._reconstruct(attacks[0], observed, shuffled):
            where = f"{observed.view}, {self.fit.name}"
            self.tally.skip(
                where, "the messages depend on the rows through their moments only; the probe recovers those"
            )
        else:
            attacks.append(self.fit)
        for attack in (*attacks[1:], ClearRows()):
            self._reconstruct(attack, observed, shuffled)
        for scorer in (ShadowMembership(), Confirmation()):
            self._membership(scorer, observed)

    # --- reconstruction -----------------------------------------------------------------------------------------

    def _reconstruct(self, attack: ProbeGram | ClearRows | FitRows, observed: Observed, null: Observed) -> bool:
        """Whether the attack ran."""
        where = f"{observed.view}, {attack.name}"
        if (reason := attack.applies(Target(self.method, self.public), observed)) is not None:
            self.tally.skip(where, reason)
            return False
        try:
            found = self._run(attack, self._replay(observed))
        except SecureFedError as refusal:
            self.tally.skip(where, str(refusal))
            return False
        truth, base = self._truth(attack.secret)
        error = self._error(attack.secret, found, truth)
        try:
            nothing = self._error(attack.secret, self._run(attack, self._replay(null)), truth)
        except SecureFedError:
            nothing = base  # it saw that nothing fits, and falls back on the guess
        secret: Secret = "gram" if attack.secret == "gram" else "samples"
        attempt = _Attempt(_leak(error, base), _leak(nothing, base), error=error, found=found)
        self.tally.add((observed.view, attack.name, secret), attempt)
        return True

    def _run(self, attack: ProbeGram | ClearRows | FitRows, replay: Replay) -> Reconstruction:
        rng = np.random.default_rng([self.seed, 3])
        if isinstance(attack, ProbeGram):
            return attack.attack(replay, rng, self._pooled())
        return attack.attack(replay) if isinstance(attack, ClearRows) else attack.attack(replay, rng)

    def _replay(self, observed: Observed) -> Replay:
        labels = [self.data[client].y for client in sorted(observed.members)]
        known = [y for y in labels if y is not None]
        return Replay(
            observed, Target(self.method, self.public), np.concatenate(known) if len(known) == len(labels) else None
        )

    def _truth(self, secret: str) -> tuple[Array, float]:
        """The target's secret, and the error of a guess from everybody's pooled data and public sizes."""
        own, pooled = self.data[self.target].x, self._pooled()
        if secret == "gram":
            truth, guess = own.T @ own, pooled.T @ pooled * (len(own) / len(pooled))
        else:
            truth, guess = own, np.broadcast_to(pooled.mean(axis=0), own.shape)
        return truth, relative_error(guess, truth)

    def _pooled(self) -> Array:
        return np.concatenate([data.x for data in self.data])

    def _error(self, secret: str, found: Reconstruction, truth: Array) -> float:
        if not np.isfinite(found.value).all():
            return float("inf")
        if secret == "samples":
            return relative_error(match(found.value, truth), truth)
        members = found.members or frozenset({self.target})
        share = self.public.rows[self.target] / sum(self.public.rows[client] for client in members)
        return relative_error(found.value * share, truth)

    # --- membership ---------------------------------------------------------------------------------------------

    def _membership(self, scorer: Membership, observed: Observed) -> None:
        secret: Secret = "confirmation" if isinstance(scorer, Confirmation) else "membership"
        where = f"{observed.view}, {scorer.name}"
        replay = self._replay(observed)
        inside, outside, known = self._records(replay, informed=secret == "confirmation")
        if min(len(inside), len(outside)) < 1:
            self.tally.skip(where, "no record is left that is no member; give `population`")
            return
        if secret == "membership" and len(known) < replay.rows:
            reason = f"{replay.rows} population rows are needed, there are {len(known)}; give `population`"
            self.tally.skip(where, reason)
            return

        rng = np.random.default_rng([self.seed, 4])
        try:
            scores = scorer.score(replay, [*inside, *outside], known, rng)
            found = rates(scores[: len(inside)], scores[len(inside) :])
        except (SecureFedError, np.linalg.LinAlgError) as error:
            self.tally.skip(where, str(error))
            return
        mixed = rng.permutation(scores)  # the null: the same scores, dealt out without regard to who was a member
        null = rates(mixed[: len(inside)], mixed[len(inside) :])
        self.tally.add((observed.view, scorer.name, secret), _Attempt(found.leakage, null.leakage, tpr=found.tpr))

    def _records(self, replay: Replay, *, informed: bool) -> tuple[list[Candidate], list[Candidate], Array]:
        """Members and as many non-members, each at a place in the target's block, and what the adversary knows."""
        rng = np.random.default_rng([self.seed, 6])
        own = self.data[self.target]
        first = sum(replay.sizes[: replay.members.index(self.target)])
        places = rng.permutation(own.rows)[: _CANDIDATES // 2]
        others = np.concatenate([data.x for i, data in enumerate(self.data) if i != self.target])
        pool = others if self.population is None else np.asarray(self.population, np.float64)
        absent = self.population is None and len(replay.members) > 1  # others' rows are members of the sum
        drawn = pool[rng.permutation(len(pool))]
        strangers = own.x[:0] if absent else drawn[: len(places)]
        inside = [Candidate(own.x[k], first + int(k)) for k in places]
        outside = [Candidate(row, first + int(k)) for row, k in zip(strangers, places, strict=False)]
        if informed:
            return inside, outside, np.concatenate([self.data[client].x for client in replay.members])
        return inside, outside, drawn[len(strangers) :]


def _leak(error: float, base: float) -> float:
    """Leakage; an attack that returns nothing finite leaves its user with the guess."""
    return leakage(error, base) if np.isfinite(error) else 0.0

"""One seed of an audit of one's own algorithm: a run in the clear, and everything that is tried on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from securefed.algorithms.base import Algorithm, Public
from securefed.attacks import views
from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.generic import (
    Allowance,
    ClearRows,
    FitRows,
    Learned,
    LearnedCounts,
    ProbeGram,
    RegressCounts,
    RegressRows,
    Replay,
)
from securefed.attacks.membership import Confirmation, ShadowMembership, rates
from securefed.attacks.membership.lira import Candidate, Membership
from securefed.attacks.scores import leakage, match, relative_error
from securefed.auditing.own_class import broken
from securefed.auditing.own_function import FunctionAlgorithm
from securefed.auditing.own_tally import SECRETS, Attempt, Secret, Tally
from securefed.auditing.parts import best_part
from securefed.datasets.base import Dataset
from securefed.errors import DataError, RoundVoid, SecureFedError
from securefed.federation import Federation
from securefed.server import Result
from securefed.tensors import Array

_CANDIDATES: Final = 20
_NOTHING: Final = 1e-12
_Attack = ProbeGram | ClearRows | FitRows | Learned | LearnedCounts


class OwnRun:
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
        tally: Tally,
    ) -> None:
        self.public = Public.of(data, feature_bound=feature_bound)
        self.method, self.data, self.seed, self.tally, self.fit = method, data, seed, tally, fit
        self.target = seed % len(data)  # the targets take turns, so that no client's luck decides
        self.population = population
        self.result = self._recorded(rounds)

    def _recorded(self, rounds: int) -> Result:
        try:
            result = Federation(self.method, self.data, seed=self.seed, public=self.public).run(rounds)
        except RoundVoid:
            self._blame()
            raise
        except SecureFedError:
            raise
        except Exception as error:
            raise broken(self.method, error, self.seed) from error
        self._blame()
        missing = {i for record in result.transcript.records for i in set(record.cohort) - set(record.survivors)}
        if missing:
            self.tally.skip(
                f"seed {self.seed}", f"clients {sorted(missing)} refused some rounds; the others' are attacked"
            )
        return result

    def _blame(self) -> None:
        """Raise `DataError` where the function failed on a client's own rows: a run without them is another run."""
        if not isinstance(self.method, FunctionAlgorithm) or not self.method.faults:
            return
        fault = self.method.faults[0]
        who = [str(index) for index, data in enumerate(self.data) if data is fault.data]
        raise DataError(f"client {', '.join(who) or '?'}, round {fault.rounds} (seed {self.seed}): {fault.what}")

    def look(self, what: str, allowance: Allowance | None = None) -> None:
        """Attack one view, in as many seconds as the allowance has left."""
        transcript = self.result.transcript
        see: Mapping[str, Callable[[], Observed]] = {
            views.SERVER_VIEW: lambda: views.server(transcript, self.target),
            views.SUM_ONLY: lambda: views.sum_only(transcript, self.target),
        }
        observed = see[what]()
        if (reason := self._nothing_to_leak()) is not None:
            self.tally.skip(f"{observed.view}, every attack", reason)
            return
        replay = self._replay(observed, allowance)
        nulls = [self._replay(views.shuffled(observed, np.random.default_rng([self.seed, 2])), allowance)]
        try:
            probed = self._reconstruct(ProbeGram(), replay, nulls)
            if probed:
                self.tally.skip(
                    f"{observed.view}, {self.fit.name}",
                    "the messages depend on the rows through their moments only; the probe recovers those",
                )
            else:
                self._reconstruct(self.fit, replay, nulls)
            nulls += self._strangers(replay, allowance)  # too dear for searches
            self._reconstruct(ClearRows(), replay, nulls)
            for scorer in (ShadowMembership(), Confirmation()):
                self._membership(scorer, replay)
            self._regress(replay, nulls, rows=not probed)
        except SecureFedError as refusal:
            self.tally.skip(f"{observed.view}, what is left", str(refusal))

    def _regress(self, replay: Replay, nulls: Sequence[Replay], *, rows: bool) -> None:
        rng = np.random.default_rng([self.seed, 9])
        regression, labels = RegressRows(calls=self.fit.calls), self._labels
        counts = RegressCounts(regression)
        if rows:
            self._learned(regression.name, lambda: regression.learn(replay, rng), replay, nulls)
        if labels is not None and self.counted:  # permuted numbers count alike, so that they are no null
            self._learned(counts.name, lambda: counts.learn(replay, labels, rng), replay, nulls[1:])

    def _learned(
        self, name: str, learn: Callable[[], Learned | LearnedCounts], replay: Replay, nulls: Sequence[Replay]
    ) -> None:
        """Learned once: what chance gives is asked of the same model."""
        try:
            learned = learn()
        except (SecureFedError, np.linalg.LinAlgError) as refusal:
            self.tally.skip(f"{replay.observed.view}, {name}", str(refusal))
        else:
            self._reconstruct(learned, replay, nulls)

    def _nothing_to_leak(self) -> str | None:
        for secret in ("gram", "samples"):
            if not np.linalg.norm(self._truth(secret)[0]) > 0 or not self._base(secret) > _NOTHING:
                return (
                    f"client {self.target}'s rows are what everybody's pooled rows say of it, so that nothing could be "
                    "seen to leak; give clients that differ"
                )
        return None

    # --- reconstruction -----------------------------------------------------------------------------------------

    def _reconstruct(self, attack: _Attack, replay: Replay, nulls: Sequence[Replay]) -> bool:
        """Whether the attack ran, and did not see itself that it failed."""
        where = f"{replay.observed.view}, {attack.name}"
        if (reason := attack.applies(replay.target, replay.observed)) is not None:
            self.tally.skip(where, reason)
            return False
        try:
            found = self._run(attack, replay)
        except (SecureFedError, np.linalg.LinAlgError) as refusal:
            self.tally.skip(where, str(refusal))
            return False
        truth, base = self._truth(attack.secret)[0], self._base(attack.secret)
        error = self._error(attack.secret, found, truth)
        chances = [self._chance(attack, null, truth, base) for null in nulls]
        nothing, fits = min(chances, key=lambda chance: chance[0], default=(base, None))
        attempt = Attempt(
            self.target,
            _leak(error, base),
            _leak(nothing, base),
            error=error,
            found=found,
            explained=_explains(found),
            null_explained=fits,
            part=self._part(attack.secret, found),
        )
        secret = next(name for name in SECRETS if name == attack.secret)
        self.tally.add((replay.observed.view, attack.name, secret), attempt)
        return attempt.explained is not False

    def _chance(self, attack: _Attack, null: Replay, truth: Array, base: float) -> tuple[float, bool | None]:
        """Error, and whether it explains, of the attack on messages that say nothing about the target."""
        try:
            found = self._run(attack, null)
        except (SecureFedError, np.linalg.LinAlgError):
            return base, None  # it saw that nothing fits, and falls back on the guess
        return self._error(attack.secret, found, truth), _explains(found)

    def _strangers(self, replay: Replay, allowance: Allowance | None) -> list[Replay]:
        """The same rounds with messages of other clients' rows: what is found there is not the target's, though it may
        be like it. No replay where the client step fails on them."""
        rng = np.random.default_rng([self.seed, 10])
        others = np.flatnonzero(np.repeat(np.arange(len(self.data)), [d.rows for d in self.data]) != self.target)
        places = rng.choice(others, replay.rows)
        known = [data.y for data in self.data if data.y is not None]
        labels = np.concatenate(known)[places] if len(known) == len(self.data) else None
        try:
            sent = replay(self._pooled[places], int(rng.integers(2**62)), labels)
        except SecureFedError:
            return []
        return [self._replay(replay.told(sent), allowance)]

    def _run(self, attack: _Attack, replay: Replay) -> Reconstruction:
        rng = np.random.default_rng([self.seed, 3])
        if isinstance(attack, ProbeGram):
            return attack.attack(replay, rng, self._pooled)
        return attack.attack(replay, rng) if isinstance(attack, FitRows) else attack.attack(replay)

    def _replay(self, observed: Observed, allowance: Allowance | None) -> Replay:
        labels = [self.data[client].y for client in sorted(observed.members)]
        known = [y for y in labels if y is not None]
        return Replay(
            observed,
            Target(self.method, self.public),
            np.concatenate(known) if len(known) == len(labels) else None,
            prior=self._pooled,
            allowance=allowance,
        )

    def _truth(self, secret: str) -> tuple[Array, Array]:
        """The target's secret, and its guess from everybody's pooled data and public sizes."""
        own, pooled = self.data[self.target], self._pooled
        share = own.rows / len(pooled)
        if secret == "gram":
            return own.x.T @ own.x, pooled.T @ pooled * share
        if secret == "labels":
            labels = self._labels
            assert labels is not None and own.y is not None
            classes = int(labels.max()) + 1
            return np.bincount(own.y, minlength=classes), np.bincount(labels, minlength=classes) * share
        return own.x, np.broadcast_to(pooled.mean(axis=0), own.x.shape)

    def _base(self, secret: str) -> float:
        """Error of that guess."""
        truth, guess = self._truth(secret)
        return relative_error(guess, truth)

    @property
    def counted(self) -> bool:
        """Whether the target's labels are classes, and otherwise shared out than everybody's."""
        return self._labels is not None and self._base("labels") > _NOTHING

    @cached_property
    def _labels(self) -> Array | None:
        """Everybody's, in the order of the pooled rows, where they are classes."""
        labels = [data.y for data in self.data if data.y is not None]
        if len(labels) < len(self.data) or any(not np.issubdtype(y.dtype, np.integer) for y in labels):
            return None
        return np.concatenate(labels)

    @cached_property
    def _pooled(self) -> Array:
        return np.concatenate([data.x for data in self.data])

    def _error(self, secret: str, found: Reconstruction, truth: Array) -> float:
        if not np.isfinite(found.value).all():
            return float("inf")
        if secret == "samples":
            return relative_error(self._matched(found, truth), truth)
        members = found.members or frozenset({self.target})
        share = self.public.rows[self.target] / sum(self.public.rows[client] for client in members)
        return relative_error(found.value * share, truth)

    def _part(self, secret: str, found: Reconstruction) -> tuple[float, str]:
        if secret != "samples" or not np.isfinite(found.value).all():
            return -np.inf, ""
        truth, guess = self._truth(secret)
        return best_part(self._matched(found, truth), truth, guess, self._pooled)

    def _matched(self, found: Reconstruction, truth: Array) -> Array:
        bound = self.public.feature_bound  # what no data exceeds costs an attacker nothing to cut off
        return match(np.clip(found.value, -bound, bound), truth)

    # --- membership ---------------------------------------------------------------------------------------------

    def _membership(self, scorer: Membership, replay: Replay) -> None:
        secret: Secret = "confirmation" if isinstance(scorer, Confirmation) else "membership"
        where = f"{replay.observed.view}, {scorer.name}"
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
        attempt = Attempt(self.target, found.leakage, null.leakage, tpr=found.tpr)
        self.tally.add((replay.observed.view, scorer.name, secret), attempt)

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


def _explains(found: Reconstruction) -> bool | None:
    """What the attack says itself of its estimate, in units of what its messages can vary by."""
    return found.diagnostics.get("explained")

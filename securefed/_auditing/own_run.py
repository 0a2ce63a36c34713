"""One seed of an audit of one's own algorithm: a run in the clear, and everything that is tried on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from securefed._auditing.own_class import broken
from securefed._auditing.own_function import FunctionAlgorithm
from securefed._auditing.own_scene import Scene, strangers
from securefed._auditing.own_subject import Subject
from securefed._auditing.own_tally import OwnAttempt, Secret, Tally
from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed._runtime.server import Result
from securefed._tensors import Array
from securefed.algorithms._base import Algorithm
from securefed.attacks import views
from securefed.attacks._base import Target, View
from securefed.attacks._generic import FitRows, Replay, TimeBudget
from securefed.attacks._membership import ConfirmationAttack, ShadowMembership, membership_rates
from securefed.attacks._membership.likelihood_ratio import CandidateRecord, MembershipAttack
from securefed.datasets._base import Dataset
from securefed.errors import DataError, RoundVoid, SecureFedError

_CANDIDATES: Final = 20


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

    def look(self, what: str, budget: TimeBudget | None = None) -> None:
        """Attack one view, in as many seconds as the budget has left."""
        transcript = self.result.transcript
        see: Mapping[str, Callable[[], View]] = {
            views.SERVER_VIEW: lambda: views.server(transcript, self.target),
            views.SUM_ONLY: lambda: views.sum_only(transcript, self.target),
        }
        observed = see[what]()
        if what == views.SUM_ONLY:
            self._attack(Subject(self.data, self.public, None, self.seed), observed, budget)
        self._attack(Subject(self.data, self.public, self.target, self.seed), observed, budget)

    def _attack(self, subject: Subject, observed: View, budget: TimeBudget | None) -> None:
        """Attack one view for the data of one client, or of all together."""
        if (reason := subject.nothing_to_leak(observed.members)) is not None:
            self.tally.skip(f"{observed.view}, {subject.named('every attack')}", reason)
            return
        scene = Scene(subject, self._replay(subject, observed, budget), self.tally, self.fit)
        shuffled = views.shuffled(observed, np.random.default_rng([self.seed, 2]))
        scene.nulls.append(self._replay(subject, shuffled, budget))
        try:
            scene.search()
            if (sent := strangers(subject, scene.replay)) is not None:  # too dear for searches
                scene.nulls.append(self._replay(subject, scene.replay.with_messages(sent), budget))
            scene.read()
            for scorer in (ShadowMembership(), ConfirmationAttack()) if subject.target is not None else ():
                self._membership(scorer, scene.replay)
            scene.regress()
        except SecureFedError as refusal:
            scene.skip("what is left", str(refusal))

    def _replay(self, subject: Subject, observed: View, budget: TimeBudget | None) -> Replay:
        labels = [self.data[client].y for client in sorted(observed.members)]
        known = [y for y in labels if y is not None]
        return Replay(
            observed,
            Target(self.method, self.public),
            np.concatenate(known) if len(known) == len(labels) else None,
            prior=subject.prior,
            budget=budget,
        )

    @property
    def counted(self) -> bool:
        """Whether the target's labels are classes, and otherwise shared out than everybody's."""
        return Subject(self.data, self.public, self.target, self.seed).counted

    # --- membership ---------------------------------------------------------------------------------------------

    def _membership(self, scorer: MembershipAttack, replay: Replay) -> None:
        secret: Secret = "confirmation" if isinstance(scorer, ConfirmationAttack) else "membership"
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
            found = membership_rates(scores[: len(inside)], scores[len(inside) :])
        except (SecureFedError, np.linalg.LinAlgError) as error:
            self.tally.skip(where, str(error))
            return
        mixed = rng.permutation(scores)  # the null: the same scores, dealt out without regard to who was a member
        null = membership_rates(mixed[: len(inside)], mixed[len(inside) :])
        attempt = OwnAttempt(self.target, found.leakage, null.leakage, tpr=found.tpr)
        self.tally.add((replay.observed.view, scorer.name, secret), attempt)

    def _records(self, replay: Replay, *, informed: bool) -> tuple[list[CandidateRecord], list[CandidateRecord], Array]:
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
        inside = [CandidateRecord(own.x[k], first + int(k)) for k in places]
        outside = [CandidateRecord(row, first + int(k)) for row, k in zip(strangers, places, strict=False)]
        if informed:
            return inside, outside, np.concatenate([self.data[client].x for client in replay.members])
        return inside, outside, drawn[len(strangers) :]

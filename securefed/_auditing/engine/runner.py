"""Run attacks on one view of one run: the attack, its nulls, the score, and the record of what did not run.

Every audit follows one protocol, for registered algorithms, a user's own, torch loops and servers that choose their
broadcasts:

    Subject           (`audit_report`) an algorithm under audit: it makes the run of a seed under each defence, and the
                      views of it, and knows each secret with its truth and the guess without messages (a `Judge`)
    AttackedView      one view of that run: what attacks see of it, and its nulls, which say nothing of the secret
    attack, score     the one place where an attack runs: it applies or is noted as a gap with its reason, its nulls run
                      as it did, and its estimates are scored beside them and kept as attempts
    run_tasks         runs the seeds of all subjects, here or in worker processes (`seed_tasks`)
    gather            makes a cell, with its verdict, of the attempts of all seeds (`gathering`)

So an attack that did not run is never mistaken for one that found nothing: here it leaves either attempts or a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Final, Generic, TypeVar

import numpy as np

from securefed._auditing.engine.results import Secret
from securefed._auditing.engine.seed_result import Judge, Place, SeedResult, stated_explained
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction
from securefed.attacks._generic import TimeBudget, clock
from securefed.errors import SecureFedError

REFUSALS: Final = (SecureFedError, np.linalg.LinAlgError)
"""Errors by which an attack says that it does not apply, or cannot go on."""
Seen = TypeVar("Seen")
"""Input of an attack on a view: the view itself, a replay of it, a change of model state, or a dialogue."""
Run = Callable[[Seen], Sequence[Reconstruction]]
"""An attack: its estimate, followed by those that are computed from it; raises one of `REFUSALS` if it cannot."""
Null = Callable[[], Seen | None]
"""Makes the same of messages that say nothing of the secret; `None` where there are none."""


@dataclass(frozen=True)
class Source:
    """An attack's estimate, from which others follow.

    Attributes:
        attack: name of the attack.
        estimate: its estimate.
        null: its estimate from messages that say nothing; `None` where it refused them.
        explained: whether the estimate explains the messages; `None` where the attack cannot tell.
    """

    attack: str
    estimate: Reconstruction
    null: Reconstruction | None
    explained: bool | None = None


@dataclass
class AttackedView(Generic[Seen]):
    """One view of one run, and what attacks on it found.

    Attributes:
        place: algorithm, defence, view, seed and target.
        seen: what attacks are given.
        judge: scores an estimate for each secret that it is of.
        result: receives attempts, pictures and gaps.
        nulls: what attacks are given for their nulls; where there is none, chance is the guess.
        explains: whether an estimate explains its messages; by default what the attack says itself.
        shown: secrets of which pictures are kept.
        image_shape: (height, width) of rows that are images; `None` for others.
        sources: estimates, and those of their first null, from which others follow.
        refused: by name of an attack that did not run, its refusal.
    """

    place: Place
    seen: Seen
    judge: Judge
    result: SeedResult
    nulls: list[Null[Seen]] = field(default_factory=list)
    explains: Callable[[Reconstruction], bool | None] = stated_explained
    shown: Container[str] = ()
    image_shape: tuple[int, int] | None = None
    sources: list[Source] = field(default_factory=list)
    refused: dict[str, Exception | str] = field(default_factory=dict)

    def attack(
        self, name: str, run: Run[Seen], nulls: Sequence[Null[Seen]] | None = None, *, gap: str = ""
    ) -> Sequence[Reconstruction]:
        """Run an attack and its nulls, and record its attempts; or note why it did not run.

        Args:
            name: the name of the attack.
            run: the attack.
            nulls: those of this attack; by default the view's.
            gap: the name under which it is noted if it does not run; by default `name`.

        Returns:
            The estimates; none where it did not run.
        """
        began = clock().now()
        try:
            estimates = run(self.seen)
        except REFUSALS as refusal:
            self.leave_out(gap or name, refusal)
            return []
        took = clock().now() - began
        chances = [_chance(run, null, took) for null in (self.nulls if nulls is None else nulls)]
        judged = self.result.record(self.place, name, estimates, chances, self.judge, self.explains)
        first = (chances[0] if chances else None) or []
        for estimate, chance in zip_longest(estimates, first[: len(estimates)]):
            self.sources.append(Source(name, estimate, chance, self.explains(estimate)))
        shown = [item for item in judged if item.secret in self.shown]
        self.result.keep_pictures(self.place, name, shown, self.image_shape)
        return estimates

    def score(
        self, name: str, secret: Secret, scores: Callable[[], tuple[Array, Array]], rng: np.random.Generator
    ) -> None:
        """Record how well an attack's scores tell members from others; or note why it did not run.

        Args:
            name: the name of the attack.
            secret: `membership`, or `confirmation` where the attacker knows all other rows.
            scores: computes the scores of records that took part, and of records that did not.
            rng: source of the null, which deals the same scores out at random.
        """
        try:
            inside, outside = scores()
        except REFUSALS as refusal:
            self.leave_out(name, refusal)
            return
        self.result.record_membership(self.place, name, secret, inside, outside, rng)

    def leave_out(self, attack: str, reason: Exception | str) -> None:
        """Note that an attack did not run, and why; `pooled ...` are those on the data of all clients together."""
        self.refused[attack] = reason
        named = f"pooled {attack}" if self.place.target is None else attack
        self.result.leave_out(self.place, named, str(reason))


def _chance(run: Run[Seen], null: Null[Seen], seconds: float) -> Sequence[Reconstruction] | None:
    """Attack a null; `None` where there is none, or the attack notices that nothing fits."""
    try:
        seen = null()
        return None if seen is None else run(_given_time(seen, seconds))
    except REFUSALS:
        return None


def _given_time(seen: Any, seconds: float) -> Any:
    """Return what a null shows, which may take as long as the attack did, even beyond what the budget has left.

    A null that is cut short counts as the guess, which would make a search that merely took long look like a leak.
    """
    budget: TimeBudget | None = getattr(seen, "budget", None)
    if budget is None or budget.remaining >= seconds:
        return seen
    return replace(seen, budget=TimeBudget.of(seconds))

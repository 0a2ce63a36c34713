"""One view of one run of one's own algorithm, and what every generic attack makes of one subject's data there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from securefed._auditing.own_subject import Subject
from securefed._auditing.own_tally import SECRETS, OwnAttempt, Tally
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction
from securefed.attacks._generic import (
    ClearRows,
    FitRows,
    LearnedCounts,
    LearnedGram,
    LearnedRows,
    LowDigits,
    ProbeGram,
    RegressCounts,
    RegressRows,
    Replay,
    uses_labels,
)
from securefed.attacks._generic.row_regression import KernelRidge
from securefed.attacks.scores import leakage
from securefed.errors import SecureFedError, TranscriptError

Run = Callable[[Replay], list[Reconstruction]]
"""An attack: everything it says of a replay's rows."""


@dataclass
class Scene:
    """One view for the data of one client, or of all together.

    Attributes:
        subject: whose data.      replay: the view.      tally: of all attempts.      fit: limits of the fitting attack.
        nulls: replays of messages that say nothing of the subject.
    """

    subject: Subject
    replay: Replay
    tally: Tally
    fit: FitRows
    nulls: list[Replay] = field(default_factory=list)
    _probed: bool = False
    _whole: bool = False

    def search(self) -> None:
        """Probe for moments; fit rows where the messages depend on more, or leave moments open."""
        self._probed = self._try(ProbeGram.name, self._probe)
        if self._probed and self._whole:
            self.skip(
                self.fit.name, "the messages depend on the rows through their moments only; the probe recovers those"
            )
        elif (reason := self.fit.applies(self.replay.target, self.replay.observed)) is not None:
            self.skip(self.fit.name, reason)
        else:
            self._try(self.fit.name, lambda replay: self._follows(self.fit.attack(replay, self._rng(3))))

    def read(self) -> None:
        """Read rows off the messages, and numbers of labels where those are linear in them."""
        clear = ClearRows()
        if (reason := clear.applies(self.replay.target, self.replay.observed)) is not None:
            self.skip(clear.name, reason)
        else:
            self._try(clear.name, lambda replay: self._follows(clear.attack(replay), read=True))
        if self.subject.counted:
            self._try(ProbeGram.name, self._count, self.nulls[1:], what=" of labels")

    def regress(self) -> None:
        """Learn rows, their Gram matrix and the numbers of labels from simulated clients.

        What chance gives is asked of the same model.
        """
        rng, regression, labels = self._rng(9), RegressRows(calls=self.fit.calls), self.subject.prior_labels
        try:
            if not self._probed:
                rows, _, sent = regression.simulated(self.replay, rng)
                self._learned(LearnedRows(KernelRidge.of(sent, rows)))
                self._learned(LearnedGram.of(rows, sent, self.replay.features))
                self._digits(rows, sent)
        except (SecureFedError, np.linalg.LinAlgError) as refusal:
            self.skip(regression.name, str(refusal))
        try:
            if self.subject.counted and labels is not None:  # permuted numbers count alike, so that they are no null
                self._learned(RegressCounts(regression).learn(self.replay, labels, rng), self.nulls[1:])
        except (SecureFedError, np.linalg.LinAlgError) as refusal:
            self.skip(RegressCounts.name, str(refusal))

    def _digits(self, rows: Array, sent: Array) -> None:
        try:
            learned = LowDigits.learn(rows, sent)
        except TranscriptError as refusal:
            self.skip(LowDigits.name, str(refusal))
            return
        self._try(learned.name, lambda replay: self._follows(learned.attack(replay), read=True))

    def skip(self, attack: str, reason: str) -> None:
        """Note that an attack did not run, and why."""
        self.tally.skip(f"{self.replay.observed.view}, {self.subject.named(attack)}", reason)

    # --- attacks ------------------------------------------------------------------------------------------------

    def _probe(self, replay: Replay) -> list[Reconstruction]:
        found = ProbeGram().solve(replay, self._rng(3), self.subject.prior, self.subject.prior_labels)
        if replay is self.replay:
            self._whole = found.rank == found.unknowns
        return [found.gram(), found.rows(self.subject.prior)]

    def _count(self, replay: Replay) -> list[Reconstruction]:
        prior, labels = self.subject.prior, self.subject.prior_labels
        return [ProbeGram().solve(replay, self._rng(3), prior, labels, counted=False).counts()]

    def _follows(self, found: Reconstruction, *, read: bool = False) -> list[Reconstruction]:
        """An estimate and what follows from it; of labels nothing where it was made with the true ones."""
        return self.subject.follows(found, labels=read or not self._labels_used)

    @cached_property
    def _labels_used(self) -> bool:
        return uses_labels(self.replay, self._rng(15), self.subject.prior_labels)

    def _learned(
        self, learned: LearnedRows | LearnedGram | LearnedCounts, nulls: Sequence[Replay] | None = None
    ) -> None:
        self._try(learned.name, lambda replay: [learned.attack(replay)], nulls)

    def _rng(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.subject.seed, stream])

    # --- scores -------------------------------------------------------------------------------------------------

    def _try(self, name: str, run: Run, nulls: Sequence[Replay] | None = None, what: str = "") -> bool:
        """Whether the attack ran, and did not see itself that it failed."""
        try:
            found = run(self.replay)
        except (SecureFedError, np.linalg.LinAlgError) as refusal:
            self.skip(f"{name}{what}", str(refusal))
            return False
        chances = [self._chance(run, null, found) for null in (self.nulls if nulls is None else nulls)]
        for place, item in enumerate(found):
            base, error = self.subject.base(item.secret), self.subject.error(item)
            nothing, fits = min((chance[place] for chance in chances), key=lambda c: c[0], default=(base, None))
            attempt = OwnAttempt(
                -1 if self.subject.target is None else self.subject.target,
                _leak(error, base),
                _leak(nothing, base),
                error=error,
                found=item,
                explained=_explains(item),
                null_explained=fits,
                part=self.subject.part(item),
                derived=place > 0,
            )
            named = self.subject.named(item.secret)
            secret = next(known for known in SECRETS if known == named)
            self.tally.add((self.replay.observed.view, name, secret), attempt)
        return _explains(found[0]) is not False

    def _chance(self, run: Run, null: Replay, found: Sequence[Reconstruction]) -> list[tuple[float, bool | None]]:
        """Errors, and whether it explains, of the attack on messages that say nothing about the subject."""
        try:
            nothing = run(null)
        except (SecureFedError, np.linalg.LinAlgError):  # it saw that nothing fits, and falls back on the guess
            return [(self.subject.base(item.secret), None) for item in found]
        return [(self.subject.error(item), _explains(item)) for item in nothing]


def _leak(error: float, base: float) -> float:
    """Leakage; an attack that returns nothing finite leaves its user with the guess."""
    return leakage(error, base) if np.isfinite(error) else 0.0


def _explains(found: Reconstruction) -> bool | None:
    """What the attack says itself of its estimate, in units of what its messages can vary by."""
    return found.diagnostics.get("explained")


def strangers(subject: Subject, replay: Replay) -> Array | None:
    """Messages (equations,) of the same rounds from other rows, which may be like the subject's; `None` where the
    client step fails on them."""
    rng, labels = np.random.default_rng([subject.seed, 10]), replay.labels
    if subject.target is None:
        rows = subject.prior[rng.choice(len(subject.prior), replay.rows)]
    else:
        owners = np.repeat(np.arange(len(subject.data)), [data.rows for data in subject.data])
        places = rng.choice(np.flatnonzero(owners != subject.target), replay.rows)
        known = [data.y for data in subject.data if data.y is not None]
        rows, labels = subject.pooled[places], np.concatenate(known)[places] if labels is not None else None
    try:
        return replay(rows, int(rng.integers(2**62)), labels)
    except SecureFedError:
        return None

"""Run every generic attack on one view of a user's own algorithm, for the data of one client or of all together.

The attacks only run the algorithm's client step on rows of their own: a `Replay` maps hypothetical rows of the view's
members (the clients whose sum it holds) to the messages of the observed rounds. They build on each other: the fit runs
where the probe refuses or leaves directions open, and rows, Gram matrix and low digits are learned from one set of
simulated clients with the members' own labels, label counts from a set whose labels are drawn with the rows.
`own_seed_run` calls `search`, `add_null_of_other_rows`, `read` and `regress`, in this order. The null of an attack,
which measures chance, is the same attack on shuffled rounds; attacks after `add_null_of_other_rows` have a second one,
messages of the same rounds from other rows. Of two nulls the one with the larger leakage counts; where there is none,
or the attack refuses its null, chance is the guess, of leakage 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from typing import Final

import numpy as np

from securefed._auditing.engine.results import Secret
from securefed._auditing.engine.seed_result import Place, SeedResult, stated_explained
from securefed._auditing.implied.implications import Source
from securefed._auditing.own.client_secrets import SecretData
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, View
from securefed.attacks._generic import (
    ClearRows,
    FitRows,
    FitUnknown,
    LearnedCounts,
    LearnedGram,
    LearnedRows,
    LowDigits,
    ProbeGram,
    RegressCounts,
    RegressRows,
    Replay,
    TimeBudget,
    clock,
    uses_labels,
)
from securefed.attacks._generic.row_regression import KernelRidge
from securefed.attacks.views import shuffled
from securefed.errors import SecureFedError, TranscriptError

Run = Callable[[Replay], list[Reconstruction]]
"""An attack: from a replay to its estimate, followed by the estimates that are computed from it."""
_SHOWN: Final[tuple[Secret, ...]] = ("samples", "gram", "pooled samples", "pooled gram")
"""Secrets that the report shows beside their estimates, from the first run."""


class GenericAttacks:
    """All generic attacks on one view; `sources` are their estimates, from which others follow.

    Args:
        secret: the data to recover, the guess of them, and the score.
        place: the place of the attempts: algorithm, defence, view, seed and target.
        result: where the attempts are recorded.
        fit: the fitting attack with its limits.
        observed: the view.
        replay_of: makes the replay of a view.
    """

    def __init__(
        self,
        secret: SecretData,
        place: Place,
        result: SeedResult,
        fit: FitRows | FitUnknown,
        observed: View,
        replay_of: Callable[[View], Replay],
    ) -> None:
        self._secret, self._place, self._result, self._fit = secret, place, result, fit
        self._replay_of = replay_of
        self.replay = replay_of(observed)
        self.sources = list[Source]()
        # first the shuffled rounds; `add_null_of_other_rows` appends messages of other rows
        self._nulls = [replay_of(shuffled(observed, np.random.default_rng([secret.seed, 2])))]
        self._moments_known = False  # the probe ran, and its moments explain the messages
        self._moments_complete = False  # and left no direction open

    def search(self) -> None:
        """Probe for moments; fit rows where the messages depend on more, or leave moments open."""
        self._moments_known = self._try(ProbeGram.name, self._probe)
        if self._moments_known and self._moments_complete:
            reason = "the messages depend on the rows through their moments only; the probe recovers those"
            self.skip(self._fit.name, reason)
        elif (refusal := self._fit.applies(self.replay.target, self.replay.observed)) is not None:
            self.skip(self._fit.name, refusal)
        else:
            explained = self._try(self._fit.name, lambda replay: self._derive(self._run(self._fit, replay)))
            # all that such messages depend on is known then, as after a probe
            self._moments_known |= explained and self._fit.secret == "gram"

    def add_null_of_other_rows(self) -> None:
        """Add messages of other rows as a null for the attacks that follow; the search would take too long on them.

        Nothing is added if the client step fails on those rows. Counts of labels, which shuffled rounds keep, then have
        no null at all, and are compared with the guess.
        """
        messages = messages_of_other_rows(self._secret, self.replay)
        if messages is not None:
            self._nulls.append(self._replay_of(self.replay.with_messages(messages)))

    def read(self) -> None:
        """Read rows off the messages, and counts of labels where those are linear in the messages."""
        clear = ClearRows()
        if (reason := clear.applies(self.replay.target, self.replay.observed)) is not None:
            self.skip(clear.name, reason)
        else:
            self._try(clear.name, lambda replay: self._derive(self._run(clear, replay), read=True))
        if self._secret.has_label_counts:  # the nulls after the first: shuffled rounds hold the same counts
            self._try(ProbeGram.name, self._count, self._nulls[1:], what=" of labels")

    def regress(self) -> None:
        """Learn rows, their Gram matrix and counts of labels from simulated clients.

        Where the probe explains the messages, these depend on the rows through their moments only, and the probe has
        reported estimates of both secrets: exact in the directions that the messages show, with the prior's moments in
        the others. Rows, Gram matrix and low digits are then not learned, and no gap is noted. So it is not tried
        whether open moments could be guessed better from the known ones, as they go together among the prior's rows.
        """
        rng, regression, labels = self._rng(9), RegressRows(calls=self._fit.calls), self._secret.prior_labels
        try:
            if not self._moments_known:
                rows, _, messages = regression.simulated(self.replay, rng)
                self._try_learned(LearnedRows(KernelRidge.of(messages, rows)))
                self._try_learned(LearnedGram.of(rows, messages, self.replay.features))
                self._read_low_digits(rows, messages)
        except (SecureFedError, np.linalg.LinAlgError) as refusal:
            self.skip(regression.name, str(refusal))
        try:
            if self._secret.has_label_counts and labels is not None:
                # it simulates clients of its own: see the head of this file
                learned = RegressCounts(regression).learn(self.replay, labels, rng)
                self._try_learned(learned, self._nulls[1:])  # shuffled rounds hold the same counts, so they are no null
        except (SecureFedError, np.linalg.LinAlgError) as refusal:
            self.skip(RegressCounts.name, str(refusal))

    def skip(self, attack: str, reason: str) -> None:
        """Note that an attack did not run, and why."""
        self._result.leave_out(self._place, self._secret.named(attack), reason)

    def _read_low_digits(self, rows: Array, messages: Array) -> None:
        """Learn from the simulated clients' rows and messages how last digits tell rows, and read the observed ones."""
        try:
            learned = LowDigits.learn(rows, messages)
        except TranscriptError as refusal:
            self.skip(LowDigits.name, str(refusal))
            return
        self._try(learned.name, lambda replay: self._derive(self._run(learned, replay), read=True))

    def _probe(self, replay: Replay) -> list[Reconstruction]:
        """Solve for the moments; return the Gram matrix, and rows.

        Directions of the moments that the messages leave open are taken from the prior's rows. Many sets of rows have
        the same moments: each row returned is the mean of its class (`RecoveredMoments.rows`).
        """
        moments = ProbeGram().solve(replay, self._rng(3), self._secret.prior, self._secret.prior_labels)
        if replay is self.replay:
            self._moments_complete = moments.rank == moments.unknowns
        return [moments.gram(), moments.rows(self._secret.prior)]

    def _count(self, replay: Replay) -> list[Reconstruction]:
        """Solve for the moments as an attacker who does not know the counts of labels; return these counts."""
        prior, labels = self._secret.prior, self._secret.prior_labels
        return [ProbeGram().solve(replay, self._rng(3), prior, labels, counted=False).counts()]

    def _derive(self, estimate: Reconstruction, *, read: bool = False) -> list[Reconstruction]:
        """Return an estimate and what follows from it: of rows, the Gram matrix and counts of labels.

        Counts of labels would be no finding of an attack that was given the true labels. So they are derived only where
        rows were `read` off the messages, or where the client step does not use labels.
        """
        return self._secret.derive(estimate, labels=read or not self._labels_used)

    @cached_property
    def _labels_used(self) -> bool:
        """Whether the client's messages depend on the labels of its rows."""
        return uses_labels(self.replay, self._rng(15), self._secret.prior_labels)

    def _try_learned(
        self, learned: LearnedRows | LearnedGram | LearnedCounts, nulls: Sequence[Replay] | None = None
    ) -> None:
        """Run an attack that was learned from simulated clients; `nulls` as in `_try`."""
        self._try(learned.name, lambda replay: [self._run(learned, replay)], nulls)

    def _run(
        self, attack: FitRows | FitUnknown | ClearRows | LowDigits | LearnedRows | LearnedGram | LearnedCounts,
        replay: Replay,
    ) -> Reconstruction:  # fmt: skip
        return attack.run(replay, replay.target, self._rng(3))

    def _rng(self, stream: int) -> np.random.Generator:
        """Return a generator whose draws do not depend on which other attacks ran.

        Args:
            stream: any number; 3 serves probe and fit, and 2 and 10 are taken by the nulls.
        """
        return np.random.default_rng([self._secret.seed, stream])

    def _try(self, name: str, run: Run, nulls: Sequence[Replay] | None = None, what: str = "") -> bool:
        """Run an attack and its nulls, and record its attempts.

        Args:
            name: the name of the attack.
            run: the attack.
            nulls: replays of messages that say nothing; by default all that there are.
            what: words after the name, where the attack does not run and the reason is noted.

        Returns:
            Whether it ran, and did not notice itself that it failed.
        """
        began = clock().now()
        try:
            estimates = run(self.replay)
        except (SecureFedError, np.linalg.LinAlgError) as refusal:
            self.skip(f"{name}{what}", str(refusal))
            return False
        took = clock().now() - began
        chances = [_or_none(run, _given_time(null, took)) for null in (self._nulls if nulls is None else nulls)]
        judged = self._result.record(self._place, name, estimates, chances, self._secret.judge)
        first = (chances[0] if chances else None) or []
        for estimate, null in zip_longest(estimates, first[: len(estimates)]):
            self.sources.append(Source(name, estimate, null, stated_explained(estimate)))
        if self._secret.seed == 0:
            self._result.keep_pictures(self._place, name, [item for item in judged if item.secret in _SHOWN], None)
        return stated_explained(estimates[0]) is not False


def _given_time(null: Replay, seconds: float) -> Replay:
    """Return a null that may take as long as the attack did, even where that spends more than the budget has left.

    A null that is cut short counts as the guess, which would make a search that merely took long look like a leak.
    """
    if null.budget is None or null.budget.remaining >= seconds:
        return null
    return replace(null, budget=TimeBudget.of(seconds))


def _or_none(run: Run, null: Replay) -> list[Reconstruction] | None:
    """Attack a null; `None` where the attack notices that nothing fits."""
    try:
        return run(null)
    except (SecureFedError, np.linalg.LinAlgError):
        return None


def messages_of_other_rows(secret: SecretData, replay: Replay) -> Array | None:
    """Simulate the messages of the same rounds from other rows.

    For one client these are rows of the other clients with their labels; for all clients together, rows of the prior.

    Args:
        secret: the data to recover, which must not be among the rows.
        replay: the replay of the observed rounds.

    Returns:
        (numbers,) all messages as one vector; `None` if the client step fails on those rows.
    """
    rng, labels = np.random.default_rng([secret.seed, 10]), replay.labels
    if secret.target is None:
        rows = secret.prior[rng.choice(len(secret.prior), replay.rows)]
    else:
        owners = np.repeat(np.arange(len(secret.data)), [data.rows for data in secret.data])
        places = rng.choice(np.flatnonzero(owners != secret.target), replay.rows)
        known = [data.y for data in secret.data if data.y is not None]
        rows, labels = secret.pooled[places], np.concatenate(known)[places] if labels is not None else None
    try:
        return replay(rows, int(rng.integers(2**62)), labels)
    except SecureFedError:
        return None

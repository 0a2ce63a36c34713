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
from functools import cached_property

import numpy as np

from securefed._auditing.engine.runner import REFUSALS, AttackedView, Null, Run
from securefed._auditing.engine.seed_result import stated_explained
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
    uses_labels,
)
from securefed.attacks._generic.row_regression import KernelRidge
from securefed.attacks.views import shuffled
from securefed.errors import SecureFedError, TranscriptError


class GenericAttacks:
    """All generic attacks on one view.

    Args:
        view: the replay of the view, whose nulls are first the shuffled rounds and then messages of other rows.
        secret: the data to recover, the guess of them, and the score.
        fit: the fitting attack with its limits.
        replay_of: makes the replay of a view.
    """

    def __init__(
        self,
        view: AttackedView[Replay],
        secret: SecretData,
        fit: FitRows | FitUnknown,
        replay_of: Callable[[View], Replay],
    ) -> None:
        self._view, self._secret, self._fit, self._replay_of = view, secret, fit, replay_of
        self.replay = view.seen
        mixed = replay_of(shuffled(view.seen.observed, np.random.default_rng([secret.seed, 2])))
        view.nulls.append(lambda: mixed)  # `add_null_of_other_rows` appends messages of other rows
        self._moments_known = False  # the probe ran, and its moments explain the messages
        self._moments_complete = False  # and left no direction open

    def search(self) -> None:
        """Probe for moments; fit rows where the messages depend on more, or leave moments open."""
        self._moments_known = self._try(ProbeGram.name, self._probe)
        if self._moments_known and self._moments_complete:
            reason = "the messages depend on the rows through their moments only; the probe recovers those"
            self._view.leave_out(self._fit.name, reason)
        elif (refusal := self._fit.applies(self.replay.target, self.replay.observed)) is not None:
            self._view.leave_out(self._fit.name, refusal)
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
            others = self._replay_of(self.replay.with_messages(messages))
            self._view.nulls.append(lambda: others)

    def read(self) -> None:
        """Read rows off the messages, and counts of labels where those are linear in the messages."""
        clear = ClearRows()
        if (reason := clear.applies(self.replay.target, self.replay.observed)) is not None:
            self._view.leave_out(clear.name, reason)
        else:
            self._try(clear.name, lambda replay: self._derive(self._run(clear, replay), read=True))
        if self._secret.has_label_counts:  # the nulls after the first: shuffled rounds hold the same counts
            self._try(ProbeGram.name, self._count, self._view.nulls[1:], what=" of labels")

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
        except REFUSALS as refusal:
            self._view.leave_out(regression.name, refusal)
        try:
            if self._secret.has_label_counts and labels is not None:
                # it simulates clients of its own: see the head of this file
                learned = RegressCounts(regression).learn(self.replay, labels, rng)
                self._try_learned(
                    learned, self._view.nulls[1:]
                )  # shuffled rounds hold the same counts, so they are no null
        except REFUSALS as refusal:
            self._view.leave_out(RegressCounts.name, refusal)

    def _read_low_digits(self, rows: Array, messages: Array) -> None:
        """Learn from the simulated clients' rows and messages how last digits tell rows, and read the observed ones."""
        try:
            learned = LowDigits.learn(rows, messages)
        except TranscriptError as refusal:
            self._view.leave_out(LowDigits.name, refusal)
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
        self, learned: LearnedRows | LearnedGram | LearnedCounts, nulls: Sequence[Null[Replay]] | None = None
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

    def _try(self, name: str, run: Run[Replay], nulls: Sequence[Null[Replay]] | None = None, what: str = "") -> bool:
        """Run an attack and its nulls; return whether it ran, and did not notice itself that it failed.

        Args:
            name: the name of the attack.
            run: the attack.
            nulls: messages that say nothing; by default all that there are.
            what: words after the name, where the attack does not run and the reason is noted.
        """
        estimates = self._view.attack(name, run, nulls, gap=f"{name}{what}")
        return bool(estimates) and stated_explained(estimates[0]) is not False


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

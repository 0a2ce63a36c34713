"""Tell two sets of rows that differ in one row by the raw bits, the order and the sizes of noisy messages.

Model-based attacks read values. A client that adds noise can hide rows where they do not look: in the last bits of the
noise, in any code; in values that are right and whose order alone is random; in how many numbers are zero. This test
need not know the code. The audit of an algorithm whose clients draw at random calls it, as a test of membership. It
runs the client step many times on the rows with a record and without it, learns on half of the runs what differs
between the two, and scores the other half. It compares the bits and the numbers of zeros, unless a tensor's values are
the same in all runs and only their order is drawn: then it compares the sorted values. Ordinary noise, whose size does
not depend on the rows, passes the test: the bits that are compared lie far below its size, and are random with any
rows.

Only steps that draw at random are tested. Two runs of a deterministic step always differ if the record matters at all,
which is what `ConfirmationAttack` measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from securefed._tensors import Array
from securefed.attacks._generic.client_replay import Replay
from securefed.errors import TranscriptError

_DOUBLE_BITS: Final = 32
_SINGLE_BITS: Final = 10
"""Numbers of last bits of a number's mantissa that are compared, of a double and of a float32 number: they weigh at
most 2^-20 of the double, 2^-13 of the float32 number. Noise that is smaller than this beside the values leaves the bits
to the rows, and then protects nothing."""
_ENTRIES: Final = 1000
"""Most entries of the messages whose bits are compared, evenly spaced; the cost grows with it."""
_SURE: Final = 5.0
"""Standard errors by which a bit's frequency must differ to be used. Of 32 000 bits chance reaches it once in 50 tests,
and a bit chosen by chance has no effect on the other half of the runs."""
_EQUAL: Final = 1e-9
"""Relative difference up to which sorted values of two runs are the same values in another order."""


@dataclass(frozen=True)
class RawBits:
    """Score runs of the client step with a record and without it; see the module.

    Attributes:
        runs: number of runs of each kind; half of them are learned from.
        calls: largest number of client steps.
    """

    runs: int = 120
    calls: int = 20_000
    name: ClassVar[str] = "generic/bits"
    secret: ClassVar[str] = "membership"

    def score(self, replay: Replay, pair: Array, seed: int) -> tuple[Array, Array]:
        """Return scores of runs with the record and of runs without it, higher where the record looks likelier.

        Every bit gets as its weight the difference of its frequencies between the learning runs with the record and
        those without, 0 where that may be chance. The score of another run is the weighted sum of its bits.

        Args:
            replay: runs the client step in the observed rounds, for all clients whose sum is observed.
            pair: (2, rows, features) all rows of these clients with the record, then with another one in its place.
            seed: the seed of the clients' draws; every run gets one of its own.

        Returns:
            Scores (runs / 2,) of the runs with the record that were not learned from, and of those without it.

        Raises:
            TranscriptError: the step draws nothing at random, or takes more than `calls` client steps.
            SecureFedError: the client step fails.
        """
        if replay.deterministic:
            raise TranscriptError("the client step draws nothing at random: two runs differ wherever a record matters")
        steps = 2 * self.runs * len(replay.observed.rounds) * len(replay.members)
        if steps > self.calls:
            raise TranscriptError(f"{2 * self.runs} runs take {steps} client steps, more than {self.calls}")
        sent = [
            np.stack([replay(rows, seed + 2 * k + side) for k in range(self.runs)]) for side, rows in enumerate(pair)
        ]
        half = self.runs // 2
        ordered = _reordered(sent, list(replay.blocks()), half)
        if ordered is not None:
            return ordered
        features = [_features(messages, list(replay.blocks())) for messages in sent]
        first, second = (part[:half].mean(axis=0) for part in features)
        # Standard error of the difference of two frequencies; .5 / half keeps it above 0 where all bits are equal.
        deviation = np.sqrt((first * (1 - first) + second * (1 - second) + 0.5 / half) / half)
        gap = first - second
        weights = np.where(np.abs(gap) > _SURE * deviation, gap, 0.0)
        return features[0][half:] @ weights, features[1][half:] @ weights


def _features(messages: Array, blocks: list[slice]) -> Array:
    """Return (runs, features) of 0 and 1: last bits of entries, and whether a tensor has more zeros than usual."""
    chosen = np.unique(np.linspace(0, messages.shape[1] - 1, min(_ENTRIES, messages.shape[1])).astype(int))
    values = np.ascontiguousarray(messages[:, chosen], np.float64)
    single = np.array_equal(values, values.astype(np.float32))
    # A number's IEEE bits as an integer; bit p of it, counted from the last one, is (word >> p) & 1.
    words = values.astype(np.float32).view(np.uint32).astype(np.uint64) if single else values.view(np.uint64)
    places = np.arange(_SINGLE_BITS if single else _DOUBLE_BITS).astype(np.uint64)
    bits = np.right_shift(words[:, :, None], places) & np.uint64(1)
    zeros = [np.count_nonzero(messages[:, block] == 0, axis=1) for block in blocks]
    many = np.stack([count > np.median(count) for count in zeros], axis=1)
    return np.hstack([bits.reshape(len(messages), -1), many]).astype(np.float64)


def _reordered(sent: list[Array], blocks: list[slice], half: int) -> tuple[Array, Array] | None:
    """Score runs by their sorted values, where these are the same in all runs of a kind and only the order is drawn.

    Args:
        sent: messages (runs, numbers) with the record, and without it.
        blocks: positions of each tensor of each round.
        half: number of runs of each kind that are learned from; here the first run shows the sorted values.

    Returns:
        The scores of the other runs of both kinds; `None` if no tensor has such values. Each tensor that has adds 1
        where its sorted values are nearer to those with the record, and -1 where they are nearer to those without.
    """
    scores: list[list[Array]] = [[], []]
    for block in blocks:
        parts = [np.sort(messages[:, block], axis=1) for messages in sent]
        negligible = _EQUAL * max(float(np.abs(part).max(initial=0.0)) for part in parts)
        typical = [part[0] for part in parts]
        steady = all(np.ptp(part, axis=0).max(initial=0.0) <= negligible for part in parts)
        drawn = any(np.ptp(messages[:, block], axis=0).max(initial=0.0) > negligible for messages in sent)
        if not steady or not drawn or np.abs(typical[0] - typical[1]).max(initial=0.0) <= negligible:
            continue
        for side, part in enumerate(parts):
            near, far = (np.linalg.norm(part[half:] - own, axis=1) for own in typical)
            scores[side].append(np.sign(far - near))  # near, far: distances from the runs with the record, without it
    return (np.sum(scores[0], axis=0), np.sum(scores[1], axis=0)) if scores[0] else None

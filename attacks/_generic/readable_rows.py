"""Read rows that a message contains as they are, or as a ratio of two tensors; nothing is fitted.

Every tensor as wide as the data is a candidate for the rows, and so is its quotient by any tensor with one entry a row.
For instance, a linear layer's gradient of the weight divided by that of the bias is a row. The attack runs the client's
code on each candidate, and returns the candidate whose messages are nearest to the observed ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._tensors import Array, Tensors
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._generic.client_replay import Replay
from securefed.errors import TranscriptError

_TINY = 1e-12
"""Relative size up to which a residual counts as zero, and a divisor as too small to divide by."""


@dataclass(frozen=True)
class ClearRows:
    """Read rows from tensors as wide as the data, as they are or divided by a tensor with one entry a row.

    The ratio is what the first linear layer of a model with a bias gives away (Phong et al. 2018). Of all candidates
    the attack returns the one whose replay has the smallest residual; if none can be replayed, the one whose number of
    rows is closest. Missing rows are set to the mean of the prior, rows like the clients' that the attacker may have.

    A candidate with more rows than the members have cannot be replayed. It is returned whole, since nothing in the
    message says which of its rows are theirs. The score assigns a different row of it to each true row
    (`scores.match`). The score on meaningless messages (the null) does the same, so that it measures what such a choice
    gives by chance. An audit that computes Gram matrices or counts of labels from these rows scales them to the
    members' number of rows.
    """

    name: ClassVar[str] = "generic/clear"
    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None` if it can."""
        if not observed.rounds:
            return "The view holds no round."
        if next(candidates(observed.rounds[0].message, target.public.features), None) is None:
            return f"No tensor of the messages is {target.public.features} wide."
        return None

    def run(self, observed: View | Replay, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Recover the rows behind the observed messages.

        Raises:
            TranscriptError: no tensor of the messages is as wide as the data, or they cannot be replayed.
        """
        replay = Replay.of(observed, target)
        attempts: list[tuple[float, int, Array]] = []
        for observation in replay.observed.rounds:
            for rows in candidates(observation.message, replay.features):
                residual = replay.residual(rows) if len(rows) == replay.rows else float("inf")
                attempts.append((residual, abs(len(rows) - replay.rows), rows))
        if not attempts:
            raise TranscriptError("no tensor of the messages is as wide as the data")
        residual, _, rows = min(attempts, key=lambda item: item[:2])
        if replay.prior is not None and len(rows) < replay.rows:
            guess = np.broadcast_to(replay.prior.mean(axis=0), (replay.rows - len(rows), replay.features))
            rows = np.concatenate([rows, guess])
        if not residual <= max(_TINY, replay.units.rounding):  # no exact rows: keep the guess within the declared range
            limit = replay.target.public.feature_bound
            rows = np.clip(rows, -limit, limit)
        return Reconstruction(
            self.secret,
            rows,
            residual=residual if np.isfinite(residual) else float("nan"),
            unknowns=replay.rows * replay.features,
            members=frozenset(replay.members),
            diagnostics={"candidates": len(attempts)},
        )


def candidates(message: Tensors, features: int) -> Iterator[Array]:
    """Yield the finite (k, features) matrices of a message that may be rows."""
    tensors = {name: np.asarray(message[name], np.float64) for name in sorted(message)}
    for name, value in tensors.items():
        for rows in _shaped(value, features):
            if np.isfinite(rows).all():
                yield rows
            for other, bias in tensors.items():
                if other != name and bias.shape == (len(rows),):
                    safe = np.abs(bias) > _TINY * np.abs(bias).max(initial=0.0)
                    ratio = rows[safe] / bias[safe, None]
                    if len(ratio) and np.isfinite(ratio).all():
                        yield ratio


def _shaped(value: Array, features: int) -> Iterator[Array]:
    """Yield the ways to read a tensor as a (k, features) matrix."""
    if value.ndim == 2 and value.shape[1] == features:
        yield value
    elif value.ndim == 2 and value.shape[0] == features:
        yield value.T
    elif value.ndim == 1 and value.size % features == 0 and value.size:
        yield value.reshape(-1, features)
        yield value.reshape(features, -1).T  # feature by feature
    elif value.ndim > 2 and np.prod(value.shape[1:]) == features:
        yield value.reshape(len(value), features)  # pictures

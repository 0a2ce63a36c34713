"""Is the message a sum over rows of one quadratic function? If so, probe the map and invert it, without its code.

Such a client step is linear in the moments M = [1 X]^T [1 X]: the number of rows (public), their sum, and the Gram
matrix S = X^T X. Its messages are L vec(M), with a matrix L that depends on broadcasts only. The attacker builds L
column by column from probes with one row that is not zero, and solves L m = y over symmetric matrices that are
positive semidefinite of at most as many ranks as there are rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.algorithms.base import require
from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.generic.replay import Replay
from securefed.attacks.gram.linear import nearest_psd
from securefed.errors import SecureFedError, TranscriptError
from securefed.tensors import Array

_LINEAR = 1e-7
_TAU = 1e-12
_ROUNDED, _NOISE = 100.0, 10.0
_MOST = 2200
_SETTLED = 1e-14


@dataclass(frozen=True)
class ProbeGram:
    """Probe, then least squares, then alternating projections onto what was seen and onto M >= 0.

    Attributes:
        sweeps: projections at most; none are needed where the rounds determine M.

    Guarantee: S exact up to round-off where L has full column rank. Not promised: steps that subtract their own rows'
    mean, or divide by anything but the public number of rows; they are no such sums, and the attack says so.
    """

    sweeps: int = 300
    name: ClassVar[str] = "generic/probe"
    secret: ClassVar[str] = "gram"

    def __post_init__(self) -> None:
        require(self.sweeps >= 0, f"sweeps cannot be negative, not {self.sweeps}")

    def applies(self, target: Target, observed: Observed) -> str | None:
        if not observed.rounds:
            return "The view holds no round."
        unknowns = (target.public.features + 1) * (target.public.features + 2) // 2
        if unknowns > _MOST:
            return f"{unknowns} unknowns are more than the {_MOST} that are probed; project the columns."
        return None

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        return self.attack(Replay(observed, target), rng)

    def attack(self, replay: Replay, rng: np.random.Generator, prior: Array | None = None) -> Reconstruction:
        """As `run`, on a replay.

        Args:
            prior: rows like the members' that the attacker has; what the rounds leave open is taken from them.

        Raises:
            TranscriptError: the messages are not linear in M.
        """
        if replay.labels is not None:
            raise TranscriptError("the client step may use labels, so its messages are no function of the rows alone")
        if not replay.deterministic:
            raise TranscriptError("the client step draws at random, so its messages are no function of the rows alone")
        off = departure(replay, rng)
        tolerance = max(_LINEAR, _ROUNDED * replay.units.rounding)
        if not off <= tolerance:
            raise TranscriptError(f"the messages are not linear in the rows' moments: off by {off:.1e} of their size")
        probes = Probes.of(replay)
        constant, matrix = probes.constant, probes.matrix
        sent = probes.seen - constant
        U, s, Vt = np.linalg.svd(matrix, full_matrices=False)
        kept = s > max(_TAU, _NOISE * replay.units.rounding) * s[0]
        U, s, Vt = U[:, kept], s[kept], Vt[kept]
        guess = probes.moments(prior, replay) if prior is not None else np.zeros(matrix.shape[1])
        found = guess + Vt.T @ ((U.T @ (sent - matrix @ guess)) / s)
        beside = float(np.linalg.norm(sent - U @ (U.T @ sent)))  # what no M at all would have sent
        moments = self._complete(found, Vt, replay.rows, probes.size)
        bound = replay.target.public.feature_bound
        gram = moments[-replay.features :, -replay.features :] * bound**2
        return Reconstruction(
            self.secret,
            gram,
            residual=float(np.linalg.norm(matrix @ pack(moments) - sent)),
            rank=len(s),
            unknowns=matrix.shape[1],
            condition=float(s[0] / s[-1]),
            diagnostics={
                "departure from linearity": off,
                "depends on sums of rows": probes.size > replay.features,
                "explained": beside <= tolerance * float(np.linalg.norm(sent)),
            },
            members=frozenset(replay.members),
        )

    def _complete(self, found: Array, seen: Array, rank: int, size: int) -> Array:
        """A positive semidefinite matrix of at most `rank` that agrees with what was seen."""
        current, known = found, seen @ found
        scale = float(np.linalg.norm(found)) or 1.0
        for _ in range(self.sweeps if len(seen) < seen.shape[1] else 0):
            cone = pack(nearest_psd(unpack(current, size), rank))
            moved = cone + seen.T @ (known - seen @ cone)
            done = float(np.linalg.norm(moved - current)) <= _SETTLED * scale
            current = moved
            if done:
                break
        return nearest_psd(unpack(current, size), rank)


def departure(replay: Replay, rng: np.random.Generator) -> float:
    """How far the messages are from a sum over rows of one quadratic function, relative to what they vary by."""
    n, p = replay.rows, replay.features

    def sent(rows: Array) -> Array:
        return replay(rows) / replay.units.unit

    def off(rows: Array) -> float:
        here, mirrored = sent(rows), sent(-rows)
        even, odd = (here + mirrored) / 2 - zero, (here - mirrored) / 2
        worst = [np.linalg.norm(sent(rows / 2) - zero - even / 4 - odd / 2)]  # degree 2 on every line
        worst.append(np.linalg.norm(sent(np.roll(rows, 1, axis=0)) - here))  # the same function for every row
        if n > 1:
            first, second = rows.copy(), rows.copy()
            first[n // 2 :], second[: n // 2] = 0, 0
            worst.append(np.linalg.norm(sent(first) + sent(second) - zero - here))  # a sum over rows
        size = float(np.linalg.norm(here - zero))
        return float(max(worst)) / size if size > 0 else float("inf")

    try:
        zero = sent(np.zeros((n, p)))
        found = max(off(replay.sample(rng)), off(replay.likely(rng)))  # a step may behave on real rows alone
    except (SecureFedError, ArithmeticError, ValueError):
        return float("inf")
    return found if np.isfinite(found) else float("inf")


@dataclass(frozen=True)
class Probes:
    """The linear system L m = y - constant, features in units of the public bound, messages in the replay's units.

    Attributes:
        matrix: L, (equations, size (size + 1) / 2), for moments packed by `pack`.
        constant, seen: of the messages; where sums of rows matter, a last equation states the number of rows.
        size: width of the moments that matter: features, or features + 1 with the constant first.
    """

    matrix: Array
    constant: Array
    seen: Array
    size: int

    @classmethod
    def of(cls, replay: Replay) -> Probes:
        p, bound = replay.features, replay.target.public.feature_bound
        scale = replay.units.unit
        constant = replay(np.zeros((replay.rows, p))) / scale

        def parts(row: Array) -> tuple[Array, Array]:
            """Even and odd part of what one row adds."""
            rows = np.zeros((replay.rows, p))
            rows[0] = row * bound
            ahead, behind = replay(rows) / scale - constant, replay(-rows) / scale - constant
            return (ahead + behind) / 2, (ahead - behind) / 2

        unit = np.eye(p)
        evens, odds = map(list, zip(*(parts(unit[i]) for i in range(p)), strict=True))
        linear = max(map(np.linalg.norm, odds)) > _LINEAR * max(map(np.linalg.norm, evens))
        columns = []
        if linear:
            columns = [np.zeros_like(constant), *(odd / np.sqrt(2) for odd in odds)]
        for i in range(p):
            for j in range(i, p):
                both = evens[i] if i == j else 4 * parts((unit[i] + unit[j]) / 2)[0] - evens[i] - evens[j]
                columns.append(both / (1.0 if i == j else np.sqrt(2)))
        matrix, seen = np.stack(columns, axis=1), replay.seen / scale
        if linear:  # the count is public
            weight = float(np.abs(matrix).max())
            last = np.zeros((1, matrix.shape[1]))
            last[0, 0] = weight
            matrix = np.vstack([matrix, last])
            constant, seen = np.append(constant, 0.0), np.append(seen, weight * replay.rows)
        return cls(matrix, constant, seen, p + linear)

    def moments(self, rows: Array, replay: Replay) -> Array:
        """Packed moments of as many rows as are sought, if they were like `rows`."""
        x = np.asarray(rows, np.float64) / replay.target.public.feature_bound
        wide = np.column_stack([np.ones(len(x)), x]) if self.size > replay.features else x
        return pack(wide.T @ wide * (replay.rows / len(x)))


def pack(matrix: Array) -> Array:
    """The upper triangle of a symmetric matrix, off-diagonal entries times sqrt(2): Frobenius norms are kept."""
    i, j = np.triu_indices(len(matrix))
    return np.asarray(matrix[i, j] * np.where(i == j, 1.0, np.sqrt(2)))


def unpack(vector: Array, size: int) -> Array:
    """Inverse of `pack`."""
    i, j = np.triu_indices(size)
    out = np.zeros((size, size))
    out[i, j] = out[j, i] = vector / np.where(i == j, 1.0, np.sqrt(2))
    return out

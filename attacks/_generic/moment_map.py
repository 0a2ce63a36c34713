"""Find the map from moments of rows to messages, by probing the client step.

A step that adds up one quadratic function of each row, which may depend on the row's class, is linear in the moments
M_c = [1 X_c]^T [1 X_c] of each class c: the number of rows, their sum and their Gram matrix. Responses that are no
classes count as one more column of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.attacks._generic.client_replay import Replay
from securefed.errors import SecureFedError

LINEAR = 1e-7
"""Relative departure up to which messages count as linear in the moments."""
_NOTHING = 1e-12
"""Relative size below which a difference counts as round-off."""


@dataclass(frozen=True)
class ScaledClientStep:
    """Client step on all members' rows, with columns in units of their bounds and messages in the replay's units.

    Attributes:
        replay: the observed rounds.
        classes: the labels that rows can have, ascending, where messages depend on them; else empty.
        response: the largest response where messages depend on responses; else 0.
    """

    replay: Replay
    classes: tuple[int, ...] = ()
    response: float = 0.0

    @classmethod
    def of(cls, replay: Replay, rng: np.random.Generator, classes: Array | None = None) -> ScaledClientStep:
        """Detect whether messages depend on labels.

        Args:
            replay: the observed rounds.
            rng: of the rows that are tried.
            classes: labels that rows can have; the members' own by default.

        Raises:
            SecureFedError: the client step fails on rows like the prior's.
        """
        if replay.labels is None:
            return cls(replay)
        own = np.asarray(replay.labels)
        known = np.unique(own if classes is None else classes)
        if not _uses_labels(replay, rng, known):
            return cls(replay)
        if not np.issubdtype(own.dtype, np.integer):
            return cls(replay, response=float(np.abs(own).max()) or 1.0)
        return cls(replay, tuple(int(label) for label in known))

    @property
    def width(self) -> int:
        """Columns of a row, with the response if there is one."""
        return self.replay.features + bool(self.response)

    @property
    def kinds(self) -> int:
        """Number of classes with different messages; 1 if labels do not matter."""
        return max(len(self.classes), 1)

    @property
    def known(self) -> Array:
        """Index of each row's class in `classes`, (rows,); zeros if labels do not matter."""
        if not self.classes:
            return np.zeros(self.replay.rows, np.int64)
        return np.searchsorted(self.classes, np.asarray(self.replay.labels))

    def responses(self) -> Array:
        """Return the members' responses in units of the largest, (rows,)."""
        return np.asarray(self.replay.labels, np.float64) / self.response

    def __call__(self, rows: Array, kinds: Array) -> Array:
        """Compute what members with `rows` (rows, width) of the classes `kinds` (rows,) would have sent: (equations,).

        Raises:
            SecureFedError: the client step fails on such rows.
        """
        features, labels = self.replay.features, None
        if self.response:
            labels = rows[:, features] * self.response
        elif self.classes:
            labels = np.asarray(self.classes)[kinds].astype(np.asarray(self.replay.labels).dtype)
        x = rows[:, :features] * self.replay.target.public.feature_bound
        return np.asarray(self.replay(x, None, labels) / self.replay.units.unit)

    def departure(self, rng: np.random.Generator) -> float:
        """Return how far messages are from such a sum, relative to how much they vary; infinite if the step fails."""
        try:
            found = max(
                self._departure_on(rows, rng) for rows in (self._wide(self.replay.sample(rng), rng), self._likely(rng))
            )
        except (SecureFedError, ArithmeticError, ValueError):
            return float("inf")
        return found if np.isfinite(found) else float("inf")

    def _likely(self, rng: np.random.Generator) -> Array:
        """Return rows like real ones, since a step may treat those differently."""
        return self._wide(self.replay.likely(rng), rng)

    def _wide(self, rows: Array, rng: np.random.Generator) -> Array:
        x = rows / self.replay.target.public.feature_bound
        return np.column_stack([x, rng.uniform(-1, 1, len(x))]) if self.response else x

    def _departure_on(self, rows: Array, rng: np.random.Generator) -> float:
        n = len(rows)
        kinds = rng.integers(self.kinds, size=n)
        none = np.zeros_like(rows)
        zero, here, mirrored = self(none, kinds), self(rows, kinds), self(-rows, kinds)
        even, odd = (here + mirrored) / 2 - zero, (here - mirrored) / 2
        worst = [np.linalg.norm(self(rows / 2, kinds) - zero - even / 4 - odd / 2)]  # degree 2 on every line
        worst.append(  # the same function for every row
            np.linalg.norm(self(np.roll(rows, 1, axis=0), np.roll(kinds, 1)) - here)
        )
        if n > 1:
            first, second = rows.copy(), rows.copy()
            first[n // 2 :], second[: n // 2] = 0, 0
            worst.append(np.linalg.norm(self(first, kinds) + self(second, kinds) - zero - here))  # a sum over rows
        size = float(np.linalg.norm(here - zero))
        if not self.classes:
            return float(max(worst)) / size if size > 0 else float("inf")
        apart, alone = self._departure_by_class(rows, kinds, rng, here - zero)
        if size <= _NOTHING * float(np.linalg.norm(zero)):  # only labels enter the message
            return apart
        worst += [np.float64(alone)]
        return max(apart, float(max(worst)) / size)

    def _departure_by_class(
        self, rows: Array, kinds: Array, rng: np.random.Generator, added: Array
    ) -> tuple[float, float]:
        """Return two departures: of zero rows from a sum over their classes, and of rows from a sum over their own.

        The first is relative, the second in the units of the messages.
        """
        n, none = len(rows), np.zeros_like(rows)
        each = [self(none, np.full(n, kind)) / n for kind in range(self.kinds)]
        sent = self(none, kinds)
        spread = max(float(np.linalg.norm(one - each[0])) for one in each) * n
        off = float(np.linalg.norm(sent - np.sum([each[kind] for kind in kinds], axis=0)))
        level = _NOTHING * float(np.linalg.norm(sent))
        apart = off / spread if spread > level else (0.0 if off <= level else np.inf)
        if n == 1:
            return apart, 0.0
        first, second, others = rows.copy(), rows.copy(), rng.integers(self.kinds, size=n)
        first[n // 2 :], second[: n // 2] = 0, 0
        front, back = kinds.copy(), kinds.copy()
        front[n // 2 :], back[: n // 2] = others[n // 2 :], others[: n // 2]
        parts = [self(part, kind) - self(none, kind) for part, kind in ((first, front), (second, back))]
        return apart, float(np.linalg.norm(parts[0] + parts[1] - added))


def _uses_labels(replay: Replay, rng: np.random.Generator, known: Array) -> bool:
    """Return whether other labels of the same rows change a message."""
    rows, own = replay.likely(rng), np.asarray(replay.labels)
    tried = [np.roll(own, 1), rng.permutation(own)]
    if np.issubdtype(own.dtype, np.integer):
        tried += [np.full_like(own, label) for label in known]
    else:
        tried.append(own[::-1] / 2)
    here = replay(rows)
    return any(not np.array_equal(here, replay(rows, None, labels)) for labels in tried)


def uses_labels(replay: Replay, rng: np.random.Generator, classes: Array | None = None) -> bool:
    """Return whether messages depend on labels, as far as other labels of the rows show; true if the step fails."""
    if replay.labels is None:
        return False
    try:
        return _uses_labels(replay, rng, np.unique(replay.labels if classes is None else classes))
    except SecureFedError:
        return True


@dataclass(frozen=True)
class MomentSystem:
    """Linear system L m = y - constant of packed moments m, in the units of `ScaledClientStep`.

    Attributes:
        matrix: L, (equations, kinds * size (size + 1) / 2), for the packed moments of one class after the other.
        constant: messages of zero rows, (equations,). If counts matter, the last equations state the public ones.
        messages: observed messages y, (equations,), with the same additions.
        size: width of the moments that matter: `ScaledClientStep.width`, or one more with the constant first.
        kinds: number of classes with different messages.
    """

    matrix: Array
    constant: Array
    messages: Array
    size: int
    kinds: int

    @classmethod
    def of(cls, step: ScaledClientStep, *, counted: bool = True) -> MomentSystem:
        """Probe the step with one row that is not zero at a time.

        Args:
            step: the client step.
            counted: whether the number of rows of each class is known, not their sum alone.
        """
        replay, p = step.replay, step.width
        none = np.zeros((replay.rows, p))
        constant = step(none, np.zeros(replay.rows, np.int64))
        blocks, linear = [], bool(step.response)
        for kind in range(step.kinds):
            evens, odds, both, level = _responses(step, none, kind)
            size = max(map(np.linalg.norm, evens))
            linear = linear or max(map(np.linalg.norm, odds)) > LINEAR * size
            linear = linear or float(np.linalg.norm(level - constant)) > _NOTHING * float(np.linalg.norm(constant))
            blocks.append((odds, both, (level - constant) / replay.rows))
        columns: list[Array] = []
        for odds, both, level in blocks:
            columns += [level, *(odd / np.sqrt(2) for odd in odds)] if linear else []
            columns += both
        matrix, messages = np.stack(columns, axis=1), replay.messages / replay.units.unit
        if linear:
            public, values = _public_equations(step, p + 1, counted)
            weight = float(np.abs(matrix).max()) or 1.0
            matrix = np.vstack([matrix, weight * public])
            constant, messages = np.append(constant, np.zeros(len(values))), np.append(messages, weight * values)
        return cls(matrix, constant, messages, p + linear, step.kinds)

    def unpacked(self, moments: Array) -> list[Array]:
        """Return the moments of each class as (size, size) matrices."""
        return [unpack(part, self.size) for part in np.split(moments, self.kinds)]

    def packed(self, moments: list[Array]) -> Array:
        """Pack moments of each class; the inverse of `unpacked`."""
        return np.concatenate([pack(part) for part in moments])

    def moments(self, rows: Array, labels: Array | None, step: ScaledClientStep, *, counted: bool = True) -> Array:
        """Return packed moments of as many rows as are sought, if they were like `rows` with classes like `labels`."""
        x = np.asarray(rows, np.float64) / step.replay.target.public.feature_bound
        if step.response:
            x = np.column_stack([x, np.resize(step.responses(), len(x)) if labels is None else labels / step.response])
        wide = np.column_stack([np.ones(len(x)), x]) if self.size > step.width else x
        out = []
        for kind in range(self.kinds):
            mine, share = wide, 1 / self.kinds
            if step.classes and labels is not None:
                of_kind = np.asarray(labels) == step.classes[kind]
                mine, share = wide[of_kind] if of_kind.any() else wide, float(np.mean(of_kind))
            count = float(np.sum(step.known == kind)) if counted else step.replay.rows * share
            out.append(mine.T @ mine * (count / len(mine)))
        return self.packed(out)


def _responses(step: ScaledClientStep, none: Array, kind: int) -> tuple[list[Array], list[Array], list[Array], Array]:
    """Return, for one class, even and odd parts of unit rows' messages, columns of products, and zero rows' message."""
    kinds, p = np.full(len(none), kind), none.shape[1]
    level = step(none, kinds)

    def parts(row: Array) -> tuple[Array, Array]:
        rows = none.copy()
        rows[0] = row
        ahead, behind = step(rows, kinds) - level, step(-rows, kinds) - level
        return (ahead + behind) / 2, (ahead - behind) / 2

    unit = np.eye(p)
    evens, odds = map(list, zip(*(parts(unit[i]) for i in range(p)), strict=True))
    both = []
    for i in range(p):
        for j in range(i, p):
            product = evens[i] if i == j else 4 * parts((unit[i] + unit[j]) / 2)[0] - evens[i] - evens[j]
            both.append(product / (1.0 if i == j else np.sqrt(2)))
    return evens, odds, both, level


def _public_equations(step: ScaledClientStep, size: int, counted: bool) -> tuple[Array, Array]:
    """Return equations of public facts: the number of rows (by class if `counted`), and the responses' moments."""
    length = size * (size + 1) // 2
    each = np.kron(np.eye(step.kinds), np.eye(1, length))  # picks each class's number of rows
    if step.classes and not counted:
        return each.sum(axis=0, keepdims=True), np.array([float(step.replay.rows)])
    counts = np.bincount(step.known, minlength=step.kinds).astype(np.float64)
    if not step.response:
        return each, counts
    y = step.responses()
    unit = np.zeros((2, size, size))
    unit[0, 0, -1] = unit[0, -1, 0] = 0.5
    unit[1, -1, -1] = 1.0
    return np.vstack([each, *(pack(u)[None] for u in unit)]), np.concatenate([counts, [y.sum(), y @ y]])


def pack(matrix: Array) -> Array:
    """Pack the upper triangle of a symmetric matrix, off-diagonal entries times sqrt(2) to keep Frobenius norms."""
    i, j = np.triu_indices(len(matrix))
    return np.asarray(matrix[i, j] * np.where(i == j, 1.0, np.sqrt(2)))


def unpack(vector: Array, size: int) -> Array:
    """Unpack a symmetric matrix; the inverse of `pack`."""
    i, j = np.triu_indices(size)
    out = np.zeros((size, size))
    out[i, j] = out[j, i] = vector / np.where(i == j, 1.0, np.sqrt(2))
    return out

"""The map from moments of rows to messages, found by probing the client step; with labels, moments class by class.

A step that adds up one quadratic function of a row, which may depend on the row's class, is linear in the moments
M_c = [1 X_c]^T [1 X_c] of each class c: the number of rows, their sum and their Gram matrix. Responses, which are no
classes, are taken for one more column of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed.attacks.generic.replay import Replay
from securefed.errors import SecureFedError
from securefed.tensors import Array

LINEAR = 1e-7
_NOTHING = 1e-12


@dataclass(frozen=True)
class Step:
    """The client step on all members' rows, columns in units of their bounds, messages in the replay's units.

    Attributes:
        replay: the observed rounds.
        classes: the labels that rows can have, ascending, where messages depend on them; else empty.
        response: the largest response where messages depend on responses; else 0.
    """

    replay: Replay
    classes: tuple[int, ...] = ()
    response: float = 0.0

    @classmethod
    def of(cls, replay: Replay, rng: np.random.Generator, classes: Array | None = None) -> Step:
        """Find out whether messages depend on labels.

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
        """How many classes are told apart, 1 where none are."""
        return max(len(self.classes), 1)

    @property
    def known(self) -> Array:
        """(rows,) the place of each row's own class in `classes`; zeros where none are told apart."""
        if not self.classes:
            return np.zeros(self.replay.rows, np.int64)
        return np.searchsorted(self.classes, np.asarray(self.replay.labels))

    def responses(self) -> Array:
        """(rows,) the members' responses in units of the largest."""
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
        """How far the messages are from such a sum, relative to what they vary by; infinite where the step fails."""
        try:
            found = max(self._off(rows, rng) for rows in (self._wide(self.replay.sample(rng), rng), self._likely(rng)))
        except (SecureFedError, ArithmeticError, ValueError):
            return float("inf")
        return found if np.isfinite(found) else float("inf")

    def _likely(self, rng: np.random.Generator) -> Array:
        """A step may behave on real rows alone."""
        return self._wide(self.replay.likely(rng), rng)

    def _wide(self, rows: Array, rng: np.random.Generator) -> Array:
        x = rows / self.replay.target.public.feature_bound
        return np.column_stack([x, rng.uniform(-1, 1, len(x))]) if self.response else x

    def _off(self, rows: Array, rng: np.random.Generator) -> float:
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
        apart, alone = self._off_classes(rows, kinds, rng, here - zero)
        if size <= _NOTHING * float(np.linalg.norm(zero)):  # labels alone are told
            return apart
        worst += [np.float64(alone)]
        return max(apart, float(max(worst)) / size)

    def _off_classes(self, rows: Array, kinds: Array, rng: np.random.Generator, added: Array) -> tuple[float, float]:
        """How far zero rows are from adding what their classes say, relatively, and rows from a part that their own
        class alone decides."""
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
    """Whether other labels of the same rows change a message."""
    rows, own = replay.likely(rng), np.asarray(replay.labels)
    tried = [np.roll(own, 1), rng.permutation(own)]
    if np.issubdtype(own.dtype, np.integer):
        tried += [np.full_like(own, label) for label in known]
    else:
        tried.append(own[::-1] / 2)
    here = replay(rows)
    return any(not np.array_equal(here, replay(rows, None, labels)) for labels in tried)


def uses_labels(replay: Replay, rng: np.random.Generator, classes: Array | None = None) -> bool:
    """Whether messages depend on labels, as far as other labels of the same rows show; true where the step fails."""
    if replay.labels is None:
        return False
    try:
        return _uses_labels(replay, rng, np.unique(replay.labels if classes is None else classes))
    except SecureFedError:
        return True


@dataclass(frozen=True)
class Probes:
    """The linear system L m = y - constant, columns and messages in the units of `Step`.

    Attributes:
        matrix: L, (equations, kinds * size (size + 1) / 2), for the packed moments of one class after the other.
        constant, seen: of the messages; where counts matter, last equations state those that are public.
        size: width of the moments that matter: `Step.width`, or one more with the constant first.
        kinds: number of classes that are told apart.
    """

    matrix: Array
    constant: Array
    seen: Array
    size: int
    kinds: int

    @classmethod
    def of(cls, step: Step, *, counted: bool = True) -> Probes:
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
            evens, odds, both, level = _parts(step, none, kind)
            size = max(map(np.linalg.norm, evens))
            linear = linear or max(map(np.linalg.norm, odds)) > LINEAR * size
            linear = linear or float(np.linalg.norm(level - constant)) > _NOTHING * float(np.linalg.norm(constant))
            blocks.append((odds, both, (level - constant) / replay.rows))
        columns: list[Array] = []
        for odds, both, level in blocks:
            columns += [level, *(odd / np.sqrt(2) for odd in odds)] if linear else []
            columns += both
        matrix, seen = np.stack(columns, axis=1), replay.seen / replay.units.unit
        if linear:
            stated, told = _stated(step, p + 1, counted)
            weight = float(np.abs(matrix).max()) or 1.0
            matrix = np.vstack([matrix, weight * stated])
            constant, seen = np.append(constant, np.zeros(len(told))), np.append(seen, weight * told)
        return cls(matrix, constant, seen, p + linear, step.kinds)

    def unpacked(self, moments: Array) -> list[Array]:
        """(size, size) of each class."""
        return [unpack(part, self.size) for part in np.split(moments, self.kinds)]

    def packed(self, moments: list[Array]) -> Array:
        """Inverse of `unpacked`."""
        return np.concatenate([pack(part) for part in moments])

    def moments(self, rows: Array, labels: Array | None, step: Step, *, counted: bool = True) -> Array:
        """Packed moments of as many rows as are sought, if they were like `rows`, and of classes like `labels`."""
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


def _parts(step: Step, none: Array, kind: int) -> tuple[list[Array], list[Array], list[Array], Array]:
    """Even and odd part of what each unit row adds, the columns of products, and what zero rows send; of one class."""
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


def _stated(step: Step, size: int, counted: bool) -> tuple[Array, Array]:
    """Equations of what is public: the number of rows (of each class where `counted`), and the responses' moments."""
    length = size * (size + 1) // 2
    each = np.kron(np.eye(step.kinds), np.eye(1, length))  # picks each class's number of rows
    if step.classes and not counted:
        return each.sum(axis=0, keepdims=True), np.array([float(step.replay.rows)])
    told = np.bincount(step.known, minlength=step.kinds).astype(np.float64)
    if not step.response:
        return each, told
    y = step.responses()
    unit = np.zeros((2, size, size))
    unit[0, 0, -1] = unit[0, -1, 0] = 0.5
    unit[1, -1, -1] = 1.0
    return np.vstack([each, *(pack(u)[None] for u in unit)]), np.concatenate([told, [y.sum(), y @ y]])


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

"""Find the linear map from moments of rows to messages, by probing the client step with chosen rows.

A client step whose message is the sum over rows of one quadratic function of each row, which may depend on the row's
class, is linear in the moments M_c = [1 X_c]^T [1 X_c] of the rows X_c of each class c: their number, sum and Gram
matrix. This module tests whether a step is such a sum, and computes the map's matrix column by column, from the
messages of clients of which one row is not zero. Labels that are real numbers (responses) count as one more column of
the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.attacks._generic.client_replay import Replay
from securefed.errors import SecureFedError

LINEAR = 1e-7
"""Relative departure from linearity up to which messages count as linear in the moments: a margin above round-off."""
_ZERO = 1e-12
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
            rng: generator of the rows that are tried.
            classes: labels that rows can have; the members' own by default.

        Raises:
            SecureFedError: the client step fails on rows like the prior's.
        """
        if replay.labels is None:
            return cls(replay)
        labels = np.asarray(replay.labels)
        possible = np.unique(labels if classes is None else classes)
        if not _uses_labels(replay, rng, possible):
            return cls(replay)
        if not np.issubdtype(labels.dtype, np.integer):
            return cls(replay, response=float(np.abs(labels).max()) or 1.0)
        return cls(replay, tuple(int(label) for label in possible))

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
        """Return how far messages are from a sum of one quadratic function of each row; infinite if the step fails.

        The distance is relative to how much messages vary with the rows.
        """
        try:
            worst = max(
                self._departure_on(rows, rng) for rows in (self._wide(self.replay.sample(rng), rng), self._likely(rng))
            )
        except (SecureFedError, ArithmeticError, ValueError):
            return float("inf")
        return worst if np.isfinite(worst) else float("inf")

    def _likely(self, rng: np.random.Generator) -> Array:
        """Return rows like the prior's, with a random response: a step may treat them otherwise than uniform rows."""
        return self._wide(self.replay.likely(rng), rng)

    def _wide(self, rows: Array, rng: np.random.Generator) -> Array:
        """Return rows in units of the bound, with a random response where there are responses."""
        x = rows / self.replay.target.public.feature_bound
        return np.column_stack([x, rng.uniform(-1, 1, len(x))]) if self.response else x

    def _departure_on(self, rows: Array, rng: np.random.Generator) -> float:
        """Return the largest departure from the properties of such a sum, on these rows with random classes."""
        n = len(rows)
        kinds = rng.integers(self.kinds, size=n)
        zero_rows = np.zeros_like(rows)
        sent_zero, sent, mirrored = self(zero_rows, kinds), self(rows, kinds), self(-rows, kinds)
        even, odd = (sent + mirrored) / 2 - sent_zero, (sent - mirrored) / 2
        # a polynomial of degree 2 along the line through 0 and the rows
        departures = [np.linalg.norm(self(rows / 2, kinds) - sent_zero - even / 4 - odd / 2)]
        # the same function for every row, so that their order does not matter
        departures.append(np.linalg.norm(self(np.roll(rows, 1, axis=0), np.roll(kinds, 1)) - sent))
        if n > 1:  # a sum over the rows
            first, second = rows.copy(), rows.copy()
            first[n // 2 :], second[: n // 2] = 0, 0
            departures.append(np.linalg.norm(self(first, kinds) + self(second, kinds) - sent_zero - sent))
        size = float(np.linalg.norm(sent - sent_zero))
        if not self.classes:
            return float(max(departures)) / size if size > 0 else float("inf")
        by_class, by_row = self._departure_by_class(rows, kinds, rng, sent - sent_zero)
        if size <= _ZERO * float(np.linalg.norm(sent_zero)):  # only labels enter the message
            return by_class
        departures += [np.float64(by_row)]
        return max(by_class, float(max(departures)) / size)

    def _departure_by_class(
        self, rows: Array, kinds: Array, rng: np.random.Generator, added: Array
    ) -> tuple[float, float]:
        """Return two departures from a sum over rows in which each row's class changes its own term only.

        Args:
            rows: hypothetical rows.
            kinds: their classes.
            rng: generator of other classes.
            added: message of the rows less that of zero rows.

        Returns:
            That of zero rows, relative; that of the rows when the other rows' classes change, in the messages' units.
        """
        n, zero_rows = len(rows), np.zeros_like(rows)
        by_kind = [self(zero_rows, np.full(n, kind)) / n for kind in range(self.kinds)]
        sent = self(zero_rows, kinds)
        variation = max(float(np.linalg.norm(message - by_kind[0])) for message in by_kind) * n
        departure = float(np.linalg.norm(sent - np.sum([by_kind[kind] for kind in kinds], axis=0)))
        negligible = _ZERO * float(np.linalg.norm(sent))
        relative = departure / variation if variation > negligible else (0.0 if departure <= negligible else np.inf)
        if n == 1:
            return relative, 0.0
        first, second, others = rows.copy(), rows.copy(), rng.integers(self.kinds, size=n)
        first[n // 2 :], second[: n // 2] = 0, 0
        first_kinds, second_kinds = kinds.copy(), kinds.copy()
        first_kinds[n // 2 :], second_kinds[: n // 2] = others[n // 2 :], others[: n // 2]
        changes = [
            self(part, kind) - self(zero_rows, kind) for part, kind in ((first, first_kinds), (second, second_kinds))
        ]
        return relative, float(np.linalg.norm(changes[0] + changes[1] - added))


def _uses_labels(replay: Replay, rng: np.random.Generator, possible: Array) -> bool:
    """Return whether the message changes when the same rows have other labels."""
    rows, labels = replay.likely(rng), np.asarray(replay.labels)
    trials = [np.roll(labels, 1), rng.permutation(labels)]
    if np.issubdtype(labels.dtype, np.integer):
        trials += [np.full_like(labels, label) for label in possible]
    else:
        trials.append(labels[::-1] / 2)
    sent = replay(rows)
    return any(not np.array_equal(sent, replay(rows, None, trial)) for trial in trials)


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
        constant: messages of zero rows, (equations,). Where messages depend on sums or numbers of rows, further
            equations state the public facts.
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
        """Probe the step with clients of which one row is not zero.

        Args:
            step: the client step.
            counted: whether the attacker knows the number of rows of each class, and not only their sum.
        """
        replay, p = step.replay, step.width
        zero_rows = np.zeros((replay.rows, p))
        constant = step(zero_rows, np.zeros(replay.rows, np.int64))
        blocks, linear = [], bool(step.response)
        for kind in range(step.kinds):
            evens, odds, both, zero_message = _responses(step, zero_rows, kind)
            size = max(map(np.linalg.norm, evens))
            linear = linear or max(map(np.linalg.norm, odds)) > LINEAR * size
            linear = linear or float(np.linalg.norm(zero_message - constant)) > _ZERO * float(np.linalg.norm(constant))
            blocks.append((odds, both, (zero_message - constant) / replay.rows))
        columns: list[Array] = []
        for odds, both, zero_message in blocks:
            columns += [zero_message, *(odd / np.sqrt(2) for odd in odds)] if linear else []
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
        """Return the packed moments that the members' rows would have if they were distributed like `rows`.

        Args:
            rows: rows like the members', of any number.
            labels: their labels, if known.
            step: the client step.
            counted: whether the members' numbers of rows of each class are known; else they are taken as in `labels`.
        """
        x = np.asarray(rows, np.float64) / step.replay.target.public.feature_bound
        if step.response:
            x = np.column_stack([x, np.resize(step.responses(), len(x)) if labels is None else labels / step.response])
        extended = np.column_stack([np.ones(len(x)), x]) if self.size > step.width else x
        packed_parts = []
        for kind in range(self.kinds):
            selected, share = extended, 1 / self.kinds
            if step.classes and labels is not None:
                of_kind = np.asarray(labels) == step.classes[kind]
                selected, share = extended[of_kind] if of_kind.any() else extended, float(np.mean(of_kind))
            count = float(np.sum(step.known == kind)) if counted else step.replay.rows * share
            packed_parts.append(selected.T @ selected * (count / len(selected)))
        return self.packed(packed_parts)


def _responses(
    step: ScaledClientStep, zero_rows: Array, kind: int
) -> tuple[list[Array], list[Array], list[Array], Array]:
    """Probe the client step with unit rows and sums of two of them, for one class.

    Returns:
        Even and odd parts of the unit rows' messages, columns of L for the products of two features, and the message of
        zero rows.
    """
    kinds, p = np.full(len(zero_rows), kind), zero_rows.shape[1]
    zero_message = step(zero_rows, kinds)

    def parts(row: Array) -> tuple[Array, Array]:
        rows = zero_rows.copy()
        rows[0] = row
        ahead, behind = step(rows, kinds) - zero_message, step(-rows, kinds) - zero_message
        return (ahead + behind) / 2, (ahead - behind) / 2

    unit = np.eye(p)
    evens, odds = map(list, zip(*(parts(unit[i]) for i in range(p)), strict=True))
    products = []
    for i in range(p):
        for j in range(i, p):
            product = evens[i] if i == j else 4 * parts((unit[i] + unit[j]) / 2)[0] - evens[i] - evens[j]
            products.append(product / (1.0 if i == j else np.sqrt(2)))
    return evens, odds, products, zero_message


def _public_equations(step: ScaledClientStep, size: int, counted: bool) -> tuple[Array, Array]:
    """Return equations of public facts: the number of rows (by class if `counted`), and the responses' moments."""
    length = size * (size + 1) // 2
    counts_of_kinds = np.kron(np.eye(step.kinds), np.eye(1, length))  # picks each class's number of rows
    if step.classes and not counted:
        return counts_of_kinds.sum(axis=0, keepdims=True), np.array([float(step.replay.rows)])
    counts = np.bincount(step.known, minlength=step.kinds).astype(np.float64)
    if not step.response:
        return counts_of_kinds, counts
    y = step.responses()
    selectors = np.zeros((2, size, size))
    selectors[0, 0, -1] = selectors[0, -1, 0] = 0.5
    selectors[1, -1, -1] = 1.0
    return np.vstack([counts_of_kinds, *(pack(u)[None] for u in selectors)]), np.concatenate([counts, [y.sum(), y @ y]])


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

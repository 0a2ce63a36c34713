"""Find the linear map from moments of rows to messages, by probing the client step with chosen rows.

The client step is the code with which a client computes its messages from its rows; the attacker can run it. Suppose
that every number of the messages is a sum over the rows x_k of one quadratic function, which may depend on the row's
class c,

    y = y_0 + sum_k (n_c + a_c x_k + x_k^T B_c x_k),      c the class of row k.

Then y is linear in the moments M_c = [1 X_c]^T [1 X_c] of the rows X_c of each class: their number, their sum and their
Gram matrix. This module tests whether a step is such a sum (`ScaledClientStep.departure`), and computes the map's
matrix L column by column (`MomentSystem`), from the messages of clients of which at most one row is not zero: with e_i
a unit row and f(x) the message that x adds to one of zero rows,

    odd part  (f(e_i) - f(-e_i)) / 2 = a_i,      even part  (f(e_i) + f(-e_i)) / 2 = B_ii,
    4 times the even part of (e_i + e_j) / 2, less B_ii and B_jj,  is  2 B_ij.

Labels that are real numbers (responses) count as one more column of the rows. `moment_probe` solves the system.
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

    The members are the clients whose messages the observed sums hold. The index of a class is called its kind: 0, 1,
    ... in the order of `classes`, and 0 for all rows where labels do not matter.

    Attributes:
        replay: runs the clients' code in the observed rounds, on rows of the attacker.
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
        """Kind of each of the members' rows, (rows,), from their known labels; zeros if labels do not matter."""
        if not self.classes:
            return np.zeros(self.replay.rows, np.int64)
        return np.searchsorted(self.classes, np.asarray(self.replay.labels))

    def responses(self) -> Array:
        """Return the members' responses in units of the largest, (rows,)."""
        return np.asarray(self.replay.labels, np.float64) / self.response

    def __call__(self, rows: Array, kinds: Array) -> Array:
        """Compute the messages that members with these rows would have sent, one number for each equation.

        Args:
            rows: (rows, width) in units of the bounds, the response in the last column where there are responses.
            kinds: (rows,) kinds of the rows.

        Returns:
            (equations,) the entries of all messages of all rounds.

        Raises:
            SecureFedError: the client step fails on such rows.
        """
        features, labels = self.replay.features, None
        if self.response:
            labels = rows[:, features] * self.response
        elif self.classes:
            labels = np.asarray(self.classes)[kinds].astype(np.asarray(self.replay.labels).dtype)
        x = rows[:, :features] * self.replay.target.public.feature_bound
        # `None`: the replay's own seed; the probe runs only where the client step draws nothing at random
        return np.asarray(self.replay(x, None, labels) / self.replay.units.unit)

    def departure(self, rng: np.random.Generator) -> float:
        """Return how far messages are from a sum of one quadratic function of each row; infinite if the step fails.

        The distance is relative to how much messages vary with the rows, and the larger one of two sets of rows:
        uniform within the bound, and like the prior's (rows that the attacker has).
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
        """Return the largest departure from the properties of such a sum, on these rows with random classes.

        Each property is an identity between messages that holds for every sum of quadratic functions.
        """
        n = len(rows)
        kinds = rng.integers(self.kinds, size=n)
        zero_rows = np.zeros_like(rows)
        sent_zero, sent, mirrored = self(zero_rows, kinds), self(rows, kinds), self(-rows, kinds)
        even, odd = (sent + mirrored) / 2 - sent_zero, (sent - mirrored) / 2
        # along the line t -> t rows the message is the polynomial sent_zero + t odd + t^2 even; tried at t = 1/2
        departures = [np.linalg.norm(self(rows / 2, kinds) - sent_zero - even / 4 - odd / 2)]
        # the same function for every row, so that their order does not matter
        departures.append(np.linalg.norm(self(np.roll(rows, 1, axis=0), np.roll(kinds, 1)) - sent))
        if n > 1:  # a sum over the rows: the first half and the second half add up to the whole
            first, second = rows.copy(), rows.copy()
            first[n // 2 :], second[: n // 2] = 0, 0
            departures.append(np.linalg.norm(self(first, kinds) + self(second, kinds) - sent_zero - sent))
        size = float(np.linalg.norm(sent - sent_zero))
        if not self.classes:
            return float(max(departures)) / size if size > 0 else float("inf")
        by_class, by_row = self._departure_by_class(rows, kinds, rng, sent - sent_zero)
        if size <= _ZERO * float(np.linalg.norm(sent_zero)):  # only labels enter, so no departure is relative to `size`
            return by_class
        departures += [np.float64(by_row)]
        return max(by_class, float(max(departures)) / size)

    def _departure_by_class(
        self, rows: Array, kinds: Array, rng: np.random.Generator, added: Array
    ) -> tuple[float, float]:
        """Return two departures from a sum over rows in which the class of a row changes the term of that row only.

        Args:
            rows: hypothetical rows.
            kinds: their classes.
            rng: generator of other classes.
            added: message of the rows less that of zero rows.

        Returns:
            First, for zero rows of these classes, the distance of their message from y_0 plus the sum of their n_c,
            relative to how much the n_c differ. Second, in the messages' units, the norm of (what the first half of
            the rows adds to zero rows) + (what the second half adds) - `added`, where the zero rows beside each half
            have random classes: these must not matter.
        """
        n, zero_rows = len(rows), np.zeros_like(rows)
        # y_0 / n + n_c: of n zero rows of one kind, a row's share of the message
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
        # f(first half; its classes, others for the rest) less the same of zero rows: what the first half adds
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

    Packing writes the upper triangle of a symmetric matrix as a vector of the same norm (`pack`). The moments are those
    of [1 x], size width + 1, where messages depend on sums or numbers of rows, else those of x alone.

    Attributes:
        matrix: L, (equations, kinds * size (size + 1) / 2), for the packed moments of one class after the other.
        constant: messages of zero rows that are all of kind 0, (equations,): y_0 + rows n_0, with n_0 the constant of
            the first class. Where messages depend on sums or numbers of rows, further equations state the public
            facts.
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
        """Probe the step with clients of which one row is not zero, by the formulas at the head of this file.

        Args:
            step: the client step.
            counted: whether the attacker knows the number of rows of each class, and not only their sum.

        Raises:
            SecureFedError: the client step fails on such rows.
        """
        replay, p = step.replay, step.width
        zero_rows = np.zeros((replay.rows, p))
        constant = step(zero_rows, np.zeros(replay.rows, np.int64))
        # linear: whether messages depend on sums or numbers of rows. A block is one kind's columns of L: n_c - n_0, by
        # which a zero row of kind c changes the message more than one of kind 0; the a_i; and the products.
        blocks, linear = [], bool(step.response)
        for kind in range(step.kinds):
            evens, odds, products, zero_message = _responses(step, zero_rows, kind)
            linear = linear or max(map(np.linalg.norm, odds)) > LINEAR * max(map(np.linalg.norm, evens))
            linear = linear or float(np.linalg.norm(zero_message - constant)) > _ZERO * float(np.linalg.norm(constant))
            blocks.append(((zero_message - constant) / replay.rows, odds, products))
        # Columns in the order of `pack`: 11, then 1x_i (an off-diagonal entry: packed with sqrt(2)), then x_i x_j.
        columns: list[Array] = []
        for zero_row, odds, products in blocks:
            columns += [zero_row, *(odd / np.sqrt(2) for odd in odds)] if linear else []
            columns += products
        matrix, messages = np.stack(columns, axis=1), replay.messages / replay.units.unit
        if linear:
            public, values = _public_equations(step, p + 1, counted)
            weight = float(np.abs(matrix).max()) or 1.0  # as large as the other equations
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
        """Return the packed moments that the members' rows would have if they were distributed like the prior's rows.

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

    Args:
        step: the client step.
        zero_rows: (rows, width) zeros; one of them is replaced.
        kind: kind of all rows.

    Returns:
        By feature the even parts B_ii and the odd parts a_i of the unit rows' messages; the columns of L for the
        products of two features, in the order of `pack`; and the message of zero rows.
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
    """Return equations of public facts: the number of rows (by class if `counted`), and the responses' moments.

    Args:
        step: the client step.
        size: size of one class's moments, the constant included.
        counted: whether the number of rows of each class is known.

    Returns:
        The matrix (facts, packed moments of all classes) and the values (facts,).
    """
    length = size * (size + 1) // 2
    counts_of_kinds = np.kron(np.eye(step.kinds), np.eye(1, length))  # picks M[0, 0] of each class, its number of rows
    if step.classes and not counted:
        return counts_of_kinds.sum(axis=0, keepdims=True), np.array([float(step.replay.rows)])
    counts = np.bincount(step.known, minlength=step.kinds).astype(np.float64)
    if not step.response:
        return counts_of_kinds, counts
    y = step.responses()
    selectors = np.zeros((2, size, size))  # <selector, M>: the sum of the responses, the sum of their squares
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

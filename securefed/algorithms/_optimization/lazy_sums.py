"""Keep linear combinations of large arrays unevaluated until their numbers are needed, to save memory and time.

`factored_cohort.py` holds the entries of small parameters so. Local steps such as x - eta (g - c_i + c) would
otherwise make a new array for each operation; here they only change coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._optimization.array_pool import ArrayPool
from securefed.algorithms._optimization.factored_gradients import Coefficient

MANY = 8
"""With more terms than this its owner evaluates a sum, since each term keeps an array in memory."""


class LazySum:
    """The linear combination sum_k c_k A_k of arrays A_k, not evaluated yet.

    The arrays A_k are (entries,) or (clients, entries), and never written to. The coefficients c_k are numbers, or
    (clients, 1) with one for each client. Terms are stored by the `id` of their array, so that subtracting the same
    multiple of an array removes its term.

    Args:
        pool: where the arrays of evaluated sums come from.
        terms: (c_k, A_k) by `id` of A_k.
    """

    def __init__(self, pool: ArrayPool, terms: Mapping[int, tuple[Coefficient, Array]]) -> None:
        self._pool, self._terms = pool, dict(terms)

    def __len__(self) -> int:
        """Return the number of terms."""
        return len(self._terms)

    @classmethod
    def of(cls, pool: ArrayPool, array: Array) -> LazySum:
        """Start a sum with one array."""
        return cls(pool, {id(array): (1.0, array)})

    def plus(self, other: LazySum, sign: float) -> LazySum:
        """Return self + sign * other."""
        out = dict(self._terms)
        for key, (coefficient, array) in other._terms.items():
            joined = sign * coefficient + (out[key][0] if key in out else 0.0)
            out[key] = joined, array
            if np.ndim(joined) == 0 and joined == 0:
                del out[key]
        return LazySum(self._pool, out)

    def times(self, factor: Coefficient) -> LazySum:
        """Return the product with a number, or with one number for each client, (clients, 1)."""
        return LazySum(self._pool, {key: (factor * scale, array) for key, (scale, array) in self._terms.items()})

    def numbers(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        """Evaluate the sum; it has one term from then on.

        Args:
            shape: (clients, entries).
            dtype: type of the entries.

        Returns:
            An array of this shape, or one that broadcasts to it. The caller must not write to it.
        """
        terms = list(self._terms.values())
        if len(terms) == 1 and unscaled(terms[0][0]):
            return terms[0][1]
        out = self._pool.empty(shape, dtype)
        self.write(out)
        self._terms = {id(out): (1.0, out)}
        return out

    def write(self, out: Array, columns: slice = slice(None)) -> None:
        """Write these columns of the sum into `out`, (clients, columns)."""
        # terms with coefficient 1 come last: they are added without a scaled copy
        terms = sorted(self._terms.values(), key=lambda term: unscaled(term[0]))
        if not terms:
            out[...] = 0.0
            return
        coefficient, array = terms[0]
        np.multiply(coefficient, array[..., columns], out=out)
        for coefficient, array in terms[1:]:
            term = array[..., columns]
            if not unscaled(coefficient):
                term = np.multiply(coefficient, term, out=self._pool.empty(out.shape, out.dtype))
            out += term


def unscaled(coefficient: Coefficient) -> bool:
    """Return whether a coefficient is the number one."""
    return np.ndim(coefficient) == 0 and bool(coefficient == 1)

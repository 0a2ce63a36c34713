"""Infer the precision of numbers from the numbers themselves, for instance that messages are float32.

Attacks that solve linear equations weigh each message by its rounding error. A recorded message is float64 also where a
client computed in fewer bits, so that its type does not show the error. `_diagnosis` and `_repeatability` call
`before_change`, since a change of a parameter carries the parameter's rounding error.
"""

from __future__ import annotations

import numpy as np

from securefed._tensors import Array, Tensors

_MANTISSA = 53
"""Bits of a float64 mantissa, the leading one included."""


def before_change(name: str, broadcast: Tensors) -> Array | None:
    """Return the broadcast tensor of which a message's tensor may be a change; `None` where there is none.

    Gradient methods call the change of a parameter by a part and the parameter's name, which may hold dots of its own:
    `delta.0.weight` of `0.weight`. Such a change was rounded at the size of the parameter.
    """
    return broadcast.get(name.partition(".")[2] or name)


def rounding(values: Array, unit: float = 0.0) -> Array:
    """Estimate the standard deviation of the rounding error of each entry, in the shape of `values`.

    Floating-point numbers v = f 2^e, 1/2 <= |f| < 1, with b bits are multiples of 2^(e - b). Fixed-point numbers are
    all multiples of one power of two. The fewest bits b and the coarsest such power that fit all entries are taken, so
    many entries are needed: a single one may have few bits by chance. An error that is uniform over a step has a
    standard deviation of step / sqrt(12).

    Args:
        values: numbers of one format, float64 or narrower.
        unit: unit of fixed-point numbers, where it is public; it need not be a power of two.
    """
    flat = np.abs(np.asarray(values, float))
    fraction, exponent = np.frexp(flat)  # flat = fraction 2^exponent
    whole = np.ldexp(fraction, _MANTISSA).astype(np.int64)  # the mantissa as an integer
    used = whole != 0
    if not used.any():
        return np.full(flat.shape, unit / np.sqrt(12))
    # `whole & -whole` keeps the last bit that is set; `last` is the power of two that this bit stands for.
    last = exponent - _MANTISSA + np.frexp((whole & -whole).astype(float))[1] - 1
    bits, grid = int(np.max((exponent - last)[used])), int(last[used].min())
    step = np.ldexp(1.0, np.where(used, np.maximum(exponent - bits, grid), grid))
    return np.asarray(np.maximum(step, unit) / np.sqrt(12))

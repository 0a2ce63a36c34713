"""Follow the size of public mean gradients with the bound of the next step's fixed point.

Under masked data-parallel training the ranks (its processes) sum their gradients as masked integers: an entry x is sent
as round(x / step). The step follows from a bound on |x| of every rank: too large a bound wastes digits, and an entry
beyond it makes the sum useless (a lost step). After each training step each rank's `MaskingState` calls `summed` or
`lost`, with public facts alone, so that the bounds of all ranks stay equal:

    after a sum:        bound = headroom * (largest entry of the mean),
    after k lost steps: bound = bound * 16^(2^(k - 1)), hence by 16, 256, 65536, ...
"""

from __future__ import annotations

import math
from typing import Final

from securefed._public import require
from securefed._tensors import Ring
from securefed.defenses._plan import TensorPlan
from securefed.torch._masking import Trouble, planned

_GROWTH: Final = 16.0
"""Factor of the bound after a lost step. It costs the next sum 4 bits of resolution, and makes a second lost step less
likely. Each further lost step in a row squares the factor, so that after six the bound is large enough for any entry
below `_LARGEST`."""

_SMALLEST: Final = 2.0**-90
_LARGEST: Final = 2.0**120
"""Limits of the bound: within them step and 1/step are normal float32 numbers in rings of 32 bits."""


class GradientBound:
    """The bound on the entries of one rank's gradient: the same at every rank, as it depends on public facts alone.

    Args:
        bound: declared for the first step.
        headroom: bound of a later step, in units of the last public mean's largest entry.
        ring: width in bits of the integers.
        ranks: number of ranks.

    Raises:
        ConfigError: a bound or headroom out of range.
        PlanError: too many ranks for the ring.
    """

    def __init__(self, bound: float, headroom: float, ring: Ring, ranks: int) -> None:
        within = isinstance(bound, int | float) and _SMALLEST <= bound <= _LARGEST
        require(within, f"bound must be a number between {_SMALLEST:.3g} and {_LARGEST:.3g}; got {bound!r}")
        fits = isinstance(headroom, int | float) and 1 <= headroom <= 2**20
        require(fits, f"headroom must be a number between 1 and 2^20; got {headroom!r}")
        self._bound, self._headroom, self._ring, self._ranks = float(bound), float(headroom), ring, ranks
        self._lost = 0
        self.plan: TensorPlan = planned(self._bound, ring, ranks)

    @property
    def value(self) -> float:
        """Largest absolute entry that a rank's gradient may have in the coming step."""
        return self._bound

    def summed(self, largest: float) -> None:
        """Set the bound of the next step from this step's mean.

        A mean of zeros may be one below the resolution (step / ranks): the bound then follows the resolution downwards.

        Args:
            largest: largest absolute entry of the mean over all ranks.
        """
        self._lost = 0
        self._set(self._headroom * max(largest, self.plan.step / self._ranks))

    def lost(self, trouble: Trouble) -> None:
        """Set the bound of the next step after a step without a sum; entries that are not finite do not change it.

        Args:
            trouble: why there was no sum, as all ranks read it in the control words that are summed beside the values.
        """
        if trouble is Trouble.TOO_LARGE:
            # Six lost steps in a row multiply the bound by 2^(4 + 8 + ... + 128) = 2^252, and its limits are 2^210
            # apart: the sixth reaches the upper one, and no power above 16^(2^5) = 2^128 is needed.
            self._lost = min(self._lost + 1, 6)
            self._set(self._bound * _GROWTH**2 ** (self._lost - 1))

    def _set(self, bound: float) -> None:
        # NaN is kept, whatever `min` and `max` make of it, and `planned` then raises ValueError: limited, it would look
        # like a bound. `MaskingState` never passes it, but integers times the step.
        self._bound = bound if math.isnan(bound) else min(max(bound, _SMALLEST), _LARGEST)
        self.plan = planned(self._bound, self._ring, self._ranks)

"""Follow the size of public mean gradients with the bound of the next step's fixed point.

Under masked data-parallel training the ranks (its processes) sum their gradients as masked integers: an entry x is sent
as round(x / step). The step follows from a bound on |x| of every rank: too large a bound wastes digits, and an entry
beyond it makes the sum useless (a lost step). After each training step each rank's `MaskingState` calls `summed` or
`lost`, with public facts alone, so that the bounds of all ranks stay equal:

    after a sum:        bound = min(headroom * (largest entry of the mean), ceiling),
    after k lost steps: bound = min(bound * 16^(2^(k - 1)), ceiling), hence by 16, 256, 65536, ...

The ceiling is absolute. Without one a rank that lies could raise the bound a little in every step, by one entry that
nothing depends on, until the gradients of all others round to 0.
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

_ROOM: Final = 2.0**10
"""Factor of the default ceiling over the bound that follows from the first sum. A lie in every step then costs at most
10 bits of the 23 that a mean has below its largest entry in a ring of 32 bits and three ranks; gradients that grow by
more than this factor in honest training reach the ceiling, and the run ends by name."""
_FIRST_ROOM: Final = 2.0**20
"""Factor of the default ceiling over the declared bound before the first sum: the declaration may be off by that much,
as where a GradScaler that `MaskingState` is not given multiplies the loss by 65536."""
_MOST_LOST: Final = 20
"""Steps lost in a row at the ceiling, after which the run ends by name; a GradScaler that halves its scale in each of
them has by then divided it by a million."""
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
        ceiling: largest bound of any step; by default 2^20 times the declared bound and, from the first sum on, at most
            2^10 times the bound that follows from it.

    Raises:
        ConfigError: a bound, headroom or ceiling out of range.
        PlanError: too many ranks for the ring.
    """

    def __init__(self, bound: float, headroom: float, ring: Ring, ranks: int, *, ceiling: float | None = None) -> None:
        within = isinstance(bound, int | float) and _SMALLEST <= bound <= _LARGEST
        require(within, f"bound must be a number between {_SMALLEST:.3g} and {_LARGEST:.3g}; got {bound!r}")
        fits = isinstance(headroom, int | float) and 1 <= headroom <= 2**20
        require(fits, f"headroom must be a number between 1 and 2^20; got {headroom!r}")
        above = ceiling is None or (isinstance(ceiling, int | float) and bound <= ceiling <= _LARGEST)
        require(above, f"ceiling must be a number from bound ({bound:.3g}) to {_LARGEST:.3g}; got {ceiling!r}")
        self._bound, self._headroom, self._ring, self._ranks = float(bound), float(headroom), ring, ranks
        self._ceiling = min(float(bound) * _FIRST_ROOM, _LARGEST) if ceiling is None else float(ceiling)
        self._settled = ceiling is not None  # else the first sum lowers the ceiling
        self._lost = self._lost_at_ceiling = self._zeros = 0
        self.plan: TensorPlan = planned(self._bound, ring, ranks)

    @property
    def value(self) -> float:
        """Largest absolute entry that a rank's gradient may have in the coming step."""
        return self._bound

    @property
    def ceiling(self) -> float:
        """Largest bound that any step may have."""
        return self._ceiling

    @property
    def stuck(self) -> bool:
        """Whether so many steps in a row were lost at the ceiling that no further one is likely to fit."""
        return self._lost_at_ceiling >= _MOST_LOST

    def summed(self, largest: float) -> None:
        """Set the bound of the next step from this step's mean.

        A mean of zeros is either one below the resolution (step / ranks) or one of a batch without gradients, as where
        every unit of a layer is off. The bound then falls as it grows after lost steps, by 16, 256, ...: so small
        gradients are found in a few steps, and after a single such batch those of the size before it still fit.

        Args:
            largest: largest absolute entry of the mean over all ranks.
        """
        self._lost = self._lost_at_ceiling = 0
        self._zeros = 0 if largest > 0 else min(self._zeros + 1, 6)
        resolution = self._headroom * self.plan.step / self._ranks
        following = self._headroom * largest if largest > 0 else max(self._bound / _factor(self._zeros), resolution)
        if not self._settled and largest > 0:
            self._ceiling, self._settled = min(self._ceiling, max(following, self._bound) * _ROOM), True
        self._set(following)

    def lost(self, trouble: Trouble) -> None:
        """Set the bound of the next step after a step without a sum; entries that are not finite do not change it.

        Args:
            trouble: why there was no sum, as all ranks read it in the control words that are summed beside the values.
        """
        if trouble is Trouble.TOO_LARGE:
            self._lost_at_ceiling += self._bound >= self._ceiling
            self._lost = min(self._lost + 1, 6)
            self._set(self._bound * _factor(self._lost))

    def rescale(self, factor: float) -> None:
        """Multiply bound and ceiling: all gradients are multiplied by `factor` from the coming step on."""
        self._ceiling = min(self._ceiling * factor, _LARGEST)
        self._set(self._bound * factor)

    def _set(self, bound: float) -> None:
        # NaN is kept, whatever `min` and `max` make of it, and `planned` then raises ValueError: limited, it would look
        # like a bound. `MaskingState` never passes it, but integers times the step.
        self._bound = bound if math.isnan(bound) else min(max(bound, _SMALLEST), self._ceiling)
        self.plan = planned(self._bound, self._ring, self._ranks)


def _factor(times: int) -> float:
    """Return 16^(2^(times - 1)), for a bound that was wrong `times` times in a row.

    Six times multiply the bound by 2^(4 + 8 + ... + 128) = 2^252, and its limits are 2^210 apart: so the sixth reaches
    one of them, and no power above 16^(2^5) = 2^128 is needed.
    """
    return float(_GROWTH ** (2 ** (times - 1)))

"""The clipping and noise that a defence applied in an exchange, as the record of a round and the defences state it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ClippingNoiseRecord:
    """Clipping and noise that a defence applied in an exchange. Public, so attackers use it.

    Attributes:
        clips: names of tensors that were clipped together, and their L2 norm, in units of the algorithm: applied to the
            contribution of every client before the sum.
        noise: by tensor, standard deviation of the noise in an entry of the sum, in units of the algorithm.
        released: by tensor, the same in the released sum, after the noise that the server adds.
        units: by tensor, what 1 in the sum is worth in units of the algorithm; 1 where it is not named. An adaptive
            clip has clients send multiples of its norm, so that this norm is the unit.
    """

    clips: tuple[tuple[tuple[str, ...], float], ...] = ()
    noise: Mapping[str, float] = field(default_factory=dict)
    released: Mapping[str, float] = field(default_factory=dict)
    units: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Write the record as JSON values."""
        clips = [[list(names), norm] for names, norm in self.clips]
        return {"clips": clips, "noise": dict(self.noise), "released": dict(self.released), "units": dict(self.units)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ClippingNoiseRecord:
        """Read what `to_json` wrote. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        clips = tuple((tuple(map(str, names)), float(norm)) for names, norm in values["clips"])
        parts = ({str(name): float(v) for name, v in values[p].items()} for p in ("noise", "released", "units"))
        return cls(clips, *parts)

"""Normal deviates from cryptographic bits."""

from __future__ import annotations

import numpy as np

from securefed.defenses.differential_privacy.stream import SecureStream, Stream, uniforms
from securefed.tensors import Array


def secure_normal(count: int, stream: Stream | None = None) -> Array:
    """`count` standard normal deviates (float64) from `stream`, a fresh one keyed by the operating system by default.

    Box and Muller (1958) on uniforms of 53 bits: the tails end at sqrt(106 ln 2) = 8.57, beyond which the normal
    distribution has 1e-17 of its mass.
    """
    pairs = -(-count // 2)
    drawn = uniforms(stream or SecureStream(), 2 * pairs)
    radius = np.sqrt(-2 * np.log(drawn[:pairs] + 2.0**-53))  # of a uniform in (0, 1]
    angle = 2 * np.pi * drawn[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

"""Normal deviates from cryptographic bits."""

from __future__ import annotations

import os

import numpy as np

from securefed.tensors import Array


def secure_normal(count: int) -> Array:
    """`count` standard normal deviates (float64) from the operating system's generator.

    Box and Muller (1958) on uniforms of 53 bits: the tails end at sqrt(106 ln 2) = 8.57, beyond which the normal
    distribution has 1e-17 of its mass.
    """
    pairs = -(-count // 2)
    bits = np.frombuffer(os.urandom(16 * pairs), np.uint64) >> np.uint64(11)
    radius = np.sqrt(-2 * np.log((bits[:pairs] + np.uint64(1)) * 2.0**-53))  # of a uniform in (0, 1]
    angle = bits[pairs:] * (2 * np.pi * 2.0**-53)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

"""The strongest registered attack on a view: whatever is registered later takes part."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from securefed._catalogue import attacks
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks.scores import relative_error
from securefed.errors import TranscriptError

_UNPROVEN = ("near consensus", "not proven")


@dataclass(frozen=True)
class Strongest:
    """The attack with the smallest error.

    Attributes:
        error: relative, infinite where no attack applies.      seconds: its processor time.
        by: its name and its method.      found: what it believes; `None` where none applies.
    """

    error: float
    seconds: float
    by: str
    found: Reconstruction | None

    @property
    def proven(self) -> bool:
        """Whether it claims to be exact."""
        return ": " in self.by and not any(word in self.by for word in _UNPROVEN)

    @property
    def cell(self) -> dict[str, float | str]:
        """For the table; `wrong` is 1 where it claims to be exact and is not."""
        wrong = self.proven and self.error > 1e-3
        return {
            "error": self.error,
            "seconds": self.seconds,
            "proven": float(self.proven),
            "wrong": float(wrong),
            "by": self.by,
        }


def strongest(secret: str, observed: View, target: Target, truth: Array, seed: int) -> Strongest:
    """Run every registered attack on `secret` that applies, with its own settings."""
    best = Strongest(float("inf"), 0.0, "no attack applies", None)
    for name in attacks.names:
        attack = attacks.make(name)
        if attack.secret != secret or attack.applies(target, observed) is not None:
            continue
        start = time.process_time()
        try:
            found = attack.run(observed, target, np.random.default_rng([seed, 1]))
        except TranscriptError:
            continue
        seconds = time.process_time() - start
        error = relative_error(found.value, truth)
        if error < best.error:
            method = found.diagnostics.get("method")
            best = Strongest(error, seconds, f"{name}: {method}" if method else name, found)
    return best

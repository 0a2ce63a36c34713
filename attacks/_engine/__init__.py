"""The attack engine: run a client's own step with derivatives, and fit what it must hold to have sent its messages."""

from __future__ import annotations

from securefed.attacks._engine import array_rules as _array_rules  # fills the table of rules
from securefed.attacks._engine.forward import DualArray, NoDerivativeError

__all__ = ["DualArray", "NoDerivativeError"]

del _array_rules

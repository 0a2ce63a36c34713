"""Attacks on the sums themselves: what changing cohorts, drop-outs and a dishonest server make of them."""

from __future__ import annotations

from securefed.attacks.aggregates.disaggregate import Disaggregated, disaggregate
from securefed.attacks.aggregates.incidence import Incidence
from securefed.attacks.aggregates.isolate import Isolation, isolate

__all__ = ["Disaggregated", "Incidence", "Isolation", "disaggregate", "isolate"]

"""Attacks on sums: subtract sums of changing cohorts, or drop all clients but one."""

from __future__ import annotations

from securefed.attacks._aggregates.disaggregation import Disaggregation, disaggregate, separated
from securefed.attacks._aggregates.dropout_isolation import IsolationResult, isolate
from securefed.attacks._aggregates.participation import ParticipationMatrix

__all__ = ["Disaggregation", "IsolationResult", "ParticipationMatrix", "disaggregate", "isolate", "separated"]

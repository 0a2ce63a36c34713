"""Federated algorithms. What is needed to write one stands here; the methods stand in the folders by family."""

from securefed.algorithms.audit_case import AuditCase
from securefed.algorithms.base import Algorithm, ClientData, RoundOutcome, algorithms

__all__ = ["Algorithm", "AuditCase", "ClientData", "RoundOutcome", "algorithms"]

"""Personalised federated learning. Importing this registers the methods; FedAvg and FedProx stand in `optimization`."""

from __future__ import annotations

# In the order of `securefed list` and of the audit's report.
# isort: off
from securefed.algorithms.personalized.flame import FLAME
from securefed.algorithms.personalized.pfedme import PFedMe
from securefed.algorithms.personalized.fedadmm import FedADMM
from securefed.algorithms.personalized.ditto import Ditto
# isort: on

__all__ = ["FLAME", "Ditto", "FedADMM", "PFedMe"]

"""Personalised federated learning: FLAME, pFedMe, Ditto, FedADMM."""

from __future__ import annotations

# In the order of `securefed list` and of the audit's report.
# isort: off
from securefed.algorithms._personalized.flame import FLAME
from securefed.algorithms._personalized.pfedme import PFedMe
from securefed.algorithms._personalized.fedadmm import FedADMM
from securefed.algorithms._personalized.ditto import Ditto
# isort: on

__all__ = ["FLAME", "Ditto", "FedADMM", "PFedMe"]

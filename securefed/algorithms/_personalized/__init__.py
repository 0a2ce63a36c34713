"""Personalised federated learning: FLAME, pFedMe, Ditto, FedADMM."""

from __future__ import annotations

# Importing a module registers its algorithms, in the order of `securefed list` and of the audit's report.
# ruff: noqa: F401
# isort: off
from securefed.algorithms._personalized.flame import FLAME
from securefed.algorithms._personalized.pfedme import PFedMe
from securefed.algorithms._personalized.fedadmm import FedADMM
from securefed.algorithms._personalized.ditto import Ditto
# isort: on

"""The audit's run of each algorithm, read from the algorithms' own classes."""

from securefed._auditing.cases.case import (
    Case,
    case,
    case_names,
    defaults,
    every,
    require_clients,
)
from securefed._auditing.cases.prepared_data import Preparation, Prepared

__all__ = ["Case", "Preparation", "Prepared", "case", "case_names", "defaults", "every", "require_clients"]

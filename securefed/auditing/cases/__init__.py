"""What the audit runs for each algorithm; importing this registers every case."""

from securefed.auditing.cases import graph as _graph
from securefed.auditing.cases import optimization as _optimization
from securefed.auditing.cases import pca as _pca
from securefed.auditing.cases import personalized as _personalized
from securefed.auditing.cases.base import (
    Case,
    Preparation,
    Prepared,
    WideCase,
    case,
    cases,
    defaults,
    every,
    require_clients,
)

__all__ = ["Case", "Preparation", "Prepared", "WideCase", "case", "cases", "defaults", "every", "require_clients"]
del _graph, _optimization, _pca, _personalized

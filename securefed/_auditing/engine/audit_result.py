"""The values of an audit, from which the page, the terminal and the gate draw their sentences.

An audit returns them as a `Report` (`audit_report`), which can also be printed and saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from securefed._auditing.alerts.alert import Alert
from securefed._auditing.alerts.data_sheet import DataSheet
from securefed._auditing.engine.incomplete_results import Missing
from securefed._auditing.engine.kept_utility import AlgorithmUtility
from securefed._auditing.engine.results import Artifact, Cell, RunFacts
from securefed._auditing.engine.run_costs import RunCosts
from securefed.errors import ConfigError

AUDIT: Final = "audit"
"""Key of `AuditResult.settings` that holds what all algorithms share, beside one key for each algorithm."""
FORMAT: Final = 3
"""Format of `audit.json`. Format 1 had no number; in formats 1 and 2 a cell held all its figures side by side, and the
costs of its run. `audit_json.read` reads all three and refuses later ones."""
CUT: Final = "rows cut"
"""Key, among what all algorithms share, of [rows that each client kept, rows that the largest client holds]; it is
there only if clients were cut for lack of time."""

_UNKNOWN: Final = RunCosts("", "")


@dataclass(frozen=True)
class SmallestClient:
    """One attack on one secret of the client with fewest rows, over all runs.

    Attributes:
        least: fewest rows that it had in a run.
        most: most rows that it had in a run; owners drawn anew for every run differ.
        cell: the results.
    """

    least: int
    most: int
    cell: Cell


@dataclass(frozen=True)
class AuditResult:
    """What an audit measured, with what it ran.

    Attributes:
        version: the version of this package.
        command: shell command that reproduces the audit; empty for an audit of a user's own algorithm.
        environment: versions of Python and of the libraries, and the machine.
        settings: what each algorithm ran with, and under `AUDIT` what all of them share.
        cells: the results.
        facts: costs of the runs.
        costs: the same as means over the runs of each algorithm and defence.
        curves: errors against the number of rounds seen, as `round_curves` makes them.
        tradeoffs: leakage and utility against epsilon, by algorithm.
        membership: rates of record and client membership, where they were asked for.
        skipped: what was not run, and why.
        missing: what was asked for and did not run, or ran for some seeds only.
        assumptions: what the attackers are given.
        date: when the audit ended, as ISO 8601 in UTC.
        data: rows, columns and parties of the data, and the digest of their file.
        alerts: what the data themselves open, found before any attack.
        smallest: the cells of the client with fewest rows, over all runs; empty where clients have about as many.
        utilities: by algorithm, what of its utility above the floor each defence keeps (`kept_utility`).
        seconds: wall-clock time of the audit.
        artifacts: secrets and estimates for pictures; they are in the page, and not in the JSON.
    """

    version: str
    command: str
    environment: Mapping[str, str]
    settings: Mapping[str, Mapping[str, Any]]
    cells: tuple[Cell, ...]
    facts: tuple[RunFacts, ...]
    costs: tuple[RunCosts, ...] = ()
    curves: tuple[Mapping[str, Any], ...] = ()
    tradeoffs: tuple[Mapping[str, Any], ...] = ()
    membership: tuple[Mapping[str, Any], ...] = ()
    skipped: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    assumptions: tuple[str, ...] = ()
    date: str = ""
    data: DataSheet = DataSheet()
    alerts: tuple[Alert, ...] = ()
    smallest: tuple[SmallestClient, ...] = ()
    utilities: Mapping[str, AlgorithmUtility] = field(default_factory=dict)
    seconds: float = 0.0
    artifacts: tuple[Artifact, ...] = ()

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Names of the audited algorithms, in order."""
        return tuple(name for name in self.settings if name != AUDIT)

    @property
    def worst(self) -> Cell:
        """The cell of highest mean leakage to three digits, of equal ones that which follows from no other.

        `confirmation` is left aside.

        Raises:
            ConfigError: no attack ran.
        """
        cells = [cell for cell in self.cells if cell.secret != "confirmation"]
        if not cells:
            raise ConfigError(f"no attack applied to {', '.join(self.algorithms)}: {'; '.join(self.skipped)}")
        return max(cells, key=lambda cell: (round(cell.leakage.mean, 3), not cell.reach.derived))

    def cost(self, cell: Cell) -> RunCosts:
        """Return what the runs behind a cell cost; all unknown where nothing is known of them."""
        own = [run for run in self.costs if (run.algorithm, run.defense) == (cell.algorithm, cell.defense)]
        return next((run for view in (cell.view, "") for run in own if run.view == view), _UNKNOWN)

    def of(self, algorithm: str) -> tuple[Cell, ...]:
        """Select the cells of one algorithm."""
        return tuple(cell for cell in self.cells if cell.algorithm == algorithm)


def rows_cut(shared: Mapping[str, Any]) -> str:
    """Say to how many rows clients were cut for lack of time, by what all algorithms share; empty if they were not."""
    if CUT not in shared:
        return ""
    rows, held = shared[CUT]
    return f"clients cut to their first {rows} rows (yours hold {held})"

"""Compare the numbers that a client's messages hold with the numbers of its rows.

Where the rows hold more, the messages' equations alone do not determine them, so that a search that fits rows to the
messages cannot succeed, however long it runs. It is no proof of safety: an attacker who knows what rows look like may
still come near, and single rows may be recognised. `decision` and `next_runs` say so where an attack failed.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefed._auditing.engine.audit_result import AuditResult
from securefed._auditing.sentences.table import counted

ROWS = "samples"
"""Kind of secret that is a client's rows."""


@dataclass(frozen=True)
class TooFewNumbers:
    """A client whose messages hold fewer numbers than its rows.

    Attributes:
        rounds: the number of rounds of the run.
        numbers: entries of all messages of the client.
        rows: the number of rows of the client.
        columns: the number of columns of a row.
    """

    rounds: int
    numbers: int
    rows: int
    columns: int

    @property
    def unknowns(self) -> int:
        """Numbers of the client's rows."""
        return self.rows * self.columns

    @property
    def determined(self) -> int:
        """Largest number of rows that hold no more numbers than the messages do; 1 where a single row holds more."""
        return max(self.numbers // self.columns, 1)

    def places(self) -> dict[str, object]:
        """Return both numbers, for a sentence."""
        return {
            "rounds": counted(self.rounds, "round"),
            "numbers": self.numbers,
            "rows": counted(self.rows, "row"),
            "unknowns": self.unknowns,
        }


def too_few_numbers(report: AuditResult, algorithm: str) -> TooFewNumbers | None:
    """Compare the messages of the attacked client with its rows; `None` where they are enough, or nothing is known."""
    settings = report.settings[algorithm]
    sizes = settings.get("sizes", {})
    if settings.get("secret") != ROWS or "numbers a round" not in sizes:
        return None
    # client 0 is the attacked one
    found = TooFewNumbers(
        sizes["rounds"], sizes["rounds"] * sizes["numbers a round"], sizes["rows of client 0"], sizes["columns"]
    )
    return found if found.numbers < found.unknowns else None

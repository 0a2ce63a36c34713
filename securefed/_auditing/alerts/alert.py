"""An alert: something in the data themselves that opens people, whichever algorithm and defence is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

RARE_CATEGORY: Final = "rare category"
SMALL_PARTY: Final = "small party"
COMBINATION: Final = "rare combination"
SMALL_CLASS: Final = "small class"
DOMINATED: Final = "dominated column"
KEY: Final = "key"
FEW_ROWS: Final = "few rows"
MINORITY: Final = "minority class"
MISSING: Final = "missing values"
REPEATED: Final = "repeated rows"
NOT_SCALED: Final = "not scaled"
CONSTANT: Final = "constant column"
DUPLICATE: Final = "duplicate columns"
KINDS: Final = (
    FEW_ROWS, SMALL_PARTY, RARE_CATEGORY, COMBINATION, SMALL_CLASS, DOMINATED, KEY, REPEATED, MINORITY, MISSING,
    NOT_SCALED, CONSTANT, DUPLICATE,
)  # fmt: skip
"""Kinds of alerts, in the order in which they are shown: those that open people first."""
PERSONAL: Final = frozenset({FEW_ROWS, SMALL_PARTY, RARE_CATEGORY, COMBINATION, SMALL_CLASS, DOMINATED, KEY})
"""Kinds that speak of few people."""


@dataclass(frozen=True)
class Alert:
    """One alert on a table.

    Attributes:
        kind: one of `KINDS`.
        column: name of the column, or the names of several with commas between them; of a party its name; empty where
            the alert is about the whole table.
        count: number of rows that it is about: of the rarest category, smallest party or smallest class, with gaps,
            repeated, or equal.
        opens: what it opens, and what to do, in a few sentences.
        text: what was found, in a sentence.
    """

    kind: str
    column: str
    count: int
    opens: str
    text: str

    @property
    def personal(self) -> bool:
        """Whether it speaks of few people, so that the alert itself is personal data."""
        return self.kind in PERSONAL

    def __str__(self) -> str:
        return f"{self.text} {self.opens}".strip()

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self) | {"personal": self.personal}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(**{name: value for name, value in values.items() if name != "personal"})


def about_people(found: Sequence[Alert]) -> str:
    """Say that the alerts are personal data, where some speak of few people; empty otherwise."""
    if not any(alert.personal for alert in found):
        return ""
    return "Some alerts speak of few people: what you read here is personal data. Keep it as confidential as the table."

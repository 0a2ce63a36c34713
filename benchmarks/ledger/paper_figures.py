"""Read `figures.toml`: every figure and table of the five papers, part by part, and what became of each part."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securefed._public import require

FILE = Path(__file__).with_name("figures.toml")
MEASURED, UNAVAILABLE, OUTSIDE = "measured", "unavailable", "outside"
OUTCOMES = (MEASURED, UNAVAILABLE, OUTSIDE)


@dataclass(frozen=True)
class Part:
    """A part of a figure or table, or a claim or reading beside them.

    Attributes:
        place: as the paper numbers it, "Fig. 2"; with its panels, "Fig. 2(a)" or "Fig. 2(a-c)".
        shows: what this part shows.
        outcome: one of `OUTCOMES`.
        why: reason that it is not measured; of a measured part, how far it is the paper's.
        experiments: pattern (`fnmatch`) of the experiments that measure it, "" where none does.
        lines: regular expression that is searched in "WHERE | QUANTITY" of their lines and in the names of their plots.
    """

    place: str
    shows: str
    outcome: str
    why: str = ""
    experiments: str = ""
    lines: str = ""

    @classmethod
    def of(cls, row: Mapping[str, str]) -> Part:
        """Read a part of the file.

        Raises:
            ConfigError: it has none or several of the three outcomes, an unknown key, or a key too few.
        """
        about = f"part {row.get('place')!r}, {row.get('shows')!r} of {FILE.name}"
        (outcome, *others) = [key for key in OUTCOMES if key in row] or [""]
        require(bool(outcome) and not others, f"{about}: it needs exactly one of {', '.join(OUTCOMES)}")
        keys = {"place", "shows", outcome} | ({"lines", "how"} if outcome == MEASURED else set())
        require(set(row) <= keys, f"{about}: unknown keys {sorted(set(row) - keys)}; allowed are {sorted(keys)}")
        require(set(row) >= keys - {"how"}, f"{about}: it lacks {sorted(keys - {'how'} - set(row))}")
        require(all(map(str.strip, row.values())), f"{about}: a text is empty; state it, or leave out `how`")
        if outcome == MEASURED:
            return cls(row["place"], row["shows"], outcome, row.get("how", ""), row[MEASURED], row["lines"])
        return cls(row["place"], row["shows"], outcome, row[outcome])

    @property
    def printed(self) -> bool:
        """Whether it is of a figure or table, and no claim or reading beside them."""
        return self.place.startswith(("Fig. ", "Table "))

    def measures(self, experiment: str, name: str) -> bool:
        """Whether a line ("WHERE | QUANTITY") or a plot of an experiment belongs to this part."""
        return fnmatch.fnmatch(experiment, self.experiments) and re.search(self.lines, name) is not None


def _read() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


PARTS: dict[str, tuple[Part, ...]] = {paper: tuple(map(Part.of, rows["parts"])) for paper, rows in _read().items()}
"""By the name of a paper's page."""
CAPTIONS: dict[str, dict[str, tuple[str, str]]] = {
    paper: {place: (letters, words) for place, (letters, words) in rows["captions"].items()}
    for paper, rows in _read().items()
}
"""By paper and place, the letters of its panels and the beginning of its caption."""

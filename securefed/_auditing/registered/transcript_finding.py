"""Describe what one attack found in a recorded run, in a word and a few sentences.

`transcript_audit` makes a `TranscriptFinding` of every attack that it runs. A word of success needs two things. The
estimate must explain the messages: those that it predicts differ from the recorded ones by rounding only. And the
messages must allow no other estimate that differs by more than `SMALL` of its size; this is measured by repeating the
attack on messages changed by their rounding (`_repeatability`). What no message tells, however precise, stands beside
the word: the order of rows, a sign, a shift, a rotation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from securefed._auditing.engine.results import finite_or_none
from securefed.attacks._base import Reconstruction
from securefed.attacks._repeatability import SMALL

# Words of a finding, explained at `TranscriptFinding.word`.
RECOVERED: Final = "recovered"
UP_TO: Final = "recovered up to what is left open"
OPEN_DIRECTIONS: Final = "recovered in part"
UNDETERMINED: Final = "explained, not determined"
OTHER_RUN: Final = "other hyper-parameters"
UNSOLVED: Final = "not solved"
UNCHECKED: Final = "not checked"
_CAUTION: Final = 3.0
"""A repetition moves the estimate in few directions by chance. In recordings in float32 the true error was up to 2.9
times the larger distance of two repetitions; half of this factor would be too little there, twice of it says less."""
_SHOWN: Final = 3
"""Rounds whose batches the text lists; the JSON holds all."""
_OPEN: Final = {
    "gram": "the rows behind the Gram matrix, which it gives up to a rotation among them",
    "distances": "the signals behind the distances, which these give up to a rotation and a shift",
}
"""By kind of secret, what it does not tell of the rows."""
_ORDER: Final = "the order of the rows"


@dataclass(frozen=True)
class TranscriptFinding:
    """One attack on one view of the transcript.

    Attributes:
        view: name of the view.
        attack: name of the attack.
        rounds: number of rounds that it read.
        found: its estimate, with residual, rank and condition number.
        explained: whether the estimate explains the messages to their precision; `None` where the attack cannot tell.
        control: if it does not: whether the same attack solves runs that the auditor made with the given
            hyper-parameters and leaves far more here, so that these are wrong; `None` if that was not tried.
        lacks: sentences on what was missing (broadcasts, digits), and what that costs.
        leakage: 1 - error / baseline's error of the target's data if the rows are known, up to what is left open; else
            NaN.
        pooled_leakage: the same of all clients' data together, in a sum over all of them.
        error: how far the estimate moves when the attack is repeated on messages changed by their rounding, relative to
            its size; NaN where that was not possible. `bound` is what may be relied on.
        clients: number of clients of the run.
        read: the clients whose messages, or whose sum, the estimate is of.
        labels_open: whether repetitions gave the same rows other labels.
    """

    view: str
    attack: str
    rounds: int
    found: Reconstruction
    explained: bool | None
    control: bool | None
    lacks: tuple[str, ...]
    leakage: float = math.nan
    error: float = math.nan
    labels_open: bool = False
    pooled_leakage: float = math.nan
    clients: int = 0
    read: frozenset[int] = frozenset()

    @property
    def bound(self) -> float:
        """Relative error that the messages' rounding may cause: the distance of the repetitions times `_CAUTION`."""
        return _CAUTION * self.error

    @property
    def whose(self) -> str:
        """Say whose data the estimate is of, where it is of several clients together; else empty."""
        if len(self.read) < 2:
            return ""
        return f" of {'all ' * (len(self.read) == self.clients)}{len(self.read)} clients together"

    @property
    def word(self) -> str:
        """The finding in a word.

        `recovered`; `recovered up to what is left open` (a sign or a shift that no message tells, see `open`);
        `recovered in part` (directions stay open); `explained, not determined` (the messages allow other
        estimates, further away than `SMALL`, or the error could not be measured); `other hyper-parameters` (the attack
        solves runs with those given, and not this one); `not solved`; `not checked`.
        """
        if self.explained is None:
            return UNCHECKED
        if self.explained:
            if not self.error <= SMALL:
                return UNDETERMINED
            # an attack without a linear system states rank 0 or 0 unknowns; its error alone decides
            full = self.found.rank >= self.found.unknowns or self.found.unknowns == 0 or self.found.rank == 0
            if full:
                return UP_TO if self.found.open or self.labels_open else RECOVERED
            # attacks that fit name their method, and call it "..., not proven" where another solution may fit as well
            return UNDETERMINED if "not proven" in str(self.found.diagnostics.get("method")) else OPEN_DIRECTIONS
        return OTHER_RUN if self.control else UNSOLVED

    @property
    def open(self) -> tuple[str, ...]:
        """Properties of the secret that a recovered estimate leaves open, however precise the messages are.

        Empty for every word but the three of a recovery.
        """
        if self.word not in (RECOVERED, UP_TO, OPEN_DIRECTIONS):
            return ()
        found, generic = self.found, []
        if found.secret == "samples" and len(found.value) > 1:
            generic.append(_ORDER)
        if found.secret in _OPEN:
            generic.append(_OPEN[found.secret])
        labels = ("the labels of the rows, which differ between repetitions",) if self.labels_open else ()
        return (*found.open, *generic, *labels)

    @property
    def draws(self) -> str:
        """A sentence on the batches or blocks that the client drew; empty if it drew none.

        An attack that simulates such a client states in `diagnostics["draws"]` that it found which rows each step took
        ("found", with `diagnostics["batches"]`), or a clause why it did not. Its simulated client then uses all rows in
        every step, which leaves a large residual whether the data are protected or not.
        """
        drawn = self.found.diagnostics.get("draws", "")
        if not drawn:
            return ""
        if drawn != "found":
            return f"The client draws batches, {drawn}; full ones stand in for them, so a residual is no protection."
        batches = self.found.diagnostics.get("batches", ())
        shown = "; ".join(" then ".join(_listed(step) for step in steps) for steps in batches[:_SHOWN])
        more = f"; and so on, {len(batches)} rounds in all" if len(batches) > _SHOWN else ""
        return f"Which rows each local step took was found with them (numbered as recovered): {shown}{more}."

    def __str__(self) -> str:
        found = self.found
        part = " in what is recovered" * (self.word == OPEN_DIRECTIONS)
        error = "" if math.isnan(self.error) else f", error up to {self.bound:.1e}{part}"
        known = "" if math.isnan(self.leakage) else f", leakage {self.leakage:.3f}"
        if not math.isnan(self.pooled_leakage):
            known = f", leakage {self.pooled_leakage:.3f} of all clients' data and {self.leakage:.3f} of the target's"
        lines = [
            f"{self.view}, {found.secret}{self.whose} by {self.attack} from {self.rounds} rounds: {self.word} "
            f"(residual {found.residual:.1e}, rank {found.rank} of {found.unknowns}{error}{known})"
        ]
        lines += [f"  left open: {what}" for what in self.open]
        lines += [f"  {line}" for line in (*self.lacks, self.draws) if line]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Convert all but the estimate itself to JSON values."""
        found = self.found
        values = {
            "view": self.view,
            "attack": self.attack,
            "secret": found.secret,
            "word": self.word,
            "left open": list(self.open),
            "rounds": self.rounds,
            "rank": found.rank,
            "unknowns": found.unknowns,
            "lacks": list(self.lacks),
            "draws": found.diagnostics.get("draws"),
            "batches": found.diagnostics.get("batches"),
            "residual": found.residual,
            "condition": found.condition,
            "leakage": self.leakage,
            "pooled leakage": self.pooled_leakage,
            "of": self.whose.removeprefix(" of ") or "the target",
            "error": self.bound,
        }
        return {name: finite_or_none(value) for name, value in values.items()}


def _listed(rows: Sequence[int]) -> str:
    return "+".join(map(str, rows))

"""What the attacks on one's own algorithm found, gathered over seeds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from securefed._auditing.misfit import offered
from securefed._auditing.statistics import (
    INCONCLUSIVE,
    NOT_DETECTED,
    RECONSTRUCTED,
    SIGHTED,
    Interval,
    Verdict,
    interval,
    verdict,
)
from securefed.attacks._base import Reconstruction
from securefed.attacks._generic import ClearRows, LowDigits, RegressRows

Secret = Literal["gram", "samples", "labels", "membership", "confirmation", "pooled gram", "pooled samples"]
GATED: Final[tuple[Secret, ...]] = ("gram", "samples", "labels", "membership", "pooled gram", "pooled samples")
"""What a gate looks at unless told otherwise: a guess of all of a client's data can be confirmed against any message
without noise, so `confirmation` asks for differential privacy and nothing less."""
SECRETS: Final[tuple[Secret, ...]] = (*GATED, "confirmation")
POOLED: Final[tuple[Secret, ...]] = ("pooled gram", "pooled samples")
"""The data of all clients together, which sums may give away where no client's show; asked of sums alone."""
_WHOLE: Final[tuple[Secret, ...]] = ("gram", "samples", "labels", *POOLED)
_BEYOND: Final = 10


@dataclass(frozen=True)
class OwnCell:
    """One attack on one view, over all seeds.

    Attributes:
        view, attack, secret: what saw what.      leakage, null: with their intervals; the null attacks shuffled rounds,
            or deals membership scores out at random.
        verdict: as everywhere in an audit, but at least `partial` where a client was reconstructed.
        error: mean relative error (NaN for membership).
        tpr: of membership, at a false positive rate of 1 % (NaN elsewhere).
        residual, rank, unknowns, condition: means, as the attack reported them (NaN or 0 where it reports none).
        explained: share of its runs in which the attack's estimate explains the messages; NaN for one that checks
            nothing. Where it is below 1 the search failed, and its silence says nothing about those runs.
        highest: largest leakage of a single run that chance does not reach.      client: the target of that run.
        part: a column or a row of some client's that was read, where not all of its rows were; empty elsewhere.
        asked: seeds of the audit; `leakage.seeds` of them could be attacked.
        derived: whether the attack seeks something else, from which this follows.
    """

    view: str
    attack: str
    secret: Secret
    leakage: Interval
    null: Interval
    verdict: Verdict
    error: float
    tpr: float
    residual: float
    rank: float
    unknowns: int
    condition: float
    explained: float = float("nan")
    highest: float = float("nan")
    client: int = 0
    asked: int = 0
    part: str = ""
    derived: bool = False

    @property
    def reconstructed(self) -> bool:
        """Whether some client was reconstructed in some run."""
        return self.secret in _WHOLE and self.highest >= RECONSTRUCTED

    @property
    def given_away(self) -> str:
        """Who or what was reconstructed in some run; empty where nothing was."""
        return self._whose if self.reconstructed else self.part

    @property
    def _whose(self) -> str:
        return "everybody's data" if self.secret in POOLED else f"client {self.client}"

    @property
    def sighted(self) -> bool:
        """Whether its silence means anything: it ran on most seeds, and explained the messages that it did not open."""
        return self.leakage.seeds >= SIGHTED * self.asked and not self.explained < SIGHTED

    @property
    def searches(self) -> bool:
        """Whether the attack looks for this secret wherever it may be.

        One that reads rows off looks for nothing that does not stand there. Regression sees all there is only where
        the clients' own draws leave nothing to fit.
        """
        reads = self.attack in (ClearRows.name, LowDigits.name)
        return not reads and (self.attack != RegressRows.name or self.explained >= SIGHTED)

    def __str__(self) -> str:
        found = f"{self.leakage.mean:5.2f} [{self.leakage.low:.2f}, {self.leakage.high:.2f}]"
        return f"{self.view:14} {self.secret:14} {self.attack:24} {found:20} {self.verdict.word}{self.remarks}"

    @property
    def remarks(self) -> str:
        """What the verdict's word leaves out, in brackets; empty where there is nothing."""
        said = []
        if self.verdict.word == NOT_DETECTED:
            power = f"a leak of {self.verdict.detectable:.2f} would have been"
            said.append("one seed: no power" if np.isnan(self.verdict.detectable) else power)
        if self.verdict.word == INCONCLUSIVE and not self.explained < SIGHTED:
            said.append("its results, or those of chance, scatter too much for any leak to be noticed")
        if self.leakage.seeds < self.asked:
            said.append(f"{self.leakage.seeds} of {self.asked} seeds")
        if self.explained < 1:
            said.append(f"explained {self.explained:.0%} of the runs, misfit {self.residual:.1e}")
        if self.reconstructed and self.leakage.mean < RECONSTRUCTED:
            said.append(f"{self._whose} was reconstructed: {self.highest:.2f}")
        elif self.part:
            said.append(f"{self.part} was read")
        return f" ({'; '.join(said)})" * bool(said)


@dataclass(frozen=True)
class OwnAttempt:
    """One attack on one run: leakage of client `target` (-1 for all together), and of the same attack on what says
    nothing about it; whether either estimate explains its messages (`None` where the attack checks nothing)."""

    target: int
    leak: float
    null: float
    error: float = float("nan")
    tpr: float = float("nan")
    found: Reconstruction | None = None
    explained: bool | None = None
    null_explained: bool | None = None
    part: tuple[float, str] = (-np.inf, "")
    derived: bool = False


def _told(leak: float, chance: float) -> bool:
    """Whether a run gave something away: known to a thousandth, and ten times better than from what says nothing."""
    return leak >= RECONSTRUCTED and 1 - chance >= _BEYOND * (1 - leak) and chance < RECONSTRUCTED


@dataclass
class Tally:
    """Attempts by view, attack and secret."""

    attempts: dict[tuple[str, str, Secret], list[OwnAttempt]] = field(default_factory=dict)
    skipped: dict[str, list[str]] = field(default_factory=dict)

    def add(self, key: tuple[str, str, Secret], attempt: OwnAttempt) -> None:
        self.attempts.setdefault(key, []).append(attempt)

    def skip(self, where: str, reason: str) -> None:
        self.skipped.setdefault(where, []).append(reason)

    def reasons(self, seeds: int) -> tuple[str, ...]:
        """Of each place the first one, for seeds differ in figures at most."""
        part = {where: f" ({len(all_)} of {seeds} seeds)" * (len(all_) < seeds) for where, all_ in self.skipped.items()}
        return tuple(f"{where}: {all_[0]}{part[where]}" for where, all_ in self.skipped.items())

    def cells(self, seeds: int) -> tuple[OwnCell, ...]:
        return tuple(self._cell(key, group, seeds) for key, group in self.attempts.items())

    def _cell(self, key: tuple[str, str, Secret], group: list[OwnAttempt], seeds: int) -> OwnCell:
        fitted = [a.explained for a in group]
        leaks, chance = offered(
            [a.leak for a in group], [a.null for a in group], fitted, [a.null_explained for a in group]
        )
        leak, null = interval(leaks), interval(chance)
        found = [a.found for a in group if a.found is not None]
        explained = _mean([float(known) for known in fitted if known is not None])
        whole = [a for a in group if key[2] in _WHOLE and _told(a.leak, a.null)]
        parts = [a for a in group if a.part[0] >= RECONSTRUCTED]
        top = max(whole or group, key=lambda attempt: attempt.leak)
        part = ""
        if parts and not whole:
            part = f"{parts[0].part[1]} of " + ("everybody" if key[2] in POOLED else f"client {parts[0].target}")
        highest = max([a.leak for a in whole] + [a.part[0] for a in parts], default=-np.inf)
        return OwnCell(
            *key,
            leak,
            null,
            verdict(leak, null, explained=explained, highest=highest),
            float(np.mean([a.error for a in group])),
            float(np.mean([a.tpr for a in group])),
            _mean([f.residual for f in found]),
            float(np.mean([f.rank for f in found])) if found else 0.0,
            found[0].unknowns if found else 0,
            _mean([f.condition for f in found]),
            explained,
            top.leak if whole else float("nan"),
            top.target,
            seeds,
            part,
            all(a.derived for a in group),
        )


def _mean(values: list[Any]) -> float:
    return float(np.mean(values)) if values else float("nan")

"""What an audit found about one algorithm, for a reader who knows no cryptography, and the smallest remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from securefed._auditing.attacking import CHANGING_SURVIVORS
from securefed._auditing.audit_cells import CLIENT, FEDERATION, NOT_COVERED, Cell, Report, Secret
from securefed._auditing.report_text import in_sentence, secret_words, short
from securefed._auditing.statistics import EXPOSED, FOUND, INCONCLUSIVE, NOT_DETECTED, SIGHTED

ALONE: Final = ("server", "sum only", CHANGING_SURVIVORS)
"""Views of the server alone, without any client or key holder beside it."""
ACCEPTABLE: Final = 0.1
PLAIN: Final = "plain"


@dataclass(frozen=True)
class Remedy:
    """A defence that keeps a leak under a level.

    Attributes:
        defense: its name.      leakage: upper end of the interval in its worst view of the server alone.
        bytes: traffic over that of plain messages.      utility: of its final model.      lost: plain's less this.
    """

    defense: str
    leakage: float
    bytes: float
    utility: float
    lost: float


def strongest(cells: Iterable[Cell]) -> dict[tuple[str, str, str, str], Cell]:
    """The cell that says most for each (algorithm, defence, view, secret), see `weight`."""
    out: dict[tuple[str, str, str, str], Cell] = {}
    for cell in cells:
        key = (cell.algorithm, cell.defense, cell.view, cell.secret)
        if key not in out or weight(cell) > weight(out[key]):
            out[key] = cell
    return out


def weight(cell: Cell) -> tuple[int, float]:
    """For comparison: what was found, by its mean leakage; then the silence of an attack that explains the messages;
    then that of one that failed, which is not made good by one that checks nothing."""
    if cell.verdict.word in FOUND:
        return 3, cell.leakage.mean
    if cell.verdict.word == INCONCLUSIVE:
        return 1, cell.leakage.mean
    return 0 if math.isnan(cell.explained) else 2, cell.leakage.mean


def worst(report: Report, algorithm: str, defense: str, secret: Secret) -> Cell | None:
    """The cell that leaks most to the server alone, of several views in which nothing was found an inconclusive one;
    `None` where nothing was attacked."""
    cells = [
        cell for cell in report.of(algorithm) if (cell.defense, cell.secret) == (defense, secret) and cell.view in ALONE
    ]
    seen = strongest(cells).values()
    return max(
        seen, key=lambda c: (c.verdict.word in FOUND, c.verdict.word == INCONCLUSIVE, c.leakage.mean), default=None
    )


def remedy(report: Report, algorithm: str, level: float, secrets: Sequence[Secret] = (CLIENT,)) -> Remedy | None:
    """The cheapest defence under which every named secret leaks at most `level` to the server alone.

    Every attack counts with the upper end of its interval. Cheapest: least utility lost (to a hundredth), then fewest
    bytes. `None` where no audited defence is shown to do it, for a view whose attacks all failed shows nothing, or
    where a secret was attacked under none.
    """
    found = []
    for defense in dict.fromkeys(cell.defense for cell in report.of(algorithm)):
        here = [c for c in report.of(algorithm) if c.defense == defense and c.view in ALONE]
        leaks = [cell.leakage.high for cell in here if cell.secret in secrets]
        open_ = [c for c in strongest(here).values() if c.secret in secrets and c.verdict.word == INCONCLUSIVE]
        if leaks and max(leaks) <= level and not open_:
            found.append(_remedy(report, here[0], max(leaks)))
    return min(found, key=lambda item: (round(max(item.lost, 0.0), 2), item.bytes), default=None)


def _remedy(report: Report, cell: Cell, leak: float) -> Remedy:
    plain = next((c for c in report.of(cell.algorithm) if c.defense == PLAIN), None)
    more = cell.bytes_per_client_round / plain.bytes_per_client_round if plain else math.nan
    lost = plain.utility - cell.utility if plain else math.nan
    return Remedy(cell.defense, leak, more, cell.utility, lost)


def finding(report: Report, algorithm: str) -> str:
    """What plain messages give away, and what the audited defences change: a sentence each."""
    return f"{_in_the_clear(report, algorithm)} {_defended(report, algorithm)}".strip()


def _in_the_clear(report: Report, algorithm: str) -> str:
    what = secret_words(report.settings[algorithm]["secret"])
    rounds = report.settings[algorithm]["rounds"]
    cell = worst(report, algorithm, PLAIN, CLIENT)
    if cell is None:
        return "Plain messages were not attacked in this audit."
    if cell.verdict.word == EXPOSED:
        return (
            f"Whoever runs the server of {short(algorithm)} can compute {what} from {rounds} rounds of plain messages "
            f"(in {cell.exposed_seeds} of {cell.leakage.seeds} runs to nine tenths or better, median error "
            f"{cell.error_median:.1g})."
        )
    if cell.verdict.word == NOT_DETECTED:
        return (
            f"From {rounds} rounds of plain messages of {short(algorithm)} no attack here learnt more about {what} "
            f"than could be guessed without them; {_power(cell)}."
        )
    if cell.verdict.word == INCONCLUSIVE:
        return (
            f"Whether {rounds} rounds of plain messages of {short(algorithm)} give away {what} is open: {why(cell)}, "
            "which says nothing about whether the data are safe."
        )
    some = ""
    if cell.exposed_seeds:
        some = f" (in {cell.exposed_seeds} of {cell.leakage.seeds} runs nine tenths or more)"
    return (
        f"From {rounds} rounds of plain messages of {short(algorithm)} the server comes {cell.leakage.mean:.0%} of the "
        f"way from a guess to {what}{some}."
    )


def why(cell: Cell) -> str:
    """Why a cell's silence is inconclusive."""
    if not cell.explained < SIGHTED:
        return "the results, or those of chance, scatter so much that no leak would have been noticed"
    where = "" if cell.explained == 0 else f" in {1 - cell.explained:.0%} of the runs"
    return f"the attack did not fit the messages{where}, with a misfit of {cell.residual:.1g}"


def _defended(report: Report, algorithm: str) -> str:
    """One sentence for all defences that come to the same."""
    alike: dict[str, list[str]] = {}
    for defense in dict.fromkeys(cell.defense for cell in report.of(algorithm)):
        effect = "" if defense == PLAIN else _effect(report, algorithm, defense)
        if effect:
            seen = [cell for cell in report.of(algorithm) if cell.defense == defense and cell.view in ALONE]
            early = any(cell.epsilon == NOT_COVERED for cell in seen)
            aside = "where the server sees the sums before the noise, " if early else ""
            alike.setdefault(aside + effect, []).append(in_sentence(defense))
    return " ".join(f"Under {_listed(names)}, {effect}." for effect, names in alike.items())


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _effect(report: Report, algorithm: str, defense: str) -> str:
    one, all_ = (worst(report, algorithm, defense, secret) for secret in (CLIENT, FEDERATION))
    cell = one or all_
    if cell is None:
        return ""
    client, pooled = "one client's data", "everybody's pooled data"
    words = [_leaks(one, client)] if one is not None else []
    if all_ is not None and (one is None or all_.verdict.word in FOUND):
        words.append(_leaks(all_, pooled))
    if words == [_leaks(cell, client), _leaks(cell, pooled)]:
        words = [_leaks(cell, f"{client} and {pooled}")]
    plain = worst(report, algorithm, PLAIN, CLIENT)
    cost = ""
    if plain is not None and plain.utility - cell.utility >= 0.01:
        measure = report.settings[algorithm]["utility"]
        cost = f", at the price of {measure}: {cell.utility:.2f} and not {plain.utility:.2f}"
    return " and ".join(words) + cost


def _leaks(cell: Cell, whose: str) -> str:
    how = " from sums over different sets of clients" if cell.view == CHANGING_SURVIVORS else ""
    if cell.verdict.word == NOT_DETECTED:
        return f"the attacks here learnt nothing of {whose}"
    if cell.verdict.word == INCONCLUSIVE:
        return f"it is open whether {whose} leak ({why(cell)})"
    if cell.verdict.word == EXPOSED:
        return f"{whose} can still be computed{how}"
    return f"the server still comes {cell.leakage.mean:.0%} of the way to {whose}{how}"


def _power(cell: Cell) -> str:
    if math.isnan(cell.verdict.detectable):
        return "one run alone does not say how small a leak would have been noticed"
    checked = " by an attack that checks nothing against the messages" if math.isnan(cell.explained) else ""
    return f"a leak of {cell.verdict.detectable:.0%} would have been noticed{checked}"

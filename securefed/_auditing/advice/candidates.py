"""The settings that an advice tries: a defence, its parameters, and the sizes of the federation under it.

`securefed advise` looks for settings under which an algorithm leaks little and is still useful. Its `search` tries the
`candidates` one by one, and prints the command to `paste` of each.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from securefed._auditing.engine.allowed_views import default_threshold
from securefed._auditing.engine.defense_names import DDP, PLAIN, SECURE_AGGREGATION
from securefed._auditing.registered.audited_defenses import noise_words, sums_words
from securefed.datasets._tables.table_format import TableFormat

EPSILONS: Final = (1.0, 8.0, 64.0)
"""Promises that are tried: strong, customary, and one that only hides from weak attacks."""
ROWS: Final = (4, 16)
"""Factors by which the rows a client are tried; a sum over more rows says less of each."""
RING: Final = 12
"""Bits of a number in a message of lower precision, instead of 32 or 64."""
CLIPS: Final = (1.0, 0.25)
"""Clipping norms under noise, in units of the median norm of the contributions of a run in the clear."""


@dataclass(frozen=True)
class Candidate:
    """One setting to try.

    Attributes:
        defense: `plain`, `secure_aggregation` or `ddp`.
        clients: number of clients in a round, those that collude included.
        rows: rows of a client; `None` leaves the split of the rows as it is.
        rounds: number of training rounds.
        threshold: fewest clients over which a sum opens.
        colluding: clients that tell the server all they know.
        ring: bits of a number in a message; `None` for the algorithm's own.
        epsilon: promise of the noise for all rounds; `None` without noise.
        clip: clipping norm in units of the median norm of contributions.
    """

    defense: str
    clients: int
    rows: int | None
    rounds: int
    threshold: int = 1
    colluding: int = 0
    ring: int | None = None
    epsilon: float | None = None
    clip: float = 1.0

    @property
    def members(self) -> int:
        """Number of honest clients in the smallest sum that the server can see."""
        return 1 if self.defense == PLAIN else self.threshold - self.colluding

    def words(self, norm: float) -> str:
        """Describe the defence with its parameters; `norm` is the clipping norm."""
        if self.defense == PLAIN:
            return "no defence"
        precision = "" if self.ring is None else f", {self.ring} bits a number"
        if self.epsilon is None:
            return sums_words(self.threshold, self.clients, precision)
        return noise_words(self.epsilon, norm, self.threshold, self.clients, precision)


def candidates(
    clients: int, rows: int | None, rounds: int, most_rows: int, colluding: int = 0, fineness: int = 1
) -> tuple[Candidate, ...]:
    """List the settings to try, the simplest first.

    Args:
        clients: number of clients in a round, those that collude included.
        rows: rows a client that the user plans; `None` if the split does not give all clients the same number.
        rounds: number of training rounds that the user plans.
        most_rows: rows a client that the data suffice for; 0 if the number cannot be chosen.
        colluding: clients that tell the server all they know.
        fineness: 2 halves the steps between epsilons, rows, rounds and thresholds.
    """
    base = Candidate(PLAIN, clients, rows, rounds)
    # the smallest threshold t at which any two sums share an honest client, 2 (t - colluding) > clients - colluding
    loose, strict = default_threshold(clients + colluding), clients
    sums = replace(base, defense=SECURE_AGGREGATION, threshold=strict, colluding=colluding)
    out = [base, replace(sums, threshold=min(loose, clients)), sums]
    if fineness > 1:
        out.append(replace(sums, threshold=(loose + strict + 1) // 2))
    out += [replace(sums, rounds=count) for count in _rounds(rounds, fineness)]
    larger = [rows * factor for factor in _between(ROWS, fineness) if rows and rows * factor <= most_rows]
    out += [replace(sums, rows=int(count)) for count in larger]
    out += [replace(sums, rows=int(larger[-1]), rounds=1)] if larger else []
    out.append(replace(sums, ring=RING))
    noised = replace(sums, defense=DDP)
    for epsilon in _between(EPSILONS, fineness):
        out += [replace(noised, epsilon=epsilon, clip=clip) for clip in CLIPS]
    out += [replace(noised, epsilon=EPSILONS[1], rows=int(count)) for count in larger]
    out += [replace(noised, epsilon=EPSILONS[1], rounds=count) for count in _rounds(rounds, fineness)]
    return tuple(dict.fromkeys(out))


def _rounds(rounds: int, fineness: int) -> Iterator[int]:
    """Yield fewer rounds than the user's: half and one, or also three quarters and a quarter."""
    quarters = (2,) if fineness == 1 else (3, 2, 1)
    counts = {1} | {max(rounds * share // 4, 1) for share in quarters}
    yield from sorted((count for count in counts if count < rounds), reverse=True)


def _between(values: tuple[Any, ...], fineness: int) -> list[Any]:
    """Return the values, and at fineness 2 the geometric means of neighbours too."""
    means = [(a * b) ** 0.5 for a, b in pairwise(values)] if fineness > 1 else []
    return sorted([*values, *means])


def data_options(
    data: str, owner_column: str = "", label_column: str = "", standardise: bool = False,
    form: TableFormat | None = None,
) -> str:  # fmt: skip
    """Write the options by which `securefed run` and `securefed advise` read the same rows."""
    named = {"--data": data, "--owner-column": owner_column, "--label-column": label_column}
    parts = [f"{option} {shlex.quote(value)}" for option, value in named.items() if value]
    return " ".join([*parts, *(form.command_options() if form else ()), *(["--standardise"] if standardise else [])])


def command(algorithm: str, candidate: Candidate, options: str, settings: Mapping[str, Any]) -> str:
    """Write the command that trains at a candidate's sizes, without its defence.

    Args:
        algorithm: its name.
        candidate: the setting.
        options: what names the data (`data_options`). The run takes all their rows, as `securefed run` has no option
            for rows a client. Where the candidate was tried with fewer, each sum of the run is over more rows.
        settings: the algorithm's hyper-parameters.
    """
    parts = [f"securefed run {algorithm}", options, f"--clients {candidate.clients}", f"--rounds {candidate.rounds}"]
    return " ".join([*parts, *(f"--set {shlex.quote(f'{name}={_text(value)}')}" for name, value in settings.items())])


def paste(
    algorithm: str, candidate: Candidate, options: str, settings: Mapping[str, Any], norm: float, multiplier: float
) -> str:
    """Write the command that trains under a candidate.

    Only the noise is told how many clients collude: they know their own shares of it, so that the honest survivors'
    shares must suffice. Secure aggregation has no such setting; it reckons with them by its threshold (`candidates`).

    Args:
        algorithm: its name.
        candidate: the setting.
        options: what names the data (`data_options`).
        settings: the algorithm's hyper-parameters.
        norm: clipping norm.
        multiplier: noise multiplier.
    """
    parts = [command(algorithm, candidate, options, settings)]
    if candidate.defense == PLAIN:
        return parts[0]
    own: dict[str, Any] = {"threshold": candidate.threshold}
    if candidate.ring is not None:
        own["ring"] = candidate.ring
    if candidate.epsilon is not None:
        own |= {"clip_norm": norm, "noise_multiplier": multiplier, "colluding": candidate.colluding}
    parts.append(f"--defense {candidate.defense}")
    return " ".join([*parts, *(f"--defense-set {name}={_text(value)}" for name, value in own.items())])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(float(f"{value:.6g}") if isinstance(value, float) else value)

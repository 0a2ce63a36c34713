"""Make the tables of docs/attacks-active.md from the cells of `benchmarks.pages.active`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

HEAD = (
    "| attack | model | clients x rows | what the server sees | rounds | rows recovered | called single: right |\n"
    "|---|---|---|---|---|---|---|"
)
SIGNS = (
    "| attack | model | alike, chosen | honest | change, chosen | honest | largest entry, chosen | honest |\n"
    "|---|---|---|---|---|---|---|---|"
)


GROUPS = (
    "| model | clients x rows | noise | adjusted Rand index | sum explained | clients simulated |\n"
    "|---|---|---|---|---|---|"
)

DISTANCES = "| clients | columns | seeds | rounds | leakage, chosen | leakage, honest |\n|---|---|---|---|---|---|"

CONVOLUTIONS = (
    "| attack | clients x pictures | what the server sees | pooled pictures read | full pictures read "
    "| called single: right |\n"
    "|---|---|---|---|---|---|"
)


def rows_read(cells: Iterable[Any], groups: Iterable[Any], stored: Mapping[str, Any]) -> str:
    """Return the tables of rows and groups; cells that are not measured are left out."""
    known = [(cell, stored[cell.name]["seeds"]) for cell in cells if cell.name in stored]
    noised = [pair for pair in known if pair[0].defence.startswith("clip")]
    plain = [pair for pair in known if pair not in noised]
    parts = [
        "### Rows recovered",
        HEAD,
        *(_row(cell, seeds) for cell, seeds in plain),
        "",
        "### Under clipping and noise",
        HEAD,
        *(_row(cell, seeds) for cell, seeds in noised),
        "",
        "### What a client can see",
        SIGNS,
        *_signs(plain),
        "",
        "### Whose row",
        GROUPS,
        *(_group(cell, stored[cell.name]["seeds"]) for cell in groups if cell.name in stored),
    ]
    return "\n".join(parts) + "\n"


def distances(cells: Iterable[Any], stored: Mapping[str, Any]) -> str:
    """Return the table of clients' distances behind sums; cells that are not measured are left out."""
    known = [(cell, stored[cell.name]["seeds"]) for cell in cells if cell.name in stored]
    return "\n".join([DISTANCES, *(_distances(cell, seeds) for cell, seeds in known)]) + "\n"


def convolutions(cells: Iterable[Any], stored: Mapping[str, Any]) -> str:
    """Return the table of pictures behind convolutions; cells that are not measured are left out."""
    known = [(cell, stored[cell.name]["seeds"]) for cell in cells if cell.name in stored]
    return "\n".join([CONVOLUTIONS, *(_convolution(cell, seeds) for cell, seeds in known)]) + "\n"


def _row(cell: Any, seeds: Sequence[Mapping[str, Any]]) -> str:
    """Write one row: median and range over seeds."""
    shares = [seed["share"] for seed in seeds if "share" in seed]
    right = [seed["right"] for seed in seeds if seed.get("right") is not None]
    refused = sum(bool(seed["refused"]) for seed in seeds)
    share = ", ".join(
        [*([_spread(shares, ".0%")] if shares else []), *([f"refused in {refused} of {len(seeds)}"] if refused else [])]
    )
    rounds = f"{median(seed['rounds'] for seed in seeds):.0f}"
    words = (_attack(cell), _model(cell), f"{cell.clients} x {cell.rows}", cell.defence)
    return f"| {' | '.join(words)} | {rounds} | {share} | {_spread(right, '.0%') if right else 'none'} |"


def _attack(cell: Any) -> str:
    return str(cell.attack.name.split("/")[1].replace("_", " ")) + ", brightness known" * cell.informed


def _model(cell: Any) -> str:
    steps, anchor = cell.settings["local_steps"], cell.settings.get("anchor", "")
    inserted = f" behind {cell.bins} bins" * bool(cell.bins) + f", {cell.channels} channels" * bool(cell.channels)
    data = f", {cell.data}" * (cell.data != "digits")
    model = f"{cell.problem}{inserted}{data}, {cell.method.__name__}, {steps} step{'s' * (steps != 1)}"
    return model + f", {anchor} anchor" * bool(anchor)


def _spread(values: Sequence[float], form: str) -> str:
    """Format the median, with the range where it has one."""
    low, middle, high = (f"{value:{form}}" for value in (min(values), median(values), max(values)))
    return middle if low == high else f"{middle} [{low}, {high}]"


def _signs(known: Sequence[tuple[Any, Sequence[Mapping[str, Any]]]]) -> Iterable[str]:
    """Write one row for each attack and model."""
    seen = set()
    for cell, seeds in known:
        key = (_attack(cell), _model(cell))
        if key in seen or cell.clients != 8:
            continue
        seen.add(key)
        numbers = ("alike", "usual alike", "change", "usual change", "largest", "usual largest")
        columns = [[seed[name] for seed in seeds if seed[name] is not None] for name in numbers]
        texts = [f"{float(f'{median(values):.2g}'):g}" if values else "from zeros" for values in columns]
        yield f"| {' | '.join([*key, *texts])} |"


def _distances(cell: Any, seeds: Sequence[Mapping[str, Any]]) -> str:
    """Write one row: median and range over seeds."""
    rounds = _spread([seed["rounds"] for seed in seeds], ".0f")
    values = ([seed[name] for seed in seeds if seed[name] is not None] for name in ("chosen", "honest"))
    chosen, honest = (_spread(known, ".2f") for known in values)
    return f"| {cell.clients} | {cell.features} | {len(seeds)} | {rounds} | {chosen} | {honest} |"


def _group(cell: Any, seeds: Sequence[Mapping[str, Any]]) -> str:
    """Write one row of the table of groups."""
    noise = "none" if cell.noise is None else f"clip 1, {cell.noise:g}"
    solved = f"{sum(seed['solved'] for seed in seeds)} of {len(seeds)}"
    agreement = _spread([seed["agreement"] for seed in seeds], ".2f")
    simulated = f"{median(seed['simulations'] for seed in seeds):.0f}"
    return f"| {cell.problem} | {cell.clients} x {cell.rows} | {noise} | {agreement} | {solved} | {simulated} |"


def _convolution(cell: Any, seeds: Sequence[Mapping[str, Any]]) -> str:
    """Write one row of the table of convolutions."""
    read = [seed for seed in seeds if "pooled" in seed]
    right = [seed["right"] for seed in read if seed["right"] is not None]
    shares = [_spread([seed[name] for seed in read], ".0%") for name in ("pooled", "pictures") if read]
    shares = shares or [f"refused in {len(seeds)} of {len(seeds)}", "none"]
    attack = "client kernels" if cell.kernels else "trap weights"
    size = f"{cell.clients} x {cell.rows}"
    columns = [attack, size, cell.defence, *shares, _spread(right, ".0%") if right else "none"]
    return f"| {' | '.join(columns)} |"

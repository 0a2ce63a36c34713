"""Show an advice: its sentences, what to paste, and the settings tried, as a plot of leak by utility and as rows.

An advice searched defences and sizes for settings that keep a leak acceptable (`advice.search`). A setting is one
defence at one number of clients, rows and rounds. It holds if the upper end of the interval of its leak is at most the
acceptable leak, and a larger leak would have shown; it is usable if it keeps enough of the utility without a defence
(`Advice.keep`). The page's first screen shows the block that `advice_block` makes.
"""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from securefed._auditing.advice.advice_values import Advice, Setting
from securefed._auditing.advice.advised_words import (
    FAILED,
    UNKNOWN,
    answers,
    explained_words,
    leak_words,
    noise_words,
    record_rows,
    utility_words,
)
from securefed._auditing.report.charts import HALVES
from securefed._auditing.report.plot import Plot, figure
from securefed._auditing.report.report_words import figure as number
from securefed._auditing.report.report_words import short


def advice_block(advice: Advice) -> dict[str, Any]:
    """Collect what the first screen shows of one advice, by the names that the template uses.

    There are up to three answers, each in a few sentences (`words`) and with a command (`paste`): the setting advised,
    the one advised to hide single rows of a client, and, where no setting can be advised, the nearest to one.
    """
    best = advice.frontier  # the settings that no other one beats in leak, utility, bytes and epsilon at once
    shown = sorted(advice.tried, key=lambda setting: (setting != advice.advised, setting not in best))
    notes = [*(setting.note for setting in shown), *(setting.note for setting in advice.records)]
    return {
        "title": short(advice.algorithm),
        "answers": answers(advice),
        "records": record_rows(advice),
        "chart": Markup(_frontier(advice, shown)),  # noqa: S704 - the chart escapes its text
        "rows": [_row(index, setting, advice) for index, setting in enumerate(shown, 1)],
        "view": advice.view,
        "acceptable": f"{advice.acceptable:g}",
        "keep": f"{advice.keep:.0%}",
        "explained": f"{noise_words(advice, '“no”')} {explained_words(shown).replace('`', '')}".strip(),
        "notes": [f"{note[0].upper()}{note[1:].removesuffix('.')}." for note in dict.fromkeys(notes) if note],
    }


def _row(index: int, setting: Setting, advice: Advice) -> dict[str, str]:
    leak, bound, seen = leak_words(setting)
    usable = "yes" if setting.usable else f"from {setting.usable_from} clients" if setting.usable_from else "no"
    return {
        "number": str(index),
        "css": "advised" if setting == advice.advised else "",
        "defense": setting.defense,
        "sizes": f"{setting.clients} clients, {setting.rows_per_client} rows, {setting.rounds} rounds",
        "leak": leak,
        "upper": "" if bound in (UNKNOWN, FAILED) else f"up to {bound}",
        "seen": "" if leak in (UNKNOWN, FAILED) else f"seen from {seen}",
        "holds": "yes" if setting.holds else "no",
        "epsilon": number(setting.epsilon, ".3g"),
        "utility": utility_words(setting),
        "unprotected": number(setting.utility_clear, ".2f"),
        "usable": usable,
        "bytes": number(setting.bytes_up, ",.0f"),
        "seconds": number(setting.seconds_per_round, ".3g"),
    }


def _frontier(advice: Advice, shown: list[Setting]) -> str:
    """Draw leak against utility: filled where no other setting beats it, ringed where it is advised."""
    known = [(index, s) for index, s in enumerate(shown, 1) if math.isfinite(s.leak_upper) and math.isfinite(s.utility)]
    if not known:
        return ""
    top = max(1.0, *(setting.utility for _, setting in known))
    low = min(0.0, *(setting.utility for _, setting in known))
    held = [setting for _, setting in known if setting.holds]
    label = (
        f"Leak against utility of {len(known)} settings; {len(held)} hold a leak of {advice.acceptable:g} or less. "
        "The table below lists them."
    )
    plot = Plot(label, (0, 1), (math.floor(low), math.ceil(top)))
    heights = [math.floor(low) + share * (math.ceil(top) - math.floor(low)) for share in HALVES]
    plot.rows((value, f"{value:g}") for value in heights)
    plot.columns(((tick, f"{tick:g}") for tick in HALVES), "leak, upper end of its interval")
    plot.band([0, advice.acceptable], [heights[0]] * 2, [heights[-1]] * 2, "var(--better)")  # shades accepted leaks
    best = advice.frontier
    for index, setting in known:
        colour = "var(--better)" if setting.holds else "var(--worse)"
        fill = colour if setting in best else "var(--paper)"
        words = f"{index}: {setting.defense}, {setting.clients} clients"
        if setting == advice.advised:
            plot.circle(setting.leak_upper, setting.utility, 9, f"fill:none;stroke:{colour};stroke-width:2")
        plot.circle(setting.leak_upper, setting.utility, 5, f"fill:{fill};stroke:{colour};stroke-width:1.5", words)
        if setting in best or setting == advice.advised:
            plot.words(setting.leak_upper, setting.utility, str(index))
    note = (
        f"Up: the model's utility. Across: the leak. Upper left is best. Shaded: accepted ({advice.acceptable:g} or "
        "less). Filled: no other setting is better in everything. Numbers: rows of the table."
    )
    return figure("Leak against utility", note, plot)

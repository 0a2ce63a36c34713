"""Colours and marks of the four verdicts, one palette for the pages and the terminal.

Lightness orders the verdicts too, and each has a mark, so that no reader needs to tell red from green. Every pair of
ink and ground has a contrast of at least 4.5 (WCAG 2.2, level AA); `tests/auditing/test_palette.py` computes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from securefed._auditing.engine.statistics import EXPOSED, INCONCLUSIVE, NOT_DETECTED, PARTIAL


@dataclass(frozen=True)
class Tone:
    """How one verdict looks.

    Attributes:
        name: the name of its style class.
        words: the verdict on a first screen, for a reader who knows no statistics.
        mark: a character that tells it without colour.
        light: (ground, ink on that ground, word on the page) on a light page.
        dark: the same on a dark page.
        terminal: colour in a terminal, of medium lightness so that it shows on black and on white.
    """

    name: str
    words: str
    mark: str
    light: tuple[str, str, str]
    dark: tuple[str, str, str]
    terminal: str


TONES: Final[Mapping[str, Tone]] = {
    EXPOSED: Tone(
        "exposed",
        "exposed",
        "●",
        ("#a81f1e", "#ffffff", "#9b1c1c"),
        ("#c9372f", "#ffffff", "#ff958c"),
        "#d9483f",
    ),
    PARTIAL: Tone(
        "partial",
        "partly exposed",
        "◐",
        ("#f6c588", "#3b2100", "#8a5200"),
        ("#875208", "#ffffff", "#f0b35c"),
        "#b5771a",
    ),
    INCONCLUSIVE: Tone(
        "unsure",
        "not known",
        "?",
        ("#e9edf1", "#1c2430", "#55606f"),
        ("#2f3843", "#e6eaf0", "#aab4c0"),
        "#7d8794",
    ),
    NOT_DETECTED: Tone(
        "quiet",
        "no leak found",
        "○",
        ("#e3f2ea", "#0d4428", "#14693f"),
        ("#17392a", "#cdf2dd", "#74d6a9"),
        "#2b9563",
    ),
}
"""By verdict, from the worst to the best; what is not known counts as worse than what was looked for and not found."""
COLOURS: Final = {
    "ink": ("#1c2430", "#e6eaf0"),
    "soft": ("#55606f", "#a9b3bf"),
    "line": ("#d5dbe2", "#39434f"),
    "paper": ("#ffffff", "#1a2027"),
    "wash": ("#f3f5f8", "#11161b"),
    "accent": ("#1b57b0", "#86b4ff"),
    "truth": ("#55606f", "#a9b3bf"),
    "better": ("#14693f", "#74d6a9"),
    "worse": ("#a81f1e", "#ff958c"),
    "series-0": ("#a81f1e", "#ff958c"),
    "series-1": ("#1b57b0", "#86b4ff"),
    "series-2": ("#14693f", "#74d6a9"),
    "series-3": ("#5b3fa8", "#b9a3f5"),
    "series-4": ("#8a5200", "#f0b35c"),
    "series-5": ("#0b6975", "#6bd0de"),
    "series-6": ("#a0387f", "#f09bd2"),
    "series-7": ("#55606f", "#a9b3bf"),
}
"""Colours of a light and of a dark page; `series-K` are those of a chart's lines."""
SERIES: Final = sum(name.startswith("series-") for name in COLOURS)
"""Number of colours of lines, after which they repeat."""


def tone(verdict: str | None) -> Tone:
    """Return how a verdict looks; words that are no verdict look like what is not known."""
    return TONES.get(verdict or "", TONES[INCONCLUSIVE])


def style_sheet() -> str:
    """Write the palette as custom properties of CSS, for light and dark pages; print is always light."""
    colours = {f"--{name}": pair for name, pair in COLOURS.items()}
    for tone in TONES.values():
        names = (f"--{tone.name}-{part}" for part in ("ground", "ink", "word"))
        colours |= dict(zip(names, zip(tone.light, tone.dark, strict=True), strict=True))
    light, dark = ("".join(f"{name}: {pair[page]}; " for name, pair in colours.items()) for page in (0, 1))
    classes = "".join(
        f".{tone.name} {{ background-color: var(--{tone.name}-ground); color: var(--{tone.name}-ink); }}\n"
        f".word.{tone.name} {{ background: none; color: var(--{tone.name}-word); font-weight: 600; }}\n"
        for tone in TONES.values()
    )
    return (
        f":root {{ color-scheme: light dark; {light}}}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{classes}"
    )

"""Every verdict can be read on its ground, on light and dark pages, and verdicts differ without their colour."""

from __future__ import annotations

import re

import pytest

from securefed._auditing.engine.statistics import EXPOSED, INCONCLUSIVE, NOT_DETECTED, PARTIAL
from securefed._auditing.report.palette import COLOURS, SERIES, TONES, style_sheet, tone

READABLE = 4.5  # WCAG 2.2, success criterion 1.4.3, level AA
LIGHT, DARK = ({name: pair[page] for name, pair in COLOURS.items()} for page in (0, 1))
SEEN = 3.0  # WCAG 2.2, success criterion 1.4.11: lines of a chart


def luminance(code: str) -> float:
    """Compute the relative luminance of WCAG 2.2."""
    values = [int(code[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_black_on_white_has_the_contrast_of_the_standard_and_grey_on_grey_none() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#777777") == 1
    assert contrast("#ffffff", "#e56d43") < READABLE  # the ink that an earlier page had on its partial leaks


@pytest.mark.parametrize("word", list(TONES))
@pytest.mark.parametrize(("side", "page"), [("light", LIGHT), ("dark", DARK)])
def test_the_words_of_a_verdict_can_be_read(word: str, side: str, page: dict[str, str]) -> None:
    ground, ink, text = getattr(TONES[word], side)
    assert contrast(ink, ground) >= READABLE
    for behind in ("paper", "wash"):
        assert contrast(text, page[behind]) >= READABLE


@pytest.mark.parametrize("page", [LIGHT, DARK])
def test_text_and_lines_of_a_page_can_be_seen(page: dict[str, str]) -> None:
    for behind in ("paper", "wash"):
        assert all(
            contrast(page[name], page[behind]) >= READABLE for name in ("ink", "soft", "accent", "better", "worse")
        )
        assert all(contrast(page[f"series-{index}"], page[behind]) >= SEEN for index in range(SERIES))


def test_verdicts_differ_by_mark_and_lightness_too() -> None:
    assert len({look.mark for look in TONES.values()}) == len(TONES)
    for side in ("light", "dark"):
        grounds = [luminance(getattr(TONES[word], side)[0]) for word in (EXPOSED, PARTIAL, NOT_DETECTED)]
        assert grounds == sorted(grounds, reverse=side == "dark")
    assert all(contrast(look.terminal, ground) >= SEEN for look in TONES.values() for ground in ("#000000", "#ffffff"))


def test_a_dark_page_names_every_colour_of_a_light_one_and_print_is_light() -> None:
    css = style_sheet()
    assert "@media screen and (prefers-color-scheme: dark)" in css
    light, dark = (set(re.findall(r"(--[\w-]+):", part)) for part in css.split("@media"))
    assert light == dark
    assert tone("no verdict") == TONES[INCONCLUSIVE]

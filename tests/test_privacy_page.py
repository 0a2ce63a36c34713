"""Every sentence of the page on privacy points to a test that exists, or says that it is assumed."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from securefed.defenses import _differential_privacy as differential_privacy
from tests.test_threat_model import faults, items

_TEXT = (Path(__file__).parent.parent / "docs" / "privacy.md").read_text()
PAGE, MEASURED, _ = _TEXT.partition("\n## How it is checked")
NO_MECHANISMS = {"calibrate", "epsilon_of", "sensitivity"}


def test_every_sentence_points_to_a_test_that_exists_or_is_assumed() -> None:
    assert len(items(PAGE)) > 45
    assert faults(PAGE) == []
    assert MEASURED  # the last section, of tables


def test_every_exported_mechanism_has_its_section() -> None:
    exported = {n for n in differential_privacy.__all__ if inspect.isfunction(getattr(differential_privacy, n))}
    named = set(re.findall(r"`(\w+)`", " ".join(line for line in PAGE.splitlines() if line.startswith("## "))))
    assert exported - NO_MECHANISMS <= named
    assert {"FixedSizeSampling", "PrivateFedAvg", "record_level"} <= named


@pytest.mark.parametrize("section", PAGE.split("\n## ")[1:], ids=lambda section: section.splitlines()[0])
def test_every_section_says_what_is_claimed_and_what_is_not(section: str) -> None:
    parts = ["Claimed", "Not claimed"] + ([] if section.startswith("Clips") else ["Neighbours"])
    assert all(f"\n**{part}**\n" in section for part in parts)

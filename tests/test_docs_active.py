"""Every active attack stands on the page of active attacks."""

from __future__ import annotations

from pathlib import Path

from securefed.attacks import active_attacks

PAGE = (Path(__file__).parents[1] / "docs" / "attacks-active.md").read_text()


def test_every_active_attack_stands_on_the_page() -> None:
    assert all(f"`{entry.name}`" in PAGE for entry in active_attacks)

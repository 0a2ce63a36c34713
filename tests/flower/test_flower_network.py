"""The trial of docs/flower.md over TLS with node authentication; the others take minutes and are run by hand."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.peers.flower_network import TRIALS, Network, tls

PAGE = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()


def test_the_page_describes_every_trial() -> None:
    assert set(re.findall(r"\(trial `(\w+)`\)", PAGE)) == set(TRIALS)


@pytest.mark.exhaustive
def test_rounds_over_tls_with_registered_supernodes_alone(tmp_path: Path) -> None:
    with ExitStack() as stack:
        found = tls(Network(tmp_path, stack), 500.0)
    assert [entry["survivors"] for entry in found["rounds"]] == [3, 3]
    assert [entry["exchanges"] for entry in found["rounds"]] == [4, 2]
    assert [entry["w"] for entry in found["rounds"]] == pytest.approx([1.0, 2.0], abs=1e-5)
    assert "Failed to activate SuperNode" in found["said"]["an unregistered key"]
    assert "TLS is not enabled" in found["said"]["no TLS"]
    assert "could not establish a connection" in found["said"]["another authority"]

"""The app of `make flower-demo`, plain and secured, and the lines and the file that docs/flower.md shows."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from examples.flower_demo.__main__ import HERE, changed_lines, read, table
from securefed import DataUsage, Ledger, Limits, Seal
from securefed.defenses import new_identity, public_identity
from securefed.flower import SitePolicy
from tests.flower.grid import LocalGrid, Node

PAGE = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()


def app(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"flower_demo_{name}", HERE / name / "app.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def played(name: str, out: Path) -> list[dict[str, Any]]:
    """Run the app in this process."""
    module = app(name)
    config = {"sites": 3, "rounds": 2, "timeout": 0.2, "fraction-evaluate": 1.0, "out": str(out)}
    grid = LocalGrid({number: Node(module.client, {"partition-id": number}) for number in range(3)})
    for node in grid.nodes.values():
        node.begin(config)
    context = Node(module.client, {}).context
    context.run_config = config
    random.seed(0)
    module.server(grid, context)
    assert not grid.errors
    return read(out)


@pytest.mark.exhaustive
def test_the_secured_app_learns_what_the_plain_one_does(tmp_path: Path) -> None:
    """A network with batch norm, trained by Adam: what Flower averages in float32, the sum averages more exactly."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    plain, secured = played("plain", tmp_path / "plain.json"), played("secured", tmp_path / "secured.json")
    torch.set_num_threads(threads)
    assert [entry["round"] for entry in secured] == [0, 1, 2]
    np.testing.assert_allclose([e["loss"] for e in secured][:2], [e["loss"] for e in plain][:2], rtol=1e-6)
    # Adam makes a step of full size from the rounding of a gradient that is zero, as a bias before batch norm has: two
    # plain runs whose replies are added in another order differ by 1.1e-3 here too
    assert secured[2]["loss"] == pytest.approx(plain[2]["loss"], rel=5e-3)
    assert plain[-1]["accuracy"] > plain[0]["accuracy"]
    assert table(plain, secured).count("\n") == 2


def test_four_lines_differ_and_the_page_shows_them() -> None:
    lines = [line.strip() for line in changed_lines()]
    assert len(lines) == 4
    shown, _ = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)
    assert [line[1:] for line in shown.splitlines() if line.startswith("+")] == lines
    plain = (HERE / "plain" / "app.py").read_text().splitlines()
    assert [line[1:] for line in shown.splitlines() if line.startswith("-")] == [
        line for line in plain if line not in (HERE / "secured" / "app.py").read_text().splitlines()
    ]


def test_the_site_file_of_the_page(tmp_path: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    key = new_identity()
    (tmp_path / "own.identity").write_bytes(key)
    Seal.from_file(tmp_path / "seal.key")
    Ledger.create(tmp_path / "data.ledger", Limits(exchanges=2000), spent=DataUsage())
    (tmp_path / "site.toml").write_text(text.replace('# 0 = "..."', f'0 = "{public_identity(key).hex()}"'))
    site = SitePolicy.load(tmp_path / "site.toml")
    assert (site.least, site.party, site.identity) == (3, 0, key)
    assert site.ledger is not None and site.seal is not None and site.folder == tmp_path / "states"


def test_a_log_that_is_not_there_or_half_written_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "log.json") == []
    (tmp_path / "log.json").write_text('[{"round": 0')
    assert read(tmp_path / "log.json") == []
    (tmp_path / "log.json").write_text(json.dumps([{"round": 0}]))
    assert read(tmp_path / "log.json") == [{"round": 0}]
    with pytest.raises(ValueError, match="longer"):
        table([], [{"round": 0}, {"round": 1}])

"""The apps that users copy: the one of docs/flower.md and the one that the benchmark starts."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from securefed import Federation, Ledger, Limits, RunOptions, Terms, Transcript
from securefed._tensors import decode
from securefed.attacks import PowerGram, Target, views
from securefed.flower import client_app, serve
from tests.flower.grid import LocalGrid, Node

ROOT = Path(__file__).parents[2]


def quick(**options: Any) -> dict[str, Any]:
    """Arguments of `serve` that wait for no real network."""
    return {"wait": 2.0, "poll": 0.001, "options": RunOptions(**{"timeout": 0.02} | options)}


def example() -> Any:
    path = ROOT / "benchmarks" / "peers" / "flower_app" / "app.py"
    spec = importlib.util.spec_from_file_location("flower_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def grid_of(app: ClientApp, config: dict[str, Any]) -> LocalGrid:
    nodes = {10 + client: Node(app, {"partition-id": client}) for client in range(3)}
    for node in nodes.values():
        node.begin(config)
    return LocalGrid(nodes)


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "flower.md").read_text(), re.DOTALL)


def test_the_ledger_of_the_page(tmp_path: Path) -> None:
    app = example()
    code, ledger = blocks()
    names: dict[str, Any] = {"rows": lambda context: app.rows(context.node_config["partition-id"], 3)}
    exec(code, names)  # noqa: S102 - our own page
    found: dict[str, Any] = {
        "client_app": client_app,
        "terms": lambda context: names["terms"]({}),
        "rows": names["rows"],
        "folder": lambda context: tmp_path / str(context.node_config["partition-id"]),
    }
    exec(ledger.replace("/var/lib/site", str(tmp_path)), found)  # noqa: S102
    grid = grid_of(names["client"], {})
    grid.nodes[10].app = found["app"]
    serve(grid, names["terms"]({}), 2, **quick())
    assert Ledger.open(tmp_path / "data.ledger", Limits()).spent.exchanges == 2


def test_the_app_of_the_page() -> None:
    app = example()
    code, _ = blocks()
    names: dict[str, Any] = {"rows": lambda context: app.rows(context.node_config["partition-id"], 3)}
    exec(code, names)  # noqa: S102 - our own page
    assert isinstance(names["server"], ServerApp)
    result = serve(grid_of(names["client"], {}), names["terms"]({}), 2, **quick())
    assert result.output["basis"].shape == (30, 3)


def test_the_whole_app_runs_and_agrees_with_one_process(tmp_path: Path) -> None:
    app, out = example(), tmp_path / "out"
    config = {"clients": 3, "rounds": 2, "seed": 0, "out": str(out)}
    grid = grid_of(app.client, config)
    context = Node(app.client, {}).context
    context.run_config = config
    app.server(grid, context)
    output, header = decode(out.read_bytes())
    terms = app.terms(config)
    data = [app.rows(client, 3) for client in range(3)]
    here = Federation(terms.algorithm, data, terms.defense, public=terms.public, seed=0, batched=False).run(2)
    np.testing.assert_array_equal(output["basis"], here.output["basis"])
    assert [entry["survivors"] for entry in header["history"]] == [[0, 1, 2]] * 2


def test_without_flower_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['flwr'] = None; sys.modules['flwr.app'] = None\nimport securefed.flower"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode and "ConfigError: runs on Flower need it; install securefed[flower]" in done.stderr


def test_what_the_server_saw_in_the_clear_is_attacked_like_any_transcript(tmp_path: Path) -> None:
    app = example()
    clear = Terms.of(app.terms({"clients": 3, "seed": 0}).algorithm, app.terms({"clients": 3, "seed": 0}).public)
    client = client_app(lambda _: clear, lambda context: app.rows(context.node_config["partition-id"], 3))
    serve(grid_of(client, {}), clear, 12, **quick(keep_transcript=True)).transcript.save(tmp_path / "run.transcript")
    seen = views.server(Transcript.load(tmp_path / "run.transcript"), 1)
    found = PowerGram().run(seen, Target(clear.algorithm, clear.public), np.random.default_rng(0)).value
    own, others = (sum(app.rows(client, 3).x.T @ app.rows(client, 3).x for client in who) for who in ((1,), (0, 2)))
    assert np.linalg.norm(found - own) < 0.02 * np.linalg.norm(others / 2 - own)  # against the best guess without them

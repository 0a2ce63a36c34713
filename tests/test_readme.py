"""The README's examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_two_line_example_runs() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 10, 3))
    names = {
        "rounds": 60,
        "clients": list(zip(x, x @ np.array([1.0, -2.0, 0.5]), strict=True)),
        "sizes": [10] * 4,
        "model": {"w": np.zeros(3)},
        "local_step": lambda model, a, b: {"w": model["w"] - 0.1 * a.T @ (a @ model["w"] - b) / len(a)},
    }
    exec(BLOCKS[0], names)  # noqa: S102 - our own README
    np.testing.assert_allclose(names["model"]["w"], [1.0, -2.0, 0.5], atol=0.2)


def test_the_run_and_the_attack_on_it_work(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(BLOCKS[1], names)  # noqa: S102
    exec(BLOCKS[2], names)  # noqa: S102
    error = float(capsys.readouterr().out.splitlines()[-1].split()[0])
    assert error < 0.05
    assert len(BLOCKS) == 3
    with pytest.raises(NameError):  # positive control: a block without its imports fails
        exec(BLOCKS[2][BLOCKS[2].index("observed =") :], {})  # noqa: S102

"""The recording of docs/torch.md runs, and its errors are the package's; `test_masked_all_reduce` runs the rest."""

from __future__ import annotations

import copy
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import securefed.errors
from securefed.errors import SecureFedError

PAGE = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_recording_of_the_page_is_attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    rows = torch.randn(3, 20, 64)

    def train(model: nn.Module, client: int) -> nn.Module:
        local = copy.deepcopy(model)
        nn.functional.cross_entropy(local(rows[client]), torch.arange(20) % 10).backward()
        with torch.no_grad():
            for value in local.parameters():
                value.sub_(0.1 * value.grad)
        return local

    make = partial(nn.Linear, 64, 10)
    names: dict[str, Any] = {"model": make(), "train": train, "make_model": make}
    exec(BLOCKS[-1], names)  # noqa: S102 - our own page
    assert (tmp_path / "run.transcript").is_file()
    assert names["audit"].findings


def test_every_error_of_the_page_is_one_of_the_package() -> None:
    section = PAGE.partition("## Errors\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+(?:Error|Refused|Mismatch))`", section)) - {"RuntimeError"}
    assert len(named) == 5
    for name in named:
        assert issubclass(getattr(securefed.errors, name), SecureFedError)

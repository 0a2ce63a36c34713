"""Every reader of NumPy's files refuses by name a header that Python's tokenizer cannot read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securefed._commands.audit_run import _clients
from securefed._commands.party_files import read_arrays
from securefed.datasets._formats import read_npz
from securefed.errors import DataError
from securefed.recording._flower import arrays_of

READERS: list[Callable[[Path, bytes], Any]] = [
    lambda path, _: read_npz(path),
    lambda path, _: read_arrays(path),
    lambda path, _: _clients(path),
    lambda _, array: arrays_of(SimpleNamespace(tensors=[array])),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("header", ["{'descr': '<f8', 'shape': (3L,", "{'descr': '<f8', 'shape': (3L,)}\n  x\n y"])
def test_a_damaged_header_is_no_file_of_numbers(
    read: Callable[[Path, bytes], Any], header: str, tmp_path: Path
) -> None:
    text = header.encode().ljust(117) + b"\n"
    array = np.lib.format.magic(1, 0) + len(text).to_bytes(2, "little") + text + bytes(24)
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
        for name in ("x", "client"):
            archive.writestr(f"{name}.npy", array)
    with pytest.raises(DataError):
        read(tmp_path / "rows.npz", array)
    whole = io.BytesIO()
    np.save(whole, np.zeros(2, np.int64))  # the control
    np.savez(tmp_path / "rows.npz", x=np.zeros((2, 3)), client=np.zeros(2, np.int64))
    read(tmp_path / "rows.npz", whole.getvalue())

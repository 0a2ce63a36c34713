"""`python -m tests.other_kernel` runs tests under a kernel of OpenBLAS that is not the machine's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import other_kernel


def test_a_process_takes_the_kernel_that_it_is_given_and_no_unknown_one() -> None:
    if (own := other_kernel.own_kernel()) is None:  # NumPy calls Accelerate or MKL
        return
    assert other_kernel.takes_effect(own)
    assert not other_kernel.takes_effect("Nonesuch")  # OpenBLAS takes the machine's own


@pytest.mark.parametrize(("own", "taken"), [("SkylakeX", "Haswell"), ("Haswell", "Sandybridge"), ("Zen", "Haswell")])
def test_the_newest_kernel_but_the_machine_s_own_is_taken(
    own: str, taken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[list[str], str]] = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append((command, env["OPENBLAS_CORETYPE"]))
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(other_kernel, "own_kernel", lambda: own)
    monkeypatch.setattr(other_kernel, "kernels", lambda: ("Haswell", "Sandybridge"))
    monkeypatch.setattr(other_kernel, "takes_effect", lambda kernel: True)
    monkeypatch.setattr(other_kernel.subprocess, "run", run)
    assert other_kernel.main(["-x"]) == 7
    ((command, kernel),) = ran
    assert kernel == taken
    assert command[:3] == [sys.executable, "-m", "pytest"]
    assert command[-4:] == ["-x", *other_kernel.FOLDERS]
    assert f"kernel {taken}; this machine's own is {own}" in capsys.readouterr().out


def test_without_another_kernel_nothing_passes_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(other_kernel, "own_kernel", lambda: "Haswell")
    monkeypatch.setattr(other_kernel, "kernels", lambda: ("Haswell", "Sandybridge"))
    monkeypatch.setattr(other_kernel, "takes_effect", lambda kernel: False)
    assert other_kernel.main([]) == 1
    assert "no kernel of Haswell, Sandybridge runs here beside its own, Haswell" in capsys.readouterr().out


def test_the_folders_are_there() -> None:
    assert all((Path(other_kernel.ROOT) / folder).is_dir() for folder in other_kernel.FOLDERS)

"""`securefed doctor` finds what is broken or missing, and says so in its exit code."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from importlib.metadata import PackageNotFoundError, requires
from typing import Any

import pytest
from typer.testing import CliRunner

from securefed._commands import health
from securefed._commands.cli import app
from securefed.defenses._secure_aggregation import chacha_stream


def examined() -> dict[str, health.HealthFinding]:
    return {finding.what: finding for finding in health.examine()}


def core_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The development environment may be installed from an older list of dependencies."""
    monkeypatch.setattr(health, "requires", lambda name: ["numpy>=2.0", "torch>=2 ; extra == 'torch'"])


def test_a_sound_installation_exits_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    core_is_there(monkeypatch)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    assert "BROKEN" not in done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert ["ok", "numpy:"] in [line[:2] for line in lines]
    assert "random source" in done.output


def test_a_missing_extra_is_no_fault_and_is_told_with_what_it_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    core_is_there(monkeypatch)
    monkeypatch.setattr(health, "is_installed", lambda module: module != "torch")
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 0
    found = {entry["what"]: entry for entry in json.loads(done.output)}
    assert found["extra torch"]["sound"] is None
    assert "securefed[torch]" in found["extra torch"]["detail"]
    assert found["extra flower"]["sound"] is True


def test_a_missing_package_of_the_core_exits_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "requires", lambda name: ["numpy>=2.0", "gmpy2>=2.2"])
    real = health.version

    def version(name: str) -> str:
        if name == "gmpy2":
            raise PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(health, "version", version)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 2
    assert "pip install 'gmpy2>=2.2'" in done.output


def test_a_broken_random_source_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert examined()["random source"].sound
    for broken in (bytes, lambda size: b"0123456789abcdef" * (size // 16)):
        monkeypatch.setattr(os, "urandom", broken)
        assert examined()["random source"].sound is False


def test_a_biased_random_source_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = os.urandom

    def biased(size: int) -> bytes:  # one bit in sixteen is always set: 53 % ones
        return bytes(byte | (index & 1) for index, byte in enumerate(draw(size)))

    monkeypatch.setattr(os, "urandom", biased)
    found = examined()["random source"]
    assert found.sound is False
    assert "of the bits are ones" in found.detail


def test_a_wrong_cipher_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives.ciphers import modes  # noqa: PLC0415

    assert examined()["AES-128-CTR and AES-256-GCM"].sound
    right = modes.CTR

    def wrong(counter: bytes) -> Any:
        return right(counter[::-1])

    monkeypatch.setattr(modes, "CTR", wrong)
    assert examined()["AES-128-CTR and AES-256-GCM"].sound is False


def test_a_wrong_mask_cipher_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert examined()["ChaCha20"].sound
    right = chacha_stream.start
    monkeypatch.setattr(chacha_stream, "start", lambda key, block: right(key, block + 1))
    assert examined()["ChaCha20"].sound is False


def test_a_clock_that_runs_backwards_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert examined()["clocks"].sound
    ticks = itertools.count(0, -1)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    assert examined()["clocks"].sound is False


def test_every_extra_of_an_error_is_examined() -> None:
    from securefed._extras import EXTRA_OF  # noqa: PLC0415

    assert set(health.GAINS) == set(EXTRA_OF.values())


def test_the_path_of_the_mask_stream_is_shown_and_one_that_gives_other_words_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from securefed.defenses._secure_aggregation.mask_streams import PATHS  # noqa: PLC0415

    found = examined()["mask stream"]
    assert found.sound
    shown = re.fullmatch(
        r"AES-128 by (GCM|CTR), ([\d,]+) million words a second \(([\d,]+) by (GCM|CTR)\), (128|256) KiB at a time",
        found.detail,
    )
    assert shown is not None, found.detail
    assert shown[1] != shown[4]
    monkeypatch.setitem(PATHS, "CTR", lambda seed: PATHS["GCM"](seed[::-1]))  # type: ignore[call-overload]
    found = examined()["mask stream"]
    assert (found.sound, found.detail) == (False, "AES in counter mode and in GCM give different words")


def test_each_door_is_ready_or_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "is_installed", lambda module: module not in ("flwr", "ray", "transformers"))
    found = {finding.what: finding for finding in health.doors()}
    assert list(found) == [f"door {door}" for door in health.DOORS]
    assert found["door shared folder"].sound is True and "securefed party" in found["door shared folder"].detail
    assert found["door torch"].sound is True
    assert found["door Flower"].sound is None
    assert "lacks flwr, ray: `python -m pip install 'securefed[flower]' 'flwr[simulation]'`" in (
        found["door Flower's simulation"].detail
    )
    assert "lacks transformers" in found["door Trainer"].detail


def test_every_install_line_names_an_extra_of_the_package() -> None:
    known = {one.split("extra == ")[1].strip("'\" ") for one in requires("securefed") or [] if "extra == " in one}
    named = {extra for _, _, install in health.DOORS.values() for extra in re.findall(r"securefed\[(\w+)\]", install)}
    assert named <= known and {"flower", "torch", "audit"} <= named

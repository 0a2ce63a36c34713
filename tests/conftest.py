"""Profiles of hypothesis, and generators that no two tests share.

All profiles but `nightly` and `nightly-quick` draw the same cases in every run, and none is timed. `gate` is loaded by
default, `quick` by `make test`, which draws a tenth of the cases; `make test-all` runs all tests of hypothesis under
`gate` too. `pytest --hypothesis-profile nightly tests/...` draws fresh cases, and many; `make nightly` does.
"""

from __future__ import annotations

import copy
import gc
import os
import sys
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import typer.testing
from hypothesis import HealthCheck, settings

from securefed.attacks._generic import StepClock, on_clock

UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("gate", derandomize=True, **UNTIMED)
settings.register_profile("quick", derandomize=True, max_examples=10, **UNTIMED)
settings.register_profile("nightly", derandomize=False, max_examples=10_000, **UNTIMED)
settings.register_profile("nightly-quick", derandomize=False, max_examples=50, **UNTIMED)
settings.load_profile("gate")


def pytest_configure() -> None:
    """Tests and modules live to the end: the garbage collector need not walk them, now or later."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but not among the tests and modules, and seldom: most goes by reference counts."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def _own_warnings():
    """Let what a client logs a moment later appear in its own test."""
    yield
    if (absence := sys.modules.get("securefed._runtime.absence")) is not None:
        absence.flush()


@pytest.fixture(autouse=True)
def _own_draws(request, monkeypatch):
    """A module's `RNG` stands in each of its tests where the import left it.

    Whatever else ran before in the same process: with several workers that hangs on their speed.
    """
    shared = getattr(request.module, "RNG", None)
    if isinstance(shared, np.random.Generator):
        monkeypatch.setattr(request.module, "RNG", copy.deepcopy(shared))


@pytest.fixture(autouse=True, scope="session")
def _budgets_count_steps() -> Iterator[None]:
    """Audits and searches with limits of seconds do the same work on any machine, under any load."""
    with on_clock(StepClock()):
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_wait_for_the_disk() -> Iterator[None]:
    """Files are written and renamed as ever, but not waited for: no test cuts the power, and kills lose no page."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _commands_are_built_once() -> Iterator[None]:
    """`CliRunner` builds all commands anew at each call, 50 ms of about 65."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield

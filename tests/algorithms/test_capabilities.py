"""A wrapper around an algorithm has the algorithm's optional capabilities, under every version of Python."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import numpy as np
import pytest

from securefed import Algorithm, Dataset, Federation, Public
from securefed.algorithms import (
    SSI,
    FedAvg,
    GraphDitto,
    GraphFedAvg,
    GraphFedProx,
    LocalPower,
    SupportsBatches,
    SupportsBroadcastCheck,
    SupportsClientSelection,
    SupportsPrivacyCost,
    record_level,
)
from securefed.algorithms._capabilities import supports
from securefed.errors import DataError
from securefed.testing._algorithm_checks import RecordingAlgorithm

CAPABILITIES = (SupportsBatches, SupportsBroadcastCheck, SupportsClientSelection, SupportsPrivacyCost)
COVERED = [SSI(rank=2), LocalPower(rank=2, local_steps=(1,)), GraphFedAvg(momentum=0.0), GraphFedProx(momentum=0.0)]
"""The algorithms that `record_level` takes."""


def found_statically(thing: Any, capability: Any) -> bool:
    """Look attributes up as `isinstance` does from Python 3.12 on: without `__getattr__`."""
    missing = object()
    names = [name for name in vars(capability) if not name.startswith("_")]
    return all(inspect.getattr_static(thing, name, missing) is not missing for name in names)


@pytest.mark.parametrize("algorithm", COVERED, ids=lambda one: type(one).__name__)
def test_record_level_has_the_capabilities_of_its_algorithm(algorithm: Any) -> None:
    private = record_level(algorithm, 1.0)
    for wrapped in (private, copy.deepcopy(private), pickle.loads(pickle.dumps(private))):  # noqa: S301
        for capability in CAPABILITIES:
            has = isinstance(algorithm, capability)
            assert supports(wrapped, capability) == found_statically(wrapped, capability) == has
            assert isinstance(wrapped, capability) == has
    assert any(isinstance(algorithm, capability) for capability in CAPABILITIES)


@pytest.mark.parametrize("algorithm", COVERED, ids=lambda one: type(one).__name__)
def test_record_level_passes_on_every_method_that_its_algorithm_defines(algorithm: Any) -> None:
    kind, settings = type(record_level(algorithm, 1.0)), {"audit_case", "test_settings", "from_settings"}
    own = {name for name in vars(Algorithm) if not name.startswith("_")} - settings
    changed = {name for name in own if getattr(type(algorithm), name) is not getattr(Algorithm, name)}
    assert {name for name in changed if name not in vars(kind)} == set()


def test_record_level_refuses_the_broadcasts_that_its_algorithm_refuses() -> None:
    public = Public.of([Dataset(np.eye(4))] * 3)
    private = record_level(SSI(rank=2), 1.0)
    private.check_broadcast({"basis": np.eye(4, 2)}, public)
    with pytest.raises(DataError):
        private.check_broadcast({"basis": np.ones((4, 2))}, public)


class Quiet:
    """A wrapper of a user's: it passes everything on."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("wrap", [Quiet, RecordingAlgorithm])
@pytest.mark.parametrize("algorithm", [SSI(rank=2), FedAvg(), GraphDitto()], ids=lambda one: type(one).__name__)
def test_a_wrapper_that_passes_attributes_on_supports_what_its_algorithm_does(wrap: Any, algorithm: Any) -> None:
    for capability in CAPABILITIES:
        assert supports(wrap(algorithm), capability) == isinstance(algorithm, capability)


def test_an_algorithm_that_sets_a_method_to_none_does_not_have_the_capability() -> None:
    alone = Quiet(FedAvg())
    assert supports(alone, SupportsBatches)
    alone.contribute_together = None
    assert not supports(alone, SupportsBatches)


@pytest.mark.parametrize("wrap", [Quiet, lambda algorithm: algorithm])
def test_a_run_asks_a_wrapper_for_its_capabilities(wrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[None] = []
    usual = SSI.check_broadcast
    monkeypatch.setattr(SSI, "check_broadcast", lambda *given: checked.append(usual(*given)))
    kind: Any = type(SupportsBroadcastCheck)
    before = kind.__instancecheck__

    def instance(capability: Any, one: Any) -> bool:
        """`isinstance` of Python 3.12, which does not see what a wrapper passes on."""
        return found_statically(one, capability) if capability in CAPABILITIES else before(capability, one)

    monkeypatch.setattr(kind, "__instancecheck__", instance)
    assert isinstance(SSI(rank=2), SupportsBroadcastCheck)
    assert not isinstance(Quiet(SSI(rank=2)), SupportsBroadcastCheck)
    rng = np.random.default_rng(0)
    Federation(wrap(SSI(rank=2)), [Dataset(rng.normal(size=(5, 4))) for _ in range(3)]).run(2)
    assert len(checked) == 6


def test_an_algorithm_that_records_can_be_copied() -> None:
    """A copy that is being made has no attributes yet, so that looking one up asked for itself without end."""
    recording = RecordingAlgorithm(SSI(rank=2))
    made = copy.deepcopy(recording)
    assert made.inner == recording.inner and made.rank == 2
    with pytest.raises(AttributeError, match="no_such_name"):
        recording.no_such_name  # noqa: B018

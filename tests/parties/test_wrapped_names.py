"""Models inside a library's wrapper, whose state_dict has a prefix before all names, at `SumClient` and `SumServer`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from torch import nn

from securefed.defenses import secure_aggregation
from securefed.errors import DataError
from securefed.parties import SumClient, SumServer, SumTerms
from securefed.parties._update import read_update, without_wrapper
from tests.combinations import each_value

PREFIXES = ["_module.", "module.", "_orig_mod.", "module._orig_mod."]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def wrapped(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {prefix + name: value for name, value in state.items()}


@pytest.mark.parametrize(("prefix", "who"), each_value(PREFIXES, ["client", "server", "all"]))
def test_either_side_may_hold_the_wrapped_model(prefix: str, who: str) -> None:
    bare = net().state_dict()
    theirs = bare if who == "client" else wrapped(bare, prefix)
    ours = wrapped(bare, prefix) if who != "server" else bare
    terms = SumTerms.like(theirs, clients=3, defense=secure_aggregation(), local=("*running_*",))
    clients, server = [SumClient(terms, party) for party in range(3)], SumServer(terms)
    server.open(base=theirs)
    while server.result is None:
        server.receive(
            {party: clients[party].receive(data, ours, base=ours) for party, data in server.outgoing.items()}
        )
    assert server.result.survivors == (0, 1, 2)
    for example in (theirs, ours):
        mean = server.result.like(example)
        assert list(mean) == list(example)
        for name, value in example.items():
            np.testing.assert_allclose(mean[name].numpy(), value.numpy(), atol=1e-6)


def test_opacus_names_are_read() -> None:
    grad_sample = GradSampleModule(nn.Linear(3, 2))
    names = without_wrapper(grad_sample.state_dict(), ["weight", "bias"])
    assert sorted(names) == ["bias", "weight"]


def test_names_that_only_some_tensors_have_are_refused_with_what_to_write() -> None:
    terms = SumTerms.like({"w": np.zeros(2), "v": np.zeros(1)}, clients=3, defense=secure_aggregation(), base=False)
    with pytest.raises(DataError, match=r"lacks 'w' .*holds '_module\.w'.*give model\._module\.state_dict\(\)"):
        read_update({"_module.w": np.zeros(2), "v": np.zeros(1)}, terms.shapes, "the update")
    real = {"module.w": 1, "other": 2}  # a submodule of the user's that is called module
    assert without_wrapper(real, ["module.w"]) is real
    assert without_wrapper(real, ["w"]) is real

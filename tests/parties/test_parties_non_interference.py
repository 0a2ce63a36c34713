"""What a server sees of a `SumClient`, apart from its protected upload, does not depend on the client's update.

The battery of `tests/contract/test_non_interference.py`, played against `SumClient` through its bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase

from securefed import SERVER, Dataset, Message
from securefed.defenses import Identities, chain, clip, paillier, secure_aggregation, skellam
from securefed.defenses._homomorphic import InsecurePaillier
from securefed.parties import SumClient, SumTerms
from securefed.parties._envelope import unwrap, wrap
from securefed.parties._node import PartyNode, broadcast_of
from tests.contract import test_non_interference as battery
from tests.contract.deviating_server import Told
from tests.contract.deviations import CLIENTS, DATA

EXAMPLE = {"w": np.zeros((3, 2)), "b": np.zeros(2)}
DEFENSES: dict[str, Any] = {
    "masks": secure_aggregation(),
    "masks, active": secure_aggregation(identities=Identities.generate(CLIENTS), verify=True),
    "paillier": InsecurePaillier(bits=512),
    "noise": chain(clip(1.0), skellam(1.0), secure_aggregation()),
}


@cache
def sum_terms(name: str) -> SumTerms:
    private = name == "noise"
    more: dict[str, Any] = {} if private else {"metrics": ("loss",), "largest_weight": 2**20}
    return SumTerms.like(EXAMPLE, clients=CLIENTS, defense=DEFENSES[name], bounds=1.0, base=False, **more)


def update_of(data: Dataset) -> dict[str, Any]:
    """A contribution that depends on the data in every way that one may go wrong."""
    which = next(name for name, other in DATA.items() if other is data)
    value = {"w": data.x[:3, :2], "b": data.x[4, :2]}
    spoiled: dict[str, dict[str, Any]] = {
        "zeros": {"update": {name: entry * np.nan for name, entry in value.items()}},
        "ones": {"update": {name: entry * 1e30 for name, entry in value.items()}, "weight": 5.0},
        "one class": {"update": lambda: 1 / 0},
        "other labels": {"update": lambda: {"w": np.zeros(7)}},
        "tiny": {"update": value, "weight": 2.0**40},
        "one row": {"update": value, "weight": float("nan")},
    }
    return spoiled.get(which, {"update": lambda: value})


class Endpoint:
    """A `SumClient` as an endpoint."""

    def __init__(self, client: int, run: str, facts: Any, data: Dataset):
        name = next(name for name in DEFENSES if sum_terms(name).core.defense == facts.defense)
        self.terms_of_sum, self.data = sum_terms(name), data
        self.inner = SumClient(self.terms_of_sum, client)

    def handle(self, message: Message) -> Message:
        digest, more = self.terms_of_sum.digest, {}
        if self.terms_of_sum.metrics:
            more["metrics"] = {"loss": float(self.data.x.sum()) * 1e9}
        given = update_of(self.data)
        if not self.terms_of_sum.weighted:
            given.pop("weight", None)  # one that is given is refused, whatever it is
        reply = self.inner.receive(wrap(digest, message.encode()), **given, **more)
        return Message.decode(unwrap(digest, reply, SERVER), claimed_sender=self.inner.party)


class RefusesByName(PartyNode):
    """The control: a client that says by name what is wrong with its update."""

    def _without(self, state: Any, error: Exception) -> Any:
        raise battery.SecureFedError(f"{error!r}")


def play(
    name: str, examples: int, monkeypatch: pytest.MonkeyPatch, phases: tuple = (Phase.generate, Phase.shrink)
) -> Any:
    told = Told.of(sum_terms(name).core, broadcast_of(None, 0))
    monkeypatch.setattr(battery, "terms", lambda *_: told)
    return battery.play("parties", name, examples, Endpoint, phases)


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", DEFENSES)
def test_what_a_server_sees_of_a_party_does_not_depend_on_its_update(name: str, monkeypatch: Any) -> None:
    met = play(name, battery.EXAMPLES, monkeypatch)
    assert sum(met.values()) >= battery.EXAMPLES


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["paillier", "masks"])
def test_the_battery_finds_a_party_that_refuses_by_name(name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("securefed.parties._client.PartyNode", RefusesByName)
    with pytest.raises(AssertionError):
        play(name, 2000, monkeypatch, (Phase.generate,))  # ends at the first; a draw may take some hundreds


def test_honest_schedules_reach_the_upload(monkeypatch: Any) -> None:
    met = play("masks", 30, monkeypatch)
    assert met["upload"] > 10
    assert paillier().upload == "upload"

"""The battery of `tests/contract/test_non_interference.py` through a SuperNode's app with a sealed folder."""

from __future__ import annotations

import tempfile
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

from securefed import Message, Seal, Terms
from securefed.flower import client_app
from securefed.flower._enrolment import Invitation
from tests.combinations import REPRESENTATIVES
from tests.contract.deviating_server import OldOrder
from tests.contract.test_non_interference import AT_LEAST, NAMES, play
from tests.flower.grid import Node
from tests.flower.test_flower_attacks import ask, invite, wrapped

SEAL = Seal(bytes(range(32)))
DEFENSES = ["secure_aggregation", "against a server that deviates", "ddp"]


class SuperNode:
    """The victim as the harness makes it, behind Flower's messages. Its folder lies in `folders`."""

    folders: Path

    def __init__(self, client: int, run: str, terms: Terms, data: Any) -> None:
        place = Path(tempfile.mkdtemp(dir=self.folders))
        app = client_app(lambda _: terms, lambda _: data, folder=lambda _: place, seal=lambda _: SEAL)
        self.node = Node(app, {"partition-id": client})
        assert invite(self.node, Invitation(run, terms.digest)) == ""

    def handle(self, message: Message) -> Message:
        return ask(self.node, wrapped(message))


@pytest.fixture
def victim(tmp_path: Path) -> Any:
    return type("Victim", (SuperNode,), {"folders": tmp_path})


def one_algorithm_each() -> list[Any]:
    """All combinations; `make test` plays one algorithm under each defence, since the contract battery plays more."""
    chosen = set(zip(cycle(REPRESENTATIVES), DEFENSES, strict=False))
    rows = list(product(NAMES, DEFENSES))
    return [pytest.param(*row, marks=() if row in chosen else pytest.mark.exhaustive) for row in rows]


@pytest.mark.hypothesis
@pytest.mark.parametrize(("name", "defense"), one_algorithm_each())
def test_what_a_server_sees_over_flower_does_not_depend_on_data(name: str, defense: str, victim: Any) -> None:
    assert sum(play(name, defense, AT_LEAST, victim).values()) >= AT_LEAST


@pytest.mark.exhaustive
def test_the_old_order_is_found_over_flower_too(monkeypatch: pytest.MonkeyPatch, victim: Any) -> None:
    """The control: the app's client computes before it checks, and refuses by name."""
    monkeypatch.setattr("securefed._runtime.terms.ClientNode", OldOrder)
    with pytest.raises(AssertionError):
        play("pca/localpower", "secure_aggregation", 200, victim)

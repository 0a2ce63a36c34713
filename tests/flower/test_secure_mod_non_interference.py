"""What a server sees of a SuperNode under `secure_mod`, apart from its protected upload, does not depend on its data.

The battery of `tests/contract/test_non_interference.py`, played through Flower's messages against an app whose reply
goes wrong in every way that data can make it: it raises, exits, gives other names, shapes or types, values that are not
finite or out of range, or no weight. Beside the schedules' own deviations the server sends other models and configs,
other terms, other numbers and types of messages. Noted of every reply: its records with their types, shapes and sizes,
or the code and the text of its error.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.common.serde import recorddict_to_proto
from hypothesis import Phase

from securefed import SERVER, Dataset, DataUsage, Ledger, Limits, Message, Seal
from securefed._runtime.exchange_context import tensors_digest
from securefed._runtime.sum_facts import SumFacts
from securefed.defenses import Identities, chain, clip, secure_aggregation, skellam
from securefed.flower import SitePolicy, secure_mod
from securefed.flower import _mod as mod
from securefed.flower._reply_numbers import bounds_of, shapes_of
from securefed.flower._sum_messages import (
    CONTENT,
    DIGEST_ENTRY,
    METRIC,
    SumRequest,
    base_of,
    config_digest,
    content_digest,
    reply_data,
    shapes_beside,
)
from securefed.parties import SumClient, SumTerms
from securefed.parties._envelope import unwrap, wrap
from securefed.parties._node import BASE, PartyNode, base_array
from securefed.parties._update import read_update
from tests.contract import test_non_interference as battery
from tests.contract.deviating_server import Told
from tests.contract.deviations import CLIENTS, DATA, VICTIM
from tests.flower import ordinary_app
from tests.flower.grid import Node

WEIGHT, CONFIG = "num-examples", config_digest({})
MANY = 100
"""Schedules of the exhaustive tests."""
OWN = Identities.generate(CLIENTS)
DEFENSES: dict[str, Any] = {
    "masks": secure_aggregation(),
    "masks, active": secure_aggregation(identities=Identities(OWN.public), verify=True),
    "noise": chain(clip(1.0), skellam(1.0), secure_aggregation()),
}


def model(scale: float) -> dict[str, np.ndarray]:
    return {"w": np.full((3, 2), scale), "b": np.full(2, scale, np.float32)}


def contents() -> list[RecordDict]:
    """What the server's strategy may send: the honest one first, other models, and a config that says not to train."""
    out = []
    for scale, rate in ((0.0, 0.1), (0.25, 0.1), (1e30, 0.1), (np.nan, 0.1), (0.0, 0.0)):
        arrays = ArrayRecord({name: Array(value) for name, value in model(scale).items()})
        out.append(RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1, "lr": rate})}))
    return out


def flower_message(content: RecordDict, kind: str = "train") -> FlowerMessage:
    message = FlowerMessage(content, 1, kind)
    message.metadata.__dict__["_message_id"] = "1"
    return message


@cache
def sum_terms(name: str) -> SumTerms:
    """Terms as `SecureStrategy` makes them."""
    metrics = {} if name == "noise" else {f"{METRIC}loss": (), **shapes_of(8)}
    base = base_of(model(0.0), metrics, bytes(32))
    bounds = dict.fromkeys(base, 1.0) | {CONTENT: DIGEST_ENTRY}
    bounds |= {} if name == "noise" else bounds_of(1.0)
    weight = None if name == "noise" else 2**20
    return SumTerms.like(base, clients=CLIENTS, defense=DEFENSES[name], bounds=bounds, largest_weight=weight)


def bound_to(terms: SumTerms, content: RecordDict) -> np.ndarray:
    """The digest that an honest server broadcasts when it sends this content."""
    arrays = {name: np.asarray(value.numpy()) for name, value in content["arrays"].items()}
    base = base_of(arrays, shapes_beside(terms), content_digest(flower_message(content), WEIGHT, CONFIG))
    return base_array(tensors_digest(read_update(base, terms.shapes, "the base")))


@cache
def core(name: str) -> SumFacts:
    """The terms as the message layer reads them; an honest server binds the first of `contents`."""
    terms = sum_terms(name)
    defense = replace(terms.defense, aggregation=replace(terms.defense.aggregation, identities=OWN)) if (
        name == "masks, active") else terms.defense  # fmt: skip
    return Told.of(terms.core, {BASE: bound_to(terms, contents()[0])}, defense=defense)


# ---------------------------------------------------------------------------------------------------------- the victim


def app_of(data: Dataset, mods: list[Any]) -> Any:
    """An app whose reply depends on the data in every way that one may go wrong, by the data set that it holds."""
    which = next(name for name, other in DATA.items() if other is data)

    def answer(message: FlowerMessage, context: Context) -> FlowerMessage:
        context.state["rows"] = ConfigRecord({"first": data.x[0].tolist()})  # the app's own state
        if which == "one class":
            raise RuntimeError(f"no rows of two classes: {data.y}")
        if which == "one entry":
            sys.exit(3)
        begin = {name: value.numpy() for name, value in message.content["arrays"].items()}
        arrays: dict[str, Any] = {"w": begin["w"] + data.x[:3, :2], "b": begin["b"] + data.x[4, :2].astype(np.float32)}
        metrics: dict[str, Any] = {WEIGHT: 1 + int(data.x[0, 0] > 0), "loss": float(data.x.sum()), "own": which}
        if which == "zeros":
            arrays = {name: value * np.nan for name, value in arrays.items()}
        elif which == "ones":
            arrays |= {"more": np.zeros(3)}
        elif which == "corners":
            metrics = {"loss": [1.0, 2.0]}
        elif which == "tiny":
            metrics[WEIGHT] = 2.0**60
        elif which == "one row":
            arrays = {"w": np.zeros(7)}
        metrics = {name: value for name, value in metrics.items() if not isinstance(value, str)}
        records = {"arrays": ArrayRecord({n: Array(np.asarray(v)) for n, v in arrays.items()})}
        message.content["config"]["lr"] = 7.0  # it writes into the server's records
        return FlowerMessage(RecordDict({**records, "metrics": MetricRecord(metrics)}), reply_to=message)

    return ordinary_app.app(*mods, train=answer, evaluate=answer)


class FlowerError(Exception):
    """The SuperNode replied with one of Flower's errors, which stands in `wrapping`, or its process ended."""


class Ended(BaseException):
    """The process of a SuperNode's app ended."""


class ModNode:
    """A SuperNode under `secure_mod` as an endpoint of the battery; Flower's messages are made and read here.

    Attributes:
        wrapping: what Flower's reply shows beside the message of the sum.
    """

    policy: ClassVar[Mapping[str, Any]] = {}
    secured: ClassVar[Any] = staticmethod(secure_mod)

    def __init__(self, client: int, run: str, facts: Any, data: Dataset):
        self.name = next(name for name in DEFENSES if core(name).defense == facts.defense)
        policy = dict(self.policy)
        if self.name == "masks, active":
            policy |= {"party": VICTIM, "identity": OWN.own[VICTIM], "identities": OWN.public}
        if "folder" in policy:
            place = Path(tempfile.mkdtemp(dir=policy["folder"]))
            limits = Limits(exchanges=3)
            ledger = Ledger.create(place / "data.ledger", limits, spent=DataUsage())
            policy |= {"folder": place / "states", "ledger": ledger, "seal": Seal(bytes(range(32)))}
        self.node = Node(app_of(data, [self.secured(SitePolicy(**policy))]), {"partition-id": client})
        self.wrapping: tuple[Any, ...] = ()
        self.requests = 0

    def handle(self, message: Message) -> Message:
        flower = self._request(message)
        try:
            reply = self.node.app(flower, self.node.context)
        except Ended as error:
            self.wrapping = ("ended",)
            raise FlowerError from error
        self.wrapping = self._shown(reply)
        if reply.has_error():
            raise FlowerError
        terms = sum_terms(self.name)
        data = unwrap(terms.digest, reply_data(reply.content, VICTIM), SERVER)
        return Message.decode(data, claimed_sender=VICTIM)

    def _request(self, message: Message) -> FlowerMessage:
        """The server's message inside one of Flower's, with a deviation that follows from what it sends alone."""
        terms, choices = sum_terms(self.name), contents()
        told = message.body["broadcast/base"].tobytes() if "broadcast/base" in message.body else b""
        self.requests += 1
        salt = crc32(f"{message.round} {message.stage} {self.requests} {told.hex()}".encode())
        content, party, kind, weighted_by, data = choices[0], VICTIM, "train", WEIGHT, b""
        sent = terms.to_bytes()
        which = salt % 40
        if which == 0:
            content = choices[1 + salt // 40 % 4]
        elif which in (1, 2, 3) and "broadcast/base" in message.body:  # another model, and bound to it
            content = choices[1 + salt // 40 % 4]
            message = replace(message, body={**message.body, "broadcast/base": bound_to(terms, content)})
        elif which == 4:
            party = (VICTIM + 1, CLIENTS + 4, -1)[salt // 40 % 3]
        elif which == 5:
            kind = ("evaluate", "query", "train.other")[salt // 40 % 3]
        elif which == 6:
            weighted_by = "loss"
        elif which == 7:
            sent = (b"{}", sum_terms("noise").to_bytes(), sum_terms("masks").to_bytes())[salt // 40 % 3]
        elif which == 8:
            data = (b"securefed", wrap(bytes(32), message.encode()))[salt // 40 % 2]
        elif which == 9:
            content = RecordDict({"config": choices[0]["config"]})
        asks = message.stage == terms.defense.aggregation.upload or which == 10
        request = SumRequest(
            party, weighted_by, CONFIG, sent, data or wrap(terms.digest, message.encode()), publishes=which == 11
        )
        return flower_message(request.content(content if asks else None), kind)

    @staticmethod
    def _shown(reply: FlowerMessage) -> tuple[Any, ...]:
        if reply.has_error():
            return ("error", reply.error.code, reply.error.reason)
        fields = []
        for name, record in sorted(reply.content.items()):
            values = record.items()
            if isinstance(record, ArrayRecord):
                fields.append((name, [(key, a.dtype, a.shape, a.stype, len(a.data)) for key, a in values]))
            else:
                fields.append((name, list(values)))
        meta = reply.metadata
        size = recorddict_to_proto(reply.content).ByteSize()
        return "content", fields, size, meta.message_type, meta.src_node_id, meta.dst_node_id, meta.group_id


def play(
    name: str, examples: int, node: type[ModNode], monkeypatch: pytest.MonkeyPatch,
    phases: tuple = (Phase.generate, Phase.shrink),
) -> Counter:  # fmt: skip
    monkeypatch.setattr(battery, "terms", lambda *_: core(name))
    return battery.play("secure_mod", name, examples, node, phases)


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", DEFENSES)
def test_what_a_server_sees_of_a_supernode_does_not_depend_on_its_data(name: str, monkeypatch: Any) -> None:
    met = play(name, battery.EXAMPLES, ModNode, monkeypatch)
    assert sum(met.values()) >= battery.EXAMPLES


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", DEFENSES)
def test_in_many_schedules(name: str, monkeypatch: Any) -> None:
    met = play(name, MANY, ModNode, monkeypatch)
    assert met["upload"] > 10
    assert met["FlowerError"] > 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", DEFENSES)
def test_nor_where_its_state_lies_sealed_in_a_folder_under_a_ledger(name: str, monkeypatch: Any, tmp_path: Any) -> None:
    victim = type("Kept", (ModNode,), {"policy": {"folder": tmp_path}})
    assert play(name, MANY // 2, victim, monkeypatch)["upload"] > 0


class RefusesByName(PartyNode):
    """A client that says by name what is wrong with its update."""

    def _without(self, state: Any, error: Exception) -> Any:
        raise battery.SecureFedError(f"{error!r}")


class CallsFirst(mod._Turn):
    """A mod that calls the app before it checks the request."""

    def _receive(self, client: SumClient, terms: SumTerms) -> bytes:
        if client.wants_update(self.request.data):
            with suppress(SystemExit):  # the app that exits is another control's
                self.call_next(self.message, self.context)
        return super()._receive(client, terms)


class PassesMetrics(mod._Turn):
    """A mod that lets the app's metrics through beside the protected upload."""

    def answer(self) -> FlowerMessage:
        reply = super().answer()
        if "rows" in self.context.state:
            reply.content["metrics"] = MetricRecord({"rows": list(self.context.state["rows"]["first"])})
        return reply


class ForgetsExits(mod._Turn):
    """A mod that an app's `sys.exit` ends, as it was."""

    def _update(self, terms: SumTerms, digest: bytes) -> Mapping[str, Any]:
        try:
            return super()._update(terms, digest)
        except SystemExit as error:
            raise Ended from error


CONTROLS = ["announced errors", "refused by name", "called first", "metrics beside", "ended by the app"]


@pytest.mark.parametrize("what", CONTROLS)
def test_the_battery_finds(what: str, monkeypatch: Any) -> None:
    """The controls: each is one change of a mod, or a permission that the site gave, by which data show."""
    victim: type[ModNode] = ModNode
    if what == "announced errors":
        victim = type("Announces", (ModNode,), {"policy": {"announce_errors": True}})
    elif what == "refused by name":
        monkeypatch.setattr("securefed.parties._client.PartyNode", RefusesByName)
    else:
        changed = {"called first": CallsFirst, "metrics beside": PassesMetrics, "ended by the app": ForgetsExits}
        monkeypatch.setattr(mod, "_Turn", changed[what])
    with pytest.raises(AssertionError):
        play("masks", 2000, victim, monkeypatch, (Phase.generate,))

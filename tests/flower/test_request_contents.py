"""A secure sum holds only updates of apps that were told the same: the run's config and the records of a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from securefed import SERVER
from securefed import Message as Inner
from securefed._runtime.exchange_context import tensors_digest
from securefed.errors import ConfigError, DataError, RoundVoid
from securefed.flower import secure_mod
from securefed.flower._sum_messages import SumRequest, base_of, content_digest, model_of, shapes_beside
from securefed.parties import SumTerms
from securefed.parties._envelope import unwrap, wrap
from securefed.parties._node import base_array
from securefed.parties._update import read_update
from tests.flower import ordinary_app
from tests.flower.grid import arrived
from tests.flower.ordinary_app import CLIENTS, ROWS
from tests.flower.test_secure_strategy import run, secured


def obedient(message: Any, context: Any) -> Any:
    """Train, unless the newest learning rate that the app was told, in a message or by the run's config, is 0."""
    reply = ordinary_app.train(message, context)
    if "lr" in message.content["config"]:
        context.state["kept"] = ConfigRecord({"lr": message.content["config"]["lr"]})
    kept = context.state["kept"]["lr"] if "kept" in context.state else context.run_config.get("lr")
    if kept == 0.0:  # the model as it came
        reply.content["arrays"] = message.content["arrays"]
    return reply


def test_a_run_config_that_differs_from_the_server_s_is_refused() -> None:
    """Flower hands the run's config over apart from messages: with "lr" 0 in all but one, the sum is that one's."""
    victim, config = 1007, {"lr": 0.1, "rounds": 1}
    grid = ordinary_app.grid(secure_mod, train=obedient)
    for node in grid.nodes:
        grid.nodes[node].begin(config)
    told = secured(FedAvg(fraction_evaluate=0.0), run_config=dict(reversed(config.items())))
    run(told, grid, 1)
    assert [len(entry.survivors) for entry in told.history] == [CLIENTS]  # the control
    for node in set(grid.nodes) - {victim}:
        grid.nodes[node].begin(config | {"lr": 0.0})
    with pytest.raises(ConfigError, match=r"holds lr, rounds, and the server sums .* context.run_config\)"):
        run(secured(FedAvg(fraction_evaluate=0.0), run_config=config), grid, 1)
    other = secured(FedAvg(fraction_evaluate=0.0), run_config=config | {"lr": 0.0})
    run(other, grid, 1)
    assert [sorted(entry.survivors) for entry in other.history] == [sorted(set(grid.nodes) - {victim})]


def test_the_context_in_place_of_its_config_is_named() -> None:
    with pytest.raises(ConfigError, match=r"run_config takes context\.run_config, a mapping; got object"):
        secured(FedAvg(fraction_evaluate=0.0), run_config=object())


def test_a_server_that_forgot_the_run_config_is_told_what_to_add() -> None:
    grid = ordinary_app.grid(secure_mod)
    for node in grid.nodes.values():
        node.begin({"lr": 0.1})
    with pytest.raises(ConfigError, match=r"SecureStrategy\(strategy, defense, context.run_config\)"):
        run(secured(FedAvg(fraction_evaluate=0.0)), grid, 1)


def test_a_server_reads_one_clients_update_by_what_a_void_round_told_the_apps() -> None:
    """An app may keep what a void round told it, to which no later sum is bound."""
    victim, rounds = 1007, 2
    grid = ordinary_app.grid(secure_mod, train=obedient)
    strategy = secured(FedAvg(fraction_evaluate=0.0))

    def tamper(message: Message) -> bool:
        told = message.metadata.dst_node_id != victim and not strategy.history
        if told and "config" in message.content:
            message.content["config"] = ConfigRecord({**message.content["config"], "lr": 0.0})
            bind(message)
        return False

    grid.lose = tamper
    result = run(strategy, grid, rounds)
    assert [len(entry.survivors) for entry in strategy.history] == [0, CLIENTS]
    single = ordinary_app.grid()
    single.nodes = {victim: single.nodes[victim]}
    alone = run(FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1), single, rounds=1)
    share = ROWS[1] / sum(ROWS)  # the first model is all zeros
    np.testing.assert_allclose(result.arrays["w"].numpy() / share, alone.arrays["w"].numpy(), rtol=1e-4)


def bind(message: Message) -> None:
    """Name in a request for an upload the base that follows from its records, as a server does that changed them."""
    given = arrived(message)
    request = SumRequest.take(given)
    terms, digest = SumTerms.from_bytes(request.terms), content_digest(given, request.weighted_by, request.run_config)
    base = base_of(model_of(given, "train")[1], shapes_beside(terms), digest)
    asked = Inner.decode(unwrap(terms.digest, request.data, SERVER))
    named = base_array(tensors_digest(read_update(base, terms.shapes, "the base")))
    asked = replace(asked, body={**asked.body, "broadcast/base": named})
    changed = replace(request, data=wrap(terms.digest, asked.encode()), digest=digest.hex()).content(given.content)
    for name, record in changed.items():
        message.content[name] = record


def test_requests_that_an_app_can_tell_apart_have_different_digests() -> None:
    """Values of other types, another order of entries, of records, of arrays, another group."""
    one, two = ConfigRecord({"lr": 0.1, "round": 1}), ConfigRecord({"lr": 0.0})
    arrays = [Array(np.full(2, fill)) for fill in (0.0, 1.0)]
    contents = [
        RecordDict({"a": one, "b": two}), RecordDict({"b": two, "a": one}),
        RecordDict({"a": ConfigRecord({"round": 1, "lr": 0.1}), "b": two}),
        RecordDict({"a": ConfigRecord({"x": b"\x01"})}), RecordDict({"a": ConfigRecord({"x": ["bytes", "01"]})}),
        RecordDict({"a": ConfigRecord({"x": [b"\x01"]})}), RecordDict({"a": ConfigRecord({"x": ["\x01"]})}),
        RecordDict({"a": ConfigRecord({"x": 1})}), RecordDict({"a": ConfigRecord({"x": 1.0})}),
        RecordDict({"a": ConfigRecord({"x": True})}), RecordDict({"a": MetricRecord({"x": 1})}),
        RecordDict({"m": ArrayRecord({"u": arrays[0], "v": arrays[1]})}),
        RecordDict({"m": ArrayRecord({"v": arrays[1], "u": arrays[0]})}),
    ]  # fmt: skip
    messages = [Message(content, 1, "train", group_id=group) for content in contents for group in (None, "1")]
    digests = [content_digest(message, "weight", "") for message in messages]
    assert digests == [content_digest(message, "weight", "") for message in messages]  # the control
    assert len(set(digests)) == len(messages)


HOSTILE = {
    "another serialisation": Array("float32", (1,), "1", b"\x00\x00\x80?"),
    "no header": Array("float32", (1,), "numpy.ndarray", b"\x93NUMPY\x01\x00\x08\x00{'shape'"),
    "an archive": Array("float32", (1,), "numpy.ndarray", b"PK\x05\x06" + bytes(18)),
    "objects": Array("object", (1,), "numpy.ndarray", b"\x80\x04N."),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_model_that_cannot_be_read_is_refused_by_name(name: str) -> None:
    """The strategy sends it, or the app replies with it."""
    start = ArrayRecord({**ordinary_app.initial(), "b": HOSTILE[name]})
    strategy = secured(FedAvg(fraction_evaluate=0.0))
    with pytest.raises(DataError, match="bytes of the array 'b' are no NumPy array"):
        strategy.start(ordinary_app.grid(secure_mod), start, 1, 0.05)


@pytest.mark.parametrize("name", HOSTILE)
def test_an_app_whose_model_cannot_be_read_sits_out(name: str, caplog: pytest.LogCaptureFixture) -> None:
    def train(message: Any, context: Any) -> Any:
        reply = ordinary_app.train(message, context)
        reply.content["arrays"]["b"] = HOSTILE[name]
        return reply

    with pytest.raises(RoundVoid, match="sat out"):
        run(secured(FedAvg(fraction_evaluate=0.0)), ordinary_app.grid(secure_mod, train=train), rounds=1)
    assert "securefed.errors.DataError: the bytes of the array 'b' are no NumPy array" in caplog.text

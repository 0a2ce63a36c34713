"""The first run of a Flower app under `SecureStrategy`: what stops it before anything is trained, and with what words.

Too few nodes for a phase, mods in another order, replies of another structure than the terms, and runs without a sum.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

from securefed.defenses import secure_aggregation
from securefed.errors import ConfigError, PlanError, RoundVoid
from securefed.flower import AppReply, SitePolicy, _grid, secure_mod
from securefed.parties import _update
from tests.combinations import each_value, first_ones
from tests.flower import ordinary_app
from tests.flower.grid import LocalGrid
from tests.flower.ordinary_app import CLIENTS
from tests.flower.test_secure_strategy import agree, run, secured

NO_EVALUATION: dict[str, Any] = {"fraction_evaluate": 0.0}
ORDER = r"let secure_mod stand first, in ClientApp\(mods=\[secure_mod, \.\.\.\]\)"


def trained(grid: LocalGrid) -> int:
    """The number of times that an app was called for training."""
    return sum(ordinary_app._calls(node.context) for node in grid.nodes.values())


def survivors(strategy: Any, phase: str = "train") -> list[int]:
    return [len(entry.survivors) for entry in strategy.history if entry.phase == phase]


# ------------------------------------------------------------------------------------------------------ too few nodes


@pytest.mark.parametrize(
    ("clients", "numbers", "phase"),
    [
        (2, {}, "train"),
        (2, NO_EVALUATION, "train"),
        (4, {"fraction_evaluate": 0.5}, "evaluate"),
        (5, {"fraction_train": 0.4}, "train"),
        (5, {"fraction_evaluate": 0.4}, "evaluate"),
    ],
)
def test_too_few_nodes_of_any_phase_end_the_run_before_it_trains(clients: int, numbers: Any, phase: str) -> None:
    """Flower's defaults: two simulated SuperNodes, and apps whose fraction-evaluate is .5."""
    grid = ordinary_app.grid(secure_mod, clients=clients)
    with pytest.raises(PlanError, match=rf"^{phase}: the strategy samples 2 of {clients} .* at least 3") as told:
        run(secured(FedAvg(**numbers)), grid)
    assert trained(grid) == 0
    text = str(told.value)
    remedy = dict(re.findall(r"(min_\w+_nodes)=(\d+)", text.partition("Give the strategy")[2]))
    assert set(remedy) == {"min_train_nodes", "min_evaluate_nodes", "min_available_nodes"}
    [nodes] = set(re.findall(r"--num-supernodes (\d+)", text))
    grid = ordinary_app.grid(secure_mod, clients=max(int(nodes), clients))
    told_strategy = secured(FedAvg(**numbers, **{name: int(number) for name, number in remedy.items()}))
    run(told_strategy, grid, rounds=1)  # what it says to write works
    assert all(entry.survivors for entry in told_strategy.history)


def test_the_number_is_that_of_the_defence() -> None:
    with pytest.raises(PlanError, match=r"at least 4: .*min_train_nodes=4, .*--num-supernodes 4"):
        run(secured(FedAvg(), secure_aggregation(threshold=4)), ordinary_app.grid(secure_mod, clients=3))


def test_where_the_numbers_alone_decide_the_strategy_is_not_made() -> None:
    with pytest.raises(PlanError, match=r"evaluate: the strategy samples 2 of 4 .*min_evaluate_nodes=3"):
        secured(FedAvg(fraction_evaluate=0.5), clients=4)
    secured(FedAvg(fraction_evaluate=0.5), clients=6)
    secured(FedAvg(fraction_evaluate=0.5, min_evaluate_nodes=3), clients=4)


class Leaving(FedAvg):
    """All SuperNodes but two leave before an evaluation, and come back before the next training."""

    def __init__(self, at: int, **more: Any) -> None:
        super().__init__(**more)
        self.at, self.gone = at, dict[int, Any]()

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        grid.grid.nodes.update(self.gone)
        return super().configure_train(server_round, arrays, config, grid)

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        nodes = grid.grid.nodes
        if server_round == self.at:
            self.gone = {node: nodes.pop(node) for node in list(nodes)[2:]}
        return super().configure_evaluate(server_round, arrays, config, grid)


@pytest.mark.parametrize(("at", "threshold"), each_value([1, 2], [None, 4]))
def test_a_phase_that_nodes_left_is_void_and_the_run_goes_on(at: int, threshold: int | None) -> None:
    """In the first evaluation too, whose terms cannot be made for so few."""
    strategy = secured(Leaving(at), secure_aggregation(threshold=threshold))
    run(strategy, ordinary_app.grid(secure_mod), rounds=3)
    assert strategy.stopped is None
    assert survivors(strategy) == [CLIENTS] * 3
    assert [number > 0 for number in survivors(strategy, "evaluate")] == [number != at for number in (1, 2, 3)]
    [void] = [entry.void for entry in strategy.history if not entry.survivors]
    assert "2 of 2 clients replied" in void[0] or "samples" in void[0]


# ------------------------------------------------------------------------------------------------------------ mods


def casts(message: Any, context: Any, call_next: Any) -> Any:
    """A mod that sends all arrays as float32, and so writes over the answers of the sum."""
    reply = call_next(message, context)
    for name, record in reply.content.array_records.items():
        reply.content[name] = ArrayRecord(
            {key: Array(value.numpy().astype(np.float32)) for key, value in record.items()}
            if name == "arrays"
            else {key: Array(np.frombuffer(value.data, np.uint8).astype(np.float32)) for key, value in record.items()}
        )
    return reply


def flips(message: Any, context: Any, call_next: Any) -> Any:
    """A mod that alters bytes of a reply and keeps its form."""
    reply = call_next(message, context)
    record = reply.content["securefed.message"]
    array = record["message"]
    data = bytes(array.data)
    record["message"] = Array(dtype=array.dtype, shape=array.shape, stype=array.stype, data=data[:-1] + b"\0")
    return reply


def configures(message: Any, context: Any, call_next: Any) -> Any:
    """A mod that adds a site's own entry to the config."""
    if "config" in message.content:
        message.content["config"] = ConfigRecord({**message.content["config"], "device": "cpu"})
    return call_next(message, context)


def reads_metrics(message: Any, context: Any, call_next: Any) -> Any:
    """A mod that logs the reply's metrics, as that of Flower's custom-mods example."""
    reply = call_next(message, context)
    dict(reply.content["metrics"])
    return reply


MISPLACED = {
    "fixedclipping_mod": fixedclipping_mod,
    "adaptiveclipping_mod": adaptiveclipping_mod,
    "LocalDpMod": LocalDpMod(1.0, 1.0, 100.0, 1e-5),
    "casts": casts,
    "flips": flips,
    "configures": configures,
    "reads_metrics": reads_metrics,
}


@pytest.mark.parametrize("name", MISPLACED)
def test_a_mod_before_secure_mod_ends_the_run_with_the_order(name: str) -> None:
    grid = ordinary_app.grid(MISPLACED[name], secure_mod)
    inner = DifferentialPrivacyClientSideFixedClipping(FedAvg(**NO_EVALUATION), 0.0, 0.5, 5)
    with pytest.raises(ConfigError, match=ORDER):
        run(secured(inner), grid)
    assert trained(grid) == 0
    if name in ("flips", "casts"):
        return  # behind secure_mod these are changes of the app's own reply
    strategy = secured(inner)
    run(strategy, ordinary_app.grid(secure_mod, MISPLACED[name]), rounds=1)
    assert survivors(strategy) == [CLIENTS]


@pytest.mark.parametrize("mod", first_ones([message_size_mod, arrays_size_mod]))
def test_mods_that_only_count_stand_anywhere(mod: Any) -> None:
    for mods in ([mod, secure_mod], [secure_mod, mod]):
        strategy = secured(FedAvg())
        agree(run(strategy, ordinary_app.grid(*mods), rounds=1), run(FedAvg(), ordinary_app.grid(), rounds=1))


def test_an_app_without_the_mod_and_one_that_lacks_a_function_are_named() -> None:
    with pytest.raises(ConfigError, match=ORDER):
        run(secured(FedAvg()), ordinary_app.grid())
    grid = ordinary_app.grid(secure_mod)
    for node in grid.nodes.values():
        node.app._registered_funcs.pop("train.default")
    with pytest.raises(ConfigError, match="No train function registered"):
        run(secured(FedAvg()), grid)


# ------------------------------------------------------------------------------------------------- structure of replies


def replying(change: Any) -> Any:
    """An app whose reply is changed; `change` gets the arrays and the metrics, both mappings."""

    def train(message: Message, context: Any) -> Message:
        content = ordinary_app.train(message, context).content
        arrays = {name: value.numpy() for name, value in content["arrays"].items()}
        records = change(arrays, dict(content["metrics"]))
        return Message(records, reply_to=message)

    return train


def records(arrays: Any, metrics: Any, **more: Any) -> RecordDict:
    return RecordDict(
        {"arrays": ArrayRecord({n: Array(np.asarray(v)) for n, v in arrays.items()}), "metrics": MetricRecord(metrics)}
        | more
    )


WRONG = {
    "a metric is missing": (
        lambda a, m: records(a, {"num-examples": 3, "loss": 1.0}), "lacks 'train_loss', .*train_metrics"),
    "no weight": (lambda a, m: records(a, {"train_loss": 1.0}), "lacks 'num-examples'"),
    "a metric is a list": (
        lambda a, m: records(a, m | {"train_loss": [1.0, 2.0]}), "'train_loss' .* must be one number, and is a list"),
    "two ArrayRecords": (lambda a, m: records(a, m, more=ArrayRecord({"x": Array(np.zeros(1))})), "one ArrayRecord"),
    "no MetricRecord": (lambda a, m: RecordDict({"arrays": records(a, m)["arrays"]}), "one MetricRecord"),
    "another name": (lambda a, m: records({f"net.{n}": v for n, v in a.items()}, m), "lacks the array 'w'"),
    "another shape": (lambda a, m: records(a | {"w": np.zeros(2)}, m), r"'w' must have the shape \(3, 1\)"),
    "one more": (lambda a, m: records(a | {"v": np.zeros(2)}, m), "neither sum nor keep local"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_reply_of_another_structure_is_told_where_the_site_announces_it(name: str) -> None:
    change, words = WRONG[name]
    grid = ordinary_app.grid(secure_mod(SitePolicy(announce_errors=True)), train=replying(change))
    with pytest.raises(ConfigError, match=f"5 refuse, .*{words}"):
        run(secured(FedAvg()), grid)
    assert trained(grid) == CLIENTS  # once


def test_elsewhere_the_log_of_the_site_says_it_and_the_run_ends_with_what_replies_must_hold(caplog: Any) -> None:
    """The structure of a reply may depend on data, so a site says nothing of it by default."""
    grid = ordinary_app.grid(secure_mod, train=replying(WRONG["a metric is missing"][0]))
    strategy = secured(FedAvg(), max_void=1)
    with (
        caplog.at_level(logging.ERROR, "securefed.flower"),
        pytest.raises(
            RoundVoid, match=r"none of 2 rounds of train .*numbers num-examples \(up to 64\), train_loss,"
        ) as told,
    ):
        run(strategy, grid, rounds=2)
    assert "it holds ['loss', 'num-examples']" in caplog.text
    assert "['loss'" not in str(told.value) and "announce_errors" in str(told.value)
    assert strategy.arrays is not None


def test_a_later_round_that_goes_wrong_is_void_and_the_model_is_kept() -> None:
    def change(arrays: Any, metrics: Any) -> RecordDict:
        return records(arrays, metrics if metrics["round"] != 2 else {"num-examples": 3})

    strategy = secured(FedAvg(**NO_EVALUATION), max_void=1)
    run(strategy, ordinary_app.grid(secure_mod, train=replying(change)), rounds=3)
    assert [number > 0 for number in survivors(strategy)] == [True, False, True]


DECLARED = {"w": np.zeros((3, 1)), "b": np.zeros(1), "seen": np.array(0)}


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"train_metrics": ("num-examples", "loss")}, "lacks 'train_loss'.*; the app declares num-examples, loss"),
        ({"train_metrics": ("train_loss",)}, "lacks 'num-examples'"),
        ({"arrays": {"w": np.zeros((3, 1))}}, "lacks the array 'b'"),
        ({"arrays": lambda: DECLARED | {"w": np.zeros(3)}}, r"'w' must have the shape \(3, 1\)"),
        ({"evaluate_metrics": ("loss",)}, "lacks 'num-examples', which the terms name"),
    ],
)
def test_an_app_that_declares_its_replies_is_compared_before_it_is_called(declared: Any, words: str) -> None:
    grid = ordinary_app.grid(secure_mod(reply=AppReply(**declared)))
    strategy = secured(FedAvg(fraction_train=0.0 if "evaluate_metrics" in declared else 1.0))
    with pytest.raises(ConfigError, match=f"5 refuse, .*{words}"):
        run(strategy, grid)
    assert trained(grid) == 0


def test_a_declaration_that_fits_changes_nothing() -> None:
    reply = AppReply(DECLARED, ("num-examples", "train_loss"), ["num-examples", "eval_loss"])
    for mod in (secure_mod(reply=reply), secure_mod(SitePolicy(), reply=reply)):
        agree(run(secured(FedAvg()), ordinary_app.grid(mod)), run(FedAvg(), ordinary_app.grid()))
    for wrong in ({"train_metrics": "loss"}, {"evaluate_metrics": (1,)}, {"arrays": 3}):
        with pytest.raises(ConfigError, match="must be"):
            AppReply(**wrong)
    with pytest.raises(ConfigError, match="secure_mod takes a SitePolicy"):
        secure_mod()


@pytest.mark.parametrize("prefix", first_ones(["_orig_mod._module.", "_module.", "module.", "_orig_mod."]))
def test_names_inside_a_librarys_wrapper_are_those_of_the_bare_model(prefix: str, caplog: Any) -> None:
    _update._say.cache_clear()
    train = replying(lambda a, m: records({f"{prefix}{n}": v for n, v in a.items()}, m))
    with caplog.at_level(logging.WARNING, "securefed.client"):
        ours = run(secured(FedAvg()), ordinary_app.grid(secure_mod, train=train))
    agree(ours, run(FedAvg(), ordinary_app.grid()))
    assert caplog.text.count("are read as the same tensors") == 1


# ----------------------------------------------------------------------------------------------------- nothing trained


def test_a_run_that_trained_nothing_raises_the_reasons_and_one_that_did_hands_over_its_model() -> None:
    def broken(message: Any, context: Any) -> Any:
        raise RuntimeError("no rows")

    for inner, phase in ((FedAvg(), "train"), (FedAvg(fraction_train=0.0), "evaluate")):
        strategy = secured(inner, max_void=1)
        grid = ordinary_app.grid(secure_mod, train=broken, evaluate=broken)
        with pytest.raises(RoundVoid, match=f"none of 2 rounds of {phase} gave a sum.*doubled|sat out"):
            run(strategy, grid, rounds=2)
    strategy = secured(FedAvg(), max_void=1)
    result = run(strategy, ordinary_app.grid(secure_mod, evaluate=broken), rounds=1)
    assert result.arrays is not None and strategy.stopped is None
    run(secured(FedAvg()), ordinary_app.grid(secure_mod), rounds=0)


# ------------------------------------------------------------------------------------------------------ slow SuperNodes


class HandClock:
    """A clock that moves when the grid waits for replies."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 1.0


@pytest.mark.parametrize(("starts", "lost", "expected"), [(200.0, 0, CLIENTS), (200.0, 1, CLIENTS - 1)])
def test_the_first_exchange_waits_for_supernodes_that_are_starting(
    starts: float, lost: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of Flower's simulation on a busy machine, whose first clients answer after minutes."""
    clock, grid = HandClock(), ordinary_app.grid(secure_mod)
    monkeypatch.setattr(_grid, "time", clock)
    gone, pull, moments = sorted(grid.nodes)[:lost], grid.pull_messages, list[float]()

    def started(numbers: Any) -> Any:
        if clock.now < starts:
            return []
        replies = pull(numbers)
        moments.extend([clock.now] * bool(replies))
        return replies

    grid.pull_messages = started  # type: ignore[method-assign]
    grid.lose = lambda message: message.metadata.dst_node_id in gone
    strategy = secured(FedAvg(**NO_EVALUATION), patience=120.0)
    run(strategy, grid, rounds=1, timeout=3600.0)
    assert survivors(strategy) == [expected]
    assert strategy.history[0].exchanges == 4 and strategy.history[0].void == ()
    assert moments[0] == starts
    assert moments[1] == pytest.approx(starts + (120.0 if lost else 0.0), abs=2.0)  # from the first reply on: patience
    clock.now, moments = 0.0, []  # the control: a strategy that waits less gets no sum
    with pytest.raises(RoundVoid):
        run(secured(FedAvg(**NO_EVALUATION), patience=120.0, max_void=1), grid, rounds=1, timeout=150.0)

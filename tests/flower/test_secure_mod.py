"""SuperNodes under `secure_mod`: what their sites allow, what they never send, and how they die and come back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from securefed import DataUsage, Ledger, Limits, Seal
from securefed.defenses import Identities, new_identity, public_identity, secure_aggregation
from securefed.defenses._homomorphic import InsecurePaillier
from securefed.errors import ConfigError, StorageError
from securefed.flower import SitePolicy, secure_mod
from securefed.flower._sum_messages import SumRequest, config_digest
from securefed.parties import SumTerms
from tests.flower import ordinary_app
from tests.flower.grid import LocalGrid, Node, arrived
from tests.flower.ordinary_app import CLIENTS
from tests.flower.test_secure_strategy import agree, run, secured

SECRET = "patient 17 is ill"
VICTIM = 1007


def uploads(message: Any, node: int = VICTIM) -> bool:
    """Whether a message asks a node for its update in training."""
    return (
        message.metadata.dst_node_id == node
        and message.metadata.message_type == "train"
        and "arrays" in message.content
    )


def survivors(strategy: Any, phase: str = "train") -> list[int]:
    return [len(entry.survivors) for entry in strategy.history if entry.phase == phase]


def fails(numbers: set[int]) -> Callable[..., Any]:
    def train(message: Any, context: Any) -> Any:
        if context.node_config["partition-id"] in numbers:
            raise RuntimeError(SECRET)
        return ordinary_app.train(message, context)

    return train


@pytest.mark.parametrize("stage", range(4))
def test_a_supernode_that_dies_at_any_stage_is_not_in_the_sum_and_the_run_goes_on(stage: int) -> None:
    grid, strategy = ordinary_app.grid(secure_mod), secured(FedAvg(fraction_evaluate=0.0))
    count = 0

    def lose(message: Any) -> bool:
        nonlocal count
        if message.metadata.dst_node_id != VICTIM:
            return False
        count += 1
        return count > stage

    grid.lose = lose
    result = run(strategy, grid, rounds=2)
    counted = stage == 3  # it was lost after its upload
    assert survivors(strategy) == [CLIENTS if counted else CLIENTS - 1, CLIENTS - 1]
    assert result.arrays is not None


def test_the_first_evaluation_takes_place_without_a_supernode_that_died_in_training() -> None:
    grid = ordinary_app.grid(secure_mod, clients=4)
    dead: list[int] = []

    def lose(message: Any) -> bool:
        if uploads(message) and not dead:
            dead.append(message.metadata.dst_node_id)
            grid.nodes[dead[0]].app = None  # type: ignore[assignment]
        return message.metadata.dst_node_id in dead

    grid.lose = lose
    strategy = secured(FedAvg())
    alive = grid.get_node_ids
    grid.get_node_ids = lambda: [node for node in alive() if node not in dead]  # type: ignore[method-assign]
    run(strategy, grid, rounds=2)
    assert [len(entry.survivors) for entry in strategy.history] == [3, 3, 3, 3]


def test_a_late_reply_does_not_count_and_the_client_is_back_in_the_next_round() -> None:
    grid, strategy = ordinary_app.grid(secure_mod), secured(FedAvg(fraction_evaluate=0.0))
    late: list[Any] = []

    def lose_reply(message: Any) -> bool:
        if uploads(message) and not late:
            late.append(message)
            return True
        return False

    grid.lose_reply = lose_reply
    run(strategy, grid, rounds=3)
    assert survivors(strategy) == [CLIENTS - 1, CLIENTS, CLIENTS]


def test_a_restarted_supernode_takes_its_place_under_a_new_id() -> None:
    grid = ordinary_app.grid(secure_mod)
    strategy = secured(FedAvg(min_train_nodes=4, fraction_evaluate=0.0))
    run(strategy, grid, rounds=1)
    old = grid.nodes.pop(VICTIM)
    grid.nodes[5555] = Node(old.app, old.config)
    run(strategy, grid, rounds=3)
    assert [5555 in entry.survivors for entry in strategy.history] == [False, False, True, True]
    assert survivors(strategy) == [5, 4, 5, 5]


def test_a_further_supernode_takes_part_only_where_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    grid, strategy = ordinary_app.grid(secure_mod), secured(FedAvg(fraction_evaluate=0.0))
    late = grid.nodes.pop(1028)
    run(strategy, grid, rounds=1)
    grid.nodes[1028] = late
    with caplog.at_level(logging.WARNING, "securefed.flower"):
        run(strategy, grid, rounds=1)
    assert survivors(strategy) == [4, 4]
    assert "give SecureStrategy a larger `clients`" in caplog.text


def test_a_duplicated_message_is_answered_once() -> None:
    grid, seen = ordinary_app.grid(secure_mod), []

    def note(message: Any) -> bool:
        if message.metadata.dst_node_id == VICTIM:
            seen.append(arrived(message))
        return False

    grid.lose = note
    run(secured(FedAvg(fraction_evaluate=0.0)), grid, rounds=1)
    assert len(seen) == 4
    node = grid.nodes[VICTIM]
    calls = node.context.state["calls"]["count"]
    for message in seen:
        reply = node.app(arrived(message), node.context)
        assert reply.has_error() or b"refusal" in reply.content["securefed.message"]["message"].data
    assert node.context.state["calls"]["count"] == calls


def test_an_app_that_fails_sits_out_and_its_error_stays_here(caplog: pytest.LogCaptureFixture) -> None:
    """The server cannot tell which client it was: rounds are void until the client has sat out often enough."""
    grid, strategy = ordinary_app.grid(secure_mod, train=fails({1})), secured(FedAvg(fraction_evaluate=0.0))
    with caplog.at_level(logging.WARNING, "securefed.flower"):
        result = run(strategy, grid, rounds=4)
    assert survivors(strategy)[:2] == [0, 0]
    assert survivors(strategy)[-1] == CLIENTS - 1
    assert not grid.errors
    assert result.arrays is not None
    assert SECRET in caplog.text
    assert all(SECRET not in str(entry) for entry in strategy.history)


def test_an_app_that_fails_once_costs_one_more_attempt() -> None:
    failed: list[int] = []

    def train(message: Any, context: Any) -> Any:
        if context.node_config["partition-id"] == 1 and not failed:
            failed.append(1)
            raise RuntimeError(SECRET)
        return ordinary_app.train(message, context)

    strategy = secured(FedAvg(fraction_evaluate=0.0))
    run(strategy, ordinary_app.grid(secure_mod, train=train), rounds=2)
    assert survivors(strategy) == [CLIENTS, CLIENTS]
    assert [entry.exchanges for entry in strategy.history] == [6, 2]
    assert "doubled" in strategy.history[0].void[0]


def test_a_site_may_announce_errors_so_that_the_round_goes_on() -> None:
    mod = secure_mod(SitePolicy(announce_errors=True))
    grid, strategy = ordinary_app.grid(mod, train=fails({1})), secured(FedAvg(fraction_evaluate=0.0))
    run(strategy, grid, rounds=2)
    assert survivors(strategy) == [CLIENTS - 1] * 2
    assert SECRET not in str(strategy.history)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"least": 4}, "at least 4 clients, and these terms open sums over 3"),
        ({"defense": "paillier"}, "uploads under paillier only, and the terms say secure_aggregation"),
        ({"terms": ("00" * 32,)}, "does not allow the terms"),
        ({"party": 7}, "this site is client 7, and the server takes it for client"),
    ],
)
def test_terms_that_the_site_does_not_allow_are_refused_and_the_app_is_not_called(change: Any, words: str) -> None:
    grid = ordinary_app.grid(secure_mod(SitePolicy(**change)))
    with pytest.raises(ConfigError, match=f"5 refuse, .*{words}"):
        run(secured(FedAvg()), grid)
    assert not any("calls" in node.context.state for node in grid.nodes.values())


def test_one_site_that_refuses_does_not_end_the_run() -> None:
    grid, strategy = ordinary_app.grid(secure_mod), secured(FedAvg(fraction_evaluate=0.0))
    grid.nodes[VICTIM].app = ordinary_app.app(secure_mod(SitePolicy(least=4)))
    run(strategy, grid, rounds=2)
    assert survivors(strategy) == [CLIENTS - 1] * 2


def test_a_server_without_a_secure_strategy_gets_nothing() -> None:
    grid = ordinary_app.grid(secure_mod)
    result = run(FedAvg(), grid)
    assert not result.arrays
    assert not any("calls" in node.context.state for node in grid.nodes.values())


def test_a_client_without_the_mod_is_not_in_the_sum() -> None:
    grid, strategy = ordinary_app.grid(secure_mod), secured(FedAvg(fraction_evaluate=0.0))
    grid.nodes[VICTIM].app = ordinary_app.app()
    run(strategy, grid, rounds=2)
    assert survivors(strategy) == [CLIENTS - 1] * 2


@pytest.mark.parametrize("what", ["model", "config", "group", "order"])
def test_a_client_that_was_sent_another_model_or_config_is_not_in_the_sum(what: str) -> None:
    """A server that tells all others not to train would otherwise read one client's update from the sum."""
    grid, strategy = ordinary_app.grid(secure_mod), secured(FedAvg(fraction_evaluate=0.0))

    def tamper(message: Any) -> bool:
        if uploads(message) and what == "group":  # which an app may read as its round
            message.metadata.group_id = "999"
        elif uploads(message) and what == "order":  # an app may read arrays by their place
            names = ("b", "w", "seen")
            message.content["arrays"] = ArrayRecord({name: message.content["arrays"][name] for name in names})
        elif uploads(message):
            name = {"model": "arrays", "config": "config"}[what]
            record = message.content[name].copy()
            if what == "config":
                record["lr"] = 0.0
            else:
                record["b"] = type(record["b"])(record["b"].numpy() + 1)
            message.content[name] = record
        return False

    grid.lose = tamper
    run(strategy, grid, rounds=1)
    assert survivors(strategy) == [CLIENTS - 1]
    assert "another model" in strategy.history[0].refusals[VICTIM]


@pytest.mark.parametrize("settings", [{"base": False}, {"local": ("content",)}, {}])
def test_terms_that_bind_nothing_to_the_request_are_refused(settings: Any) -> None:
    example = {"arrays/w": np.zeros((3, 1)), "content": np.zeros(32)}
    terms = SumTerms.like(example, clients=3, defense=secure_aggregation(), **settings)
    node = ordinary_app.grid(secure_mod).nodes[VICTIM]
    message = Message(
        SumRequest(0, "num-examples", config_digest({}), terms.to_bytes(), b"").content(), VICTIM, "train"
    )
    message.metadata.__dict__["_message_id"] = "1"
    reply = node.app(message, node.context)
    assert ("do not bind updates" in reply.error.reason) == bool(settings)  # the control fails for its empty message


def site_files(place: Path, identities: dict[int, bytes], **entries: str) -> Callable[[int], dict[str, str]]:
    """Write a site's file for every client; the result gives a node's config."""
    public = "\n".join(f'{i} = "{public_identity(key).hex()}"' for i, key in identities.items())
    for i, key in identities.items():
        (place / f"{i}.identity").write_bytes(key)
        lines = [f"party = {i}", f'identity = "{i}.identity"', *(f'{n} = "{v}"' for n, v in entries.items())]
        (place / f"{i}.toml").write_text("\n".join([*lines, "[identities]", public]))
    return lambda number: {"securefed": str(place / f"{number}.toml")}


def test_sites_pin_identities_and_say_which_client_they_are(tmp_path: Path) -> None:
    keys = {i: new_identity() for i in range(CLIENTS)}
    public = Identities({i: public_identity(key) for i, key in keys.items()})
    config = site_files(tmp_path, keys, folder="states")
    grid = ordinary_app.grid(secure_mod, config=lambda number: config(CLIENTS - 1 - number))
    strategy = secured(FedAvg(), secure_aggregation(identities=public))
    theirs = run(FedAvg(), ordinary_app.grid())
    agree(run(strategy, grid), theirs)
    assert [entry.exchanges for entry in strategy.history] == [6, 5, 3, 3, 3, 3]  # one more to ask for numbers
    assert len(list((tmp_path / "states").glob("*.state"))) == 2 * CLIENTS
    other = Identities.generate(CLIENTS)  # the server wrote them
    with pytest.raises(ConfigError, match="not those that this site pins"):
        run(secured(FedAvg(), secure_aggregation(identities=Identities(other.public))), ordinary_app.grid(
            secure_mod, config=config))  # fmt: skip
    with pytest.raises(ConfigError, match="this site has none"):
        run(secured(FedAvg(), secure_aggregation(identities=public)), ordinary_app.grid(secure_mod))


def test_two_supernodes_of_one_name_are_one_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = {i: new_identity() for i in range(CLIENTS)}
    public = Identities({i: public_identity(key) for i, key in keys.items()})
    config = site_files(tmp_path, keys)
    grid = ordinary_app.grid(secure_mod, config=lambda number: config(min(number, 3)))
    strategy = secured(FedAvg(fraction_evaluate=0.0), secure_aggregation(identities=public))
    with caplog.at_level(logging.WARNING, "securefed.flower"):
        run(strategy, grid, rounds=1)
    assert survivors(strategy) == [4]
    assert "says that it is client 3, which is taken" in caplog.text


def test_a_site_keeps_its_state_in_a_sealed_folder_and_answers_nothing_twice(tmp_path: Path) -> None:
    """Flower takes the state after the reply left; an app that is killed between leaves the one from before."""
    for kept in (True, False):
        folder = tmp_path / "states" if kept else None
        mod = secure_mod(SitePolicy(folder=folder, seal=Seal(bytes(range(32))) if kept else None))
        grid, strategy = ordinary_app.grid(mod), secured(FedAvg(fraction_evaluate=0.0))
        stages: list[bool] = []

        def killed(message: Any, grid: LocalGrid = grid, stages: list[bool] = stages) -> bool:
            node = grid.nodes[VICTIM]
            if uploads(message) and not stages:
                before = RecordDict(dict(node.context.state))
                for _ in range(2):
                    reply = node.app(arrived(message), node.context)
                    stages.append(b"refusal" in reply.content["securefed.message"]["message"].data)
                    node.context.state = RecordDict(dict(before))
                return True
            return False

        grid.lose = killed
        run(strategy, grid, rounds=2)
        assert stages == [False, kept]  # without a folder (the control) it masks a second upload like the first
        assert survivors(strategy)[0] == CLIENTS - 1


def test_a_state_that_is_gone_is_not_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = ordinary_app.grid(secure_mod(SitePolicy(folder=tmp_path)))
    strategy = secured(FedAvg(fraction_evaluate=0.0))
    run(strategy, grid, rounds=1)
    for path in tmp_path.glob("train-1-*"):
        path.unlink()
    with caplog.at_level(logging.ERROR, "securefed.flower"):
        run(strategy, grid, rounds=1)
    assert survivors(strategy) == [CLIENTS, CLIENTS - 1]
    assert "is gone, and this client has answered in this run" in caplog.text


def test_a_ledger_counts_over_runs_and_its_site_drops_out_beyond_its_limit(tmp_path: Path) -> None:
    limits = Limits(exchanges=3)
    Ledger.create(tmp_path / "data.ledger", limits, spent=DataUsage())
    (tmp_path / "site.toml").write_text('ledger = "data.ledger"\n[limits]\nexchanges = 3\n')
    counts = []
    for _ in range(2):
        grid = ordinary_app.grid(
            secure_mod, config=lambda number: {"securefed": str(tmp_path / "site.toml")} if number == 1 else {}
        )
        strategy = secured(FedAvg(fraction_evaluate=0.0))
        run(strategy, grid, rounds=2)
        counts += survivors(strategy)
    assert counts == [CLIENTS] * 3 + [CLIENTS - 1]
    assert Ledger.open(tmp_path / "data.ledger", limits).spent.exchanges == 3


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("fewest = 3", ConfigError, "which no site policy has"),
        ('least = "3"', ConfigError, "whole number"),
        ('announce_errors = "no"', ConfigError, "announce_errors must be true or false"),
        ("defense = 5", ConfigError, "defense must be the name"),
        ('party = "0"', ConfigError, "party must be"),
        ('terms = "abcd"', ConfigError, "terms must be a list"),
        ('identity = "missing"', StorageError, "cannot be read"),
        ("party = 0\n[identities]\n0 = 'zz'", ConfigError, "cannot be used"),
        ("least = ", ConfigError, "cannot be used"),
        ("party = 0\n[identities]\n0 = '00'", ConfigError, "belong together"),
    ],
)
def test_a_site_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, error: Any, words: str) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(error, match=words):
        SitePolicy.load(tmp_path / "site.toml")
    grid = ordinary_app.grid(secure_mod, config=lambda _: {"securefed": str(tmp_path / "site.toml")})
    with pytest.raises(ConfigError, match=r"5 refuse, .*cannot answer; its own log gives the reason") as told:
        run(secured(FedAvg()), grid, rounds=1)
    assert str(tmp_path) not in str(told.value)


def test_a_defence_with_a_key_holder_has_no_place_here() -> None:
    with pytest.raises(ConfigError, match="key holder"):
        secured(FedAvg(), InsecurePaillier(bits=512))


def test_values_beyond_their_bound_are_summed_after_the_bound_was_doubled() -> None:
    strategy = secured(FedAvg(fraction_evaluate=0.0), bounds=0.1, largest_weight=64, max_void=8)
    theirs = run(FedAvg(fraction_evaluate=0.0), ordinary_app.grid(), rounds=2)
    ours = run(strategy, ordinary_app.grid(secure_mod), rounds=2)
    agree(ours, theirs)
    assert any(entry.void for entry in strategy.history)
    assert np.isfinite(ours.arrays["w"].numpy()).all()

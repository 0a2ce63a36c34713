"""Runs over Flower's messages and apps: the run in one process, bit for bit, and refusals where they belong."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message as FlowerMessage

from securefed import Dataset, Federation, Message, Public, RunOptions, Seal, Terms, chain
from securefed._messages import KEY_HOLDER
from securefed._runtime.sum_run import new_run
from securefed.defenses import Defense, Identities, secure_aggregation, threshold_paillier
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import InsecurePaillier, insecure_deal
from securefed.errors import ConfigError, RoundVoid, TooFewSurvivors, VersionRefused
from securefed.flower import client_app, serve
from securefed.flower._client import party_of
from securefed.flower._enrolment import ACTION as ENROL
from securefed.flower._enrolment import EnrolmentReply, Invitation
from securefed.flower._grid import ACTION as PROTOCOL
from securefed.flower._grid import from_content
from tests.combinations import each_value, first_ones
from tests.contract.settings import CLIENTS, data, make
from tests.flower.grid import FAILURES, LocalGrid, Node, failing, of_version, released


def quick(**options: Any) -> dict[str, Any]:
    """Arguments of `serve` that wait for no real network."""
    return {"wait": 2.0, "poll": 0.001, "options": RunOptions(**{"timeout": 0.02} | options)}


DATA = data()
PUBLIC = Public.of(DATA)


def terms_of(name: str, defense: Defense, **changes: Any) -> Terms:
    return Terms.of(make(name), PUBLIC, defense, **({"seed": 3} | changes))


def rows(context: Any) -> Dataset:
    return DATA[context.node_config["partition-id"]]


def grid_of(terms: Terms, **options: Any) -> LocalGrid:
    app = client_app(lambda _: terms, rows, **options)
    nodes = {100 + client: Node(app, {"partition-id": client}) for client in range(CLIENTS)}
    for party in terms.defense.aggregation.beside:
        assert party == KEY_HOLDER
        nodes[99] = Node(app, {"role": "key-holder"})
    return LocalGrid(nodes)


OVER_FLOWER = {
    "plain": chain(Quantise()),
    "pipelined": chain(secure_aggregation(pipelined=True)),
    "active": chain(secure_aggregation(identities=Identities.generate(CLIENTS), pipelined=True, verify=True)),
    "paillier": chain(InsecurePaillier()),
}


@pytest.mark.parametrize(
    ("defense", "name"), each_value(OVER_FLOWER, ["pca/ssi", "optimization/scaffold", "personalized/flame"])
)
def test_a_run_over_flower_is_the_run_in_one_process(name: str, defense: str) -> None:
    terms = terms_of(name, OVER_FLOWER[defense])
    personal: dict[int, Any] = {}

    def keep(context: Any, result: Any) -> None:
        personal[context.node_config["partition-id"]] = result

    rounds: list[int] = []
    ours = serve(grid_of(terms, personal=keep), terms, 3, progress=lambda e: rounds.append(e.round), **quick())
    theirs = Federation(make(name), DATA, chain(Quantise()), seed=3, public=PUBLIC, batched=False).run(3)
    assert rounds == [0, 1, 2] and ours.stopped is None and not ours.uncommitted
    for tensor, value in theirs.output.items():
        np.testing.assert_array_equal(ours.output[tensor], value)
    assert not ours.personal and set(personal) == set(theirs.personal)
    for client, result in theirs.personal.items():
        for tensor, value in result.items():
            np.testing.assert_array_equal(personal[client][tensor], value)


def test_nodes_that_are_silent_or_fail_drop_out_and_come_back() -> None:
    terms = terms_of("pca/ssi", chain(secure_aggregation(pipelined=True)))
    grid = grid_of(terms)

    def lose(message: Any) -> bool:
        if message.metadata.message_type != PROTOCOL:
            return False
        inner = Message.decode(from_content(message.content, -1))
        return inner.stage == "upload" and inner.receiver == inner.round % CLIENTS

    grid.lose = lose
    result = serve(grid, terms, 3, **quick())
    assert [len(entry.survivors) for entry in result.history] == [CLIENTS - 1] * 3
    grid.lose = lambda _: False
    for node in grid.nodes.values():
        node.begin({})
    broken, whole = grid.nodes[102], grid.nodes[102].app
    again = terms_of("pca/ssi", chain(secure_aggregation()))
    for node in grid.nodes.values():
        node.app = client_app(lambda _: again, rows)

    def fails(message: Any, context: Any) -> Any:
        if message.metadata.message_type == PROTOCOL:
            raise RuntimeError("a disk died")
        return whole_again(message, context)

    whole_again = broken.app
    broken.app = fails  # type: ignore[assignment]
    assert whole is not whole_again
    result = serve(grid, again, 2, **quick())
    assert [entry.survivors for entry in result.history] == [(0, 1, 3, 4)] * 2


@pytest.mark.parametrize("kind", FAILURES)
def test_a_supernode_whose_invitation_failed_is_invited_again(kind: str) -> None:
    terms, invited = terms_of("pca/ssi", chain(secure_aggregation())), list[int]()
    grid = grid_of(terms)

    def fails(message: FlowerMessage) -> bool:
        if message.metadata.message_type == PROTOCOL or message.metadata.dst_node_id != 103:
            return False
        invited.append(message.metadata.dst_node_id)
        return len(invited) <= 2

    failing(grid, kind, fails)
    result = serve(grid, terms, 2, **quick())
    assert [len(entry.survivors) for entry in result.history] == [CLIENTS] * 2
    assert len(invited) == 3


@pytest.mark.parametrize(("kind", "pipelined"), first_ones(product(FAILURES, [False, True]), 2))
def test_a_run_that_begins_without_a_supernode_invites_it_in_later_rounds(kind: str, pipelined: bool) -> None:
    terms = terms_of("optimization/scaffold", chain(secure_aggregation(pipelined=pipelined)))
    grid, rounds = grid_of(terms), list[int]()

    def fails(message: FlowerMessage) -> bool:
        return message.metadata.message_type != PROTOCOL and message.metadata.dst_node_id == 103 and len(rounds) < 2

    failing(grid, kind, fails)
    more: dict[str, Any] = {"least": 4, "progress": lambda entry: rounds.append(entry.round)}
    result = serve(grid, terms, 6, **quick() | {"wait": 0.05} | more)
    counts = [len(entry.survivors) for entry in result.history]
    assert counts[:2] == [CLIENTS - 1] * 2 and counts[-1] == CLIENTS
    assert counts == sorted(counts)


def test_a_supernode_that_refuses_while_a_run_goes_on_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    terms = terms_of("pca/ssi", chain(secure_aggregation()))
    grid = grid_of(terms)
    late = grid.nodes.pop(104)
    other = terms_of("pca/ssi", chain(secure_aggregation()), seed=4)

    def arrive(entry: Any) -> None:
        grid.nodes[104] = Node(client_app(lambda _: other, rows), {"partition-id": 4})
        grid.nodes[105] = Node(late.app, {"partition-id": 0})

    result = serve(grid, terms, 4, least=4, progress=arrive, **quick() | {"wait": 0.05})
    assert [entry.survivors for entry in result.history] == [(0, 1, 2, 3)] * 4
    assert caplog.text.count("party 4 does not take part: the server's terms have the fingerprint") == 1
    assert caplog.text.count("two SuperNodes report that they are client 0") == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 4}, "fingerprint"),
        ({"public": replace(PUBLIC, feature_bound=PUBLIC.feature_bound * 2)}, "fingerprint"),
        ({"algorithm": replace(make("pca/ssi"), rank=1)}, "fingerprint"),
        ({"defense": chain(secure_aggregation(threshold=4))}, "fingerprint"),
    ],
)
def test_a_party_of_other_terms_ends_the_run_before_it_begins(change: dict[str, Any], words: str) -> None:
    terms = terms_of("pca/ssi", chain(secure_aggregation()))
    grid = grid_of(terms)
    given = {"algorithm": terms.algorithm, "public": PUBLIC, "defense": terms.defense, "seed": 3} | change
    other = Terms.of(**given)
    grid.nodes[103].app = client_app(lambda _: other, rows)
    with pytest.raises(ConfigError, match=f"party 3 does not take part.*{words}"):
        serve(grid, terms, 1, **quick())


def test_a_supernode_of_another_version_is_refused_by_name_before_the_run_begins() -> None:
    terms = terms_of("pca/ssi", chain(secure_aggregation()))
    for version in (2, 1):
        grid = grid_of(terms)
        grid.nodes[103].app = released(grid.nodes[103].app, version)  # type: ignore[assignment]
        if version == 2:
            with pytest.raises(VersionRefused, match=r"SuperNode 103 speaks version 2 .* this party speaks version 1"):
                serve(grid, terms, 1, **quick())
            assert not grid.nodes[103].context.state  # nor does its app take part in the run of this server
        else:  # positive control
            assert serve(grid, terms, 1, **quick()).history[0].survivors == (0, 1, 2, 3, 4)


def test_an_app_refuses_a_server_of_another_version_by_name_and_one_that_names_none() -> None:
    terms = terms_of("pca/ssi", chain(secure_aggregation()))
    node, invitation = grid_of(terms).nodes[100], Invitation(new_run(), terms.digest)

    def refusal(content: Any) -> str:
        message = FlowerMessage(content, 1, ENROL)
        message.metadata.__dict__["_message_id"] = "1"
        return EnrolmentReply.read(node.app(message, node.context).content, 100).refusal

    with of_version(2):
        other = invitation.content()
    assert "message from the server refused: it speaks version 2" in refusal(other)
    without = invitation.content()
    [record] = without.config_records.values()
    del record["version"]
    assert "it names no version of the protocol" in refusal(without)
    assert not node.context.state
    assert refusal(invitation.content()) == ""  # positive control


def test_a_supernode_that_changes_its_release_during_a_run_is_left_out_of_the_sums() -> None:
    terms, rounds = terms_of("pca/ssi", chain(secure_aggregation())), list[int]()
    grid = grid_of(terms)
    old, new = grid.nodes[103].app, released(grid.nodes[103].app, 2)

    def update(entry: Any) -> None:
        rounds.append(entry.round)
        grid.nodes[103].app = new if len(rounds) == 1 else old  # type: ignore[assignment]

    result = serve(grid, terms, 3, progress=update, **quick())
    assert [entry.survivors for entry in result.history] == [(0, 1, 2, 3, 4), (0, 1, 2, 4), (0, 1, 2, 3, 4)]
    assert all("speaks version 1 of the protocol and this party speaks version 2" in text for text in grid.errors)
    assert grid.errors


def test_data_beyond_what_is_declared_are_refused_without_a_word_of_them() -> None:
    terms = terms_of("pca/ssi", chain(secure_aggregation()))
    for wrong in (
        Dataset(DATA[1].x * 1000, DATA[1].y),
        Dataset(DATA[1].x[:, :-1], DATA[1].y),
        Dataset(DATA[1].x[:-1], DATA[1].y[:-1]),
        Dataset(DATA[1].x, DATA[1].y + 5),
    ):
        grid = grid_of(terms)
        grid.nodes[101].app = client_app(lambda _: terms, lambda _, wrong=wrong: wrong)
        with pytest.raises(ConfigError, match=r"party 1 does not take part: DataError; its own log gives the reason$"):
            serve(grid, terms, 1, **quick())


def test_absent_and_doubled_parties() -> None:
    terms = terms_of("pca/ssi", chain(secure_aggregation()))
    grid = grid_of(terms)
    missing = grid.nodes.pop(104)
    with pytest.raises(TooFewSurvivors, match=r"4 of 5 clients enrolled within 0.05 s, parties \[4\] did not"):
        serve(grid, terms, 1, **quick() | {"wait": 0.05})
    for node in grid.nodes.values():
        node.begin({})
    assert serve(grid, terms, 1, least=4, **quick() | {"wait": 0.05}).history[0].survivors == (0, 1, 2, 3)
    for node in (*grid.nodes.values(), missing):
        node.begin({})
    grid.nodes[105], grid.nodes[106] = missing, Node(missing.app, {"partition-id": 0})
    with pytest.raises(ConfigError, match="two SuperNodes report that they are client 0"):
        serve(grid, terms, 1, **quick())
    paillier = terms_of("pca/ssi", chain(InsecurePaillier()))
    grid = grid_of(paillier)
    del grid.nodes[99]
    with pytest.raises(TooFewSurvivors, match=r"parties \[-2\] did not"):
        serve(grid, paillier, 1, least=3, **quick() | {"wait": 0.05})


def test_a_server_cannot_make_a_client_begin_anew_nor_answer_twice() -> None:
    """Messages of a whole run, handed out a second time: every one is refused, and a second enrolment too."""
    terms = terms_of("optimization/scaffold", chain(secure_aggregation()))
    grid, seen = grid_of(terms), []

    def note(message: Any) -> bool:
        seen.append(message)
        return False

    grid.lose = note
    serve(grid, terms, 1, **quick())
    with pytest.raises(ConfigError, match=r"takes part in run .* already; start a new Flower run"):
        serve(grid, terms, 1, **quick())
    replayed = [m for m in seen if m.metadata.message_type == PROTOCOL and m.metadata.dst_node_id == 101]
    assert len(replayed) >= 4
    node = grid.nodes[101]
    for message in replayed:
        assert Message.decode(from_content(node.app(message, node.context).content, 1)).stage == "refusal"
    node.begin({})  # positive control: a client that forgot its state answers what opens an exchange, after enrolling
    with pytest.raises(Exception, match="has not enrolled"):
        node.app(replayed[0], node.context)
    invitation = next(m for m in seen if m.metadata.dst_node_id == 101 and m.metadata.message_type != PROTOCOL)
    node.app(invitation, node.context)
    assert Message.decode(from_content(node.app(replayed[0], node.context).content, 1)).stage == "keys"


@pytest.mark.parametrize("sealed", first_ones([True, False]))
def test_a_run_that_died_goes_on_with_what_server_and_clients_kept(tmp_path: Path, sealed: bool) -> None:
    terms = terms_of("personalized/flame", chain(secure_aggregation(pipelined=True)))
    seal = (lambda _: Seal.from_file(tmp_path / "client.key")) if sealed else None
    grid = grid_of(terms, folder=lambda _: tmp_path / "states", seal=seal)
    options = quick(checkpoint=tmp_path / "server.checkpoint")

    def dies(entry: Any) -> None:
        if entry.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(grid, terms, 4, progress=dies, **options)
    for node in grid.nodes.values():
        node.begin({})  # another Flower run
    ours = serve(grid, terms, 4, **options)
    theirs = serve(grid_of(terms), terms, 4, **quick())
    assert [entry.round for entry in ours.history] == [0, 1, 2, 3]
    for tensor, value in theirs.output.items():
        np.testing.assert_array_equal(ours.output[tensor], value)
    states = sorted(path.name for path in (tmp_path / "states").glob("*.state"))
    assert states == [f"client-{client}-{terms.digest[:16]}.state" for client in range(CLIENTS)]


def test_a_client_that_kept_nothing_does_not_go_on_as_if_it_had(tmp_path: Path) -> None:
    options = quick(checkpoint=tmp_path / "server.checkpoint")
    terms = terms_of("personalized/flame", chain(secure_aggregation()))
    serve(grid_of(terms), terms, 1, **options)
    with pytest.raises(ConfigError, match="has stored no state of it; give client_app a folder"):
        serve(grid_of(terms), terms, 2, **options)
    other = quick(checkpoint=tmp_path / "other.checkpoint")  # positive control: FedAvg's clients remember nothing
    forgetful = terms_of("optimization/fedavg", chain(secure_aggregation()))
    serve(grid_of(forgetful), forgetful, 1, **other)
    assert len(serve(grid_of(forgetful), forgetful, 2, **other).history) == 2


def test_which_party_a_supernode_is() -> None:
    assert party_of(Node(client_app(lambda _: None, rows), {"partition-id": 3}).context) == 3  # type: ignore[arg-type, return-value]
    for config in ({}, {"partition-id": -1}, {"partition-id": "1"}, {"role": "server"}):
        with pytest.raises(ConfigError, match="names no client"):
            party_of(Node(client_app(lambda _: None, rows), config).context)  # type: ignore[arg-type, return-value]


def test_too_many_lost_void_the_round_by_name() -> None:
    terms = terms_of("pca/ssi", chain(secure_aggregation()))
    grid = grid_of(terms)
    grid.lose = lambda message: message.metadata.message_type == PROTOCOL and message.metadata.dst_node_id < 103
    with pytest.raises(RoundVoid):
        serve(grid, terms, 1, **quick(max_void=2))


def test_keys_that_every_process_would_deal_for_itself_are_refused() -> None:
    with pytest.raises(ConfigError, match="deal\\(\\) once, and give each party its part"):
        serve(LocalGrid({}), terms_of("pca/ssi", chain(threshold_paillier(threshold=3, holders=CLIENTS))), 1, **quick())
    keys = insecure_deal(3, CLIENTS)
    server = terms_of("pca/ssi", chain(threshold_paillier(keys=keys.only(-1))))  # positive control: each has its own
    own = {client: terms_of("pca/ssi", chain(threshold_paillier(keys=keys.only(client)))) for client in range(CLIENTS)}
    app = client_app(lambda context: own[context.node_config["partition-id"]], rows)
    grid = LocalGrid({client: Node(app, {"partition-id": client}) for client in range(CLIENTS)})
    assert serve(grid, server, 1, **quick()).history[0].survivors == tuple(range(CLIENTS))

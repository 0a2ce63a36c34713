"""An active server, a thief of files, and crashes at the worst moment, against clients on SuperNodes."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict

from securefed import SERVER, Message, Seal, Terms, chain
from securefed._persistence import container
from securefed._runtime.client import COMMIT
from securefed._runtime.exchange_header import ExchangeHeader
from securefed._runtime.sum_run import new_run
from securefed._tensors import decode, encode
from securefed.defenses import Identities, secure_aggregation, threshold_paillier
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import InsecurePaillier, insecure_deal
from securefed.errors import ConfigError, MalformedError, RoundVoid, StorageError
from securefed.flower import client_app, serve
from securefed.flower._enrolment import ACTION, EnrolmentReply, Invitation
from securefed.flower._grid import ACTION as PROTOCOL
from securefed.flower._grid import from_content, from_record, to_content
from tests.contract.settings import CLIENTS
from tests.flower.grid import LocalGrid, Node
from tests.flower.test_flower_runs import DATA, grid_of, quick, terms_of

SECRET = "patient 17 is ill"


def inside(message: Any) -> Message | None:
    """The protocol's message in one of Flower's."""
    if message.metadata.message_type != PROTOCOL:
        return None
    return Message.decode(from_content(message.content, SERVER))


def asks(message: Any, stage: str, client: int) -> bool:
    inner = inside(message)
    return inner is not None and (inner.stage, inner.receiver) == (stage, client)


def ask(node: Node, message: Any) -> Message:
    return Message.decode(from_content(node.app(message, node.context).content, 1))


def invite(node: Node, invitation: Invitation) -> str:
    """The node's refusal, empty where it enrols."""
    message = FlowerMessage(invitation.content(), 1, ACTION)
    message.metadata.__dict__["_message_id"] = "1"
    return EnrolmentReply.read(node.app(message, node.context).content, 1).refusal


def begin_anew(grid: LocalGrid) -> None:
    for node in grid.nodes.values():
        node.begin({})


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("client-*.state"))


def masking() -> Terms:
    return terms_of("optimization/scaffold", chain(secure_aggregation()))


def test_no_error_of_a_clients_data_or_disk_reaches_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever its class, at enrolment and later: Flower sends the text of what an app raises to the server."""
    terms, opened = masking(), tmp_path / "folder"
    for error in (ValueError(SECRET), ConfigError(SECRET), MalformedError(1, SECRET)):

        def fails(_: Any, error: Exception = error) -> Any:
            raise error

        grid = grid_of(terms)
        grid.nodes[101].app = client_app(lambda _: terms, fails)
        with pytest.raises(ConfigError, match=r"party 1 does not take part: DataError; its own log gives the reason$"):
            serve(grid, terms, 1, **quick())
        grid = grid_of(terms)
        run = new_run()
        assert invite(grid.nodes[101], Invitation(run, terms.digest)) == ""
        grid.nodes[101].app = client_app(lambda _: terms, fails)
        header = Message(run, 0, "keys", SERVER, 1, {})
        with pytest.raises(RuntimeError, match=r"^this party cannot answer; its own log gives the reason$"):
            ask(grid.nodes[101], wrapped(header))
    grid = grid_of(terms, folder=lambda _: opened)

    def breaks(message: Any) -> bool:
        if asks(message, "upload", 1):
            shutil.rmtree(opened)
            opened.write_text("a file in the folder's place")
        return False

    grid.lose = breaks
    with caplog.at_level(logging.ERROR, "securefed.flower"), pytest.raises(RoundVoid):
        serve(grid, terms, 1, **quick(max_void=1))
    assert grid.errors and not any(str(tmp_path) in text or "file" in text for text in grid.errors)
    assert str(tmp_path) in caplog.text and SECRET in caplog.text


def wrapped(inner: Message) -> Any:
    message = FlowerMessage(to_content(inner.encode()), 1, PROTOCOL)
    message.metadata.__dict__["_message_id"] = "1"
    return message


def test_a_thief_of_the_file_finds_no_secret_of_an_exchange(tmp_path: Path) -> None:
    terms = terms_of("optimization/scaffold", chain(secure_aggregation(pipelined=True)))
    grid = grid_of(terms, folder=lambda _: tmp_path)
    serve(grid, terms, 2, **quick())
    _, tensors = container.load(files(tmp_path)[1], "client's state")
    lies, header = decode(decode(tensors["state"].tobytes())[0]["state"].tobytes())
    assert any(name.startswith("committed/") for name in lies)  # positive control: what it learned
    assert not [name for name in lies if name.startswith("protocol/")] and "header" not in header
    held, _ = decode(from_record(grid.nodes[101].context.state.array_records["securefed.frozen"]))
    assert held["protocol/prepared:y"].size  # positive control: what waits for the next exchange lies with Flower


@pytest.mark.parametrize("kept", [True, False])
def test_a_state_that_flower_sets_back_makes_no_second_upload(tmp_path: Path, kept: bool) -> None:
    """Flower takes the state after the reply left; an app that is killed between leaves the one from before.

    Without a folder (the positive control) the client masks a second upload like the first one.
    """
    terms = masking()
    grid, replies = grid_of(terms, folder=(lambda _: tmp_path) if kept else None), []

    def killed(message: Any) -> bool:
        node = grid.nodes[101]
        if asks(message, "upload", 1) and not replies:
            before = RecordDict(dict(node.context.state))
            replies.append(ask(node, message).stage)
            node.context.state = before
            replies.append(ask(node, message).stage)
            return True
        return False

    grid.lose = killed
    result = serve(grid, terms, 2, **quick())
    assert replies == ["upload", "refusal" if kept else "upload"]
    assert [entry.survivors for entry in result.history] == [(0, 2, 3, 4), tuple(range(CLIENTS))]


@pytest.mark.parametrize("kept", [True, False])
def test_a_contribution_let_out_in_one_run_enters_no_other_sum_in_the_next(tmp_path: Path, kept: bool) -> None:
    """A server starts a new Flower run of the same terms and leaves a client out: the two sums would subtract.

    Without a folder (the positive control) they do.
    """
    identities = Identities.generate(CLIENTS)
    terms = terms_of("optimization/fedavg", chain(secure_aggregation(identities=identities)))
    grid = grid_of(terms, folder=(lambda _: tmp_path) if kept else None)
    first = serve(grid, terms, 1, **quick(keep_transcript=True)).transcript.records[0]
    begin_anew(grid)
    grid.lose = lambda message: asks(message, "upload", 4)
    if kept:
        with pytest.raises(RoundVoid, match="entered a sum over other survivors"):
            serve(grid, terms, 1, **quick(max_void=1))
        return
    second = serve(grid, terms, 1, **quick(keep_transcript=True)).transcript.records[0]
    plain = terms_of("optimization/fedavg", chain(Quantise()))
    clear = serve(grid_of(plain), plain, 1, **quick(keep_transcript=True)).transcript
    [own] = [s.message.body for s in clear.sent if s.message.sender == 4 and s.message.stage == "upload"]
    for name, total in first.total.items():
        [sent] = [value for field, value in own.items() if field.endswith(name)]
        step = first.step[name]
        np.testing.assert_allclose((total - second.total[name]) / step, np.asarray(sent, float), atol=1e-6)


def test_a_personal_result_is_handed_out_at_the_end_and_not_for_a_replay() -> None:
    terms, found, seen = terms_of("personalized/flame", chain(Quantise())), [], []
    grid = grid_of(terms, personal=lambda context, _: found.append(context.node_config["partition-id"]))

    def note(message: Any) -> bool:
        if asks(message, COMMIT, 1):
            seen.append(message)
        return False

    grid.lose = note
    serve(grid, terms, 1, **quick())
    assert sorted(found) == list(range(CLIENTS))
    assert ask(grid.nodes[101], seen[0]).stage == "refusal"
    assert len(found) == CLIENTS


def test_a_cohort_larger_than_the_run_is_refused_before_it_is_listed() -> None:
    body = ExchangeHeader((0, 1), "train", 0).body() | {"session/cohort": np.zeros(1000, np.int64)}
    message = Message(new_run(), 0, "keys", SERVER, 0, body)
    with pytest.raises(MalformedError, match=r"a cohort of 1000, and the run has 5 clients$"):
        ExchangeHeader.read(message, 0, 5, 0)


def test_terms_with_other_threshold_keys_are_other_terms() -> None:
    keys = insecure_deal(3, CLIENTS, bits=256)
    terms, other = (
        terms_of("pca/ssi", chain(threshold_paillier(keys=dealt)))
        for dealt in (keys, insecure_deal(3, CLIENTS, bits=256))
    )
    assert terms.digest != other.digest
    alone = terms_of("pca/ssi", chain(threshold_paillier(keys=keys.only(1))))
    assert alone.digest == terms.digest  # whose secrets a party holds is its own
    assert not any(str(share) in repr(terms.defense) for share in keys.shares.values())


def test_a_frozen_state_of_numbers_out_of_range_is_refused_by_name() -> None:
    terms, run = masking(), new_run()
    node = terms.node(1, run, DATA[1])
    header = ExchangeHeader((0, 1, 2, 3, 4), "train", 0).body()
    assert node.handle(Message(run, 0, "keys", SERVER, 1, header | {"protocol/x": np.zeros(1)})).stage == "refusal"
    tensors, header = decode(node.freeze())
    for change in ({"doublings": 10**6}, {"learned": ["0x1p99999"]}, {"kind": "x"}, {"cohort": [3, 1]}, {"cohort": 1}):
        wrong = {"cohort": [0, 1], "kind": "train", "doublings": 0, "learned": []} | change
        with pytest.raises(StorageError):
            terms.node(1, run, DATA[1]).thaw(encode(tensors, header | {"exchange": 0, "header": wrong}))


def test_a_supernode_that_says_it_is_another_client_ends_the_run_or_takes_its_place() -> None:
    """Flower knows nodes, not clients: without identities who enrols first is believed."""
    terms = terms_of("pca/ssi", chain(secure_aggregation()))
    grid = grid_of(terms)
    impostor = Node(client_app(lambda _: terms, lambda _: DATA[3]), {"partition-id": 3})
    del grid.nodes[103]
    grid.nodes[90] = impostor
    assert serve(grid, terms, 1, **quick()).history[0].survivors == tuple(range(CLIENTS))
    own = Identities.generate(CLIENTS)
    signed, without = (
        terms_of("pca/ssi", chain(secure_aggregation(identities=known))) for known in (own, Identities(own.public))
    )
    assert signed.digest == without.digest
    grid = grid_of(signed)
    del grid.nodes[103]
    grid.nodes[90] = Node(client_app(lambda _: without, lambda _: DATA[3]), {"partition-id": 3})
    assert serve(grid, signed, 1, **quick()).history[0].survivors == (0, 1, 2, 4)


def test_a_key_holder_is_not_asked_for_where_it_is_elsewhere() -> None:
    holder = InsecurePaillier().helper(5)
    assert holder is not None
    given = replace(InsecurePaillier(), public=holder.public)
    terms = terms_of("pca/ssi", chain(given))
    grid = grid_of(terms)
    with pytest.raises(ConfigError, match="has no use for party -2 here"):
        serve(grid, terms, 1, **quick())


def test_a_supernode_that_never_answers_keeps_nobody_else_from_enrolling() -> None:
    terms = masking()
    grid = grid_of(terms)
    late = grid.nodes.pop(104)
    grid.nodes[50] = Node(late.app, {})

    def silent(message: Any) -> bool:
        if message.metadata.dst_node_id == 50:
            grid.nodes[104] = late  # joins while the silent one is waited for
            return True
        return False

    grid.lose = silent
    assert serve(grid, terms, 1, **quick()).history[0].survivors == tuple(range(CLIENTS))


def test_what_terms_read_from_the_runs_config_is_for_the_server_to_choose() -> None:
    """An app whose defence stands in the config agrees to none; one whose terms are its own does not enrol."""
    masked, clear = masking(), terms_of("optimization/scaffold", chain(Quantise()))
    app = client_app(lambda context: masked if context.run_config["masked"] else clear, lambda _: DATA[1])
    node = Node(app, {"partition-id": 1})
    node.begin({"masked": False})
    assert invite(node, Invitation(new_run(), clear.digest)) == ""
    firm = Node(client_app(lambda _: masked, lambda _: DATA[1]), {"partition-id": 1})
    firm.begin({"masked": False})
    assert "fingerprint" in invite(firm, Invitation(new_run(), clear.digest))


def test_a_client_with_a_sealed_folder_shows_a_server_nothing_of_its_data_by_refusing(tmp_path: Path) -> None:
    """A server asks one SuperNode for uploads to bases of ever larger scale, under old and new numbers, in any order.

    Two data sets with the same public facts: every reply but the one protected upload is the same. A client that
    refused for its range would be told apart by the scale from which on it does.
    """
    terms = terms_of("pca/ssi", chain(secure_aggregation()))
    shown = []
    for name, scale in (("small", 0.01), ("large", 1.0)):
        rows = replace(DATA[1], x=np.clip(DATA[1].x * scale, -1, 1))
        options: dict[str, Any] = {
            "folder": lambda _, name=name: tmp_path / name,
            "seal": lambda _: Seal(bytes(range(32))),
        }
        grid = grid_of(terms, **options)
        grid.nodes[101].app = client_app(lambda _: terms, lambda _, rows=rows: rows, **options)
        requests: list[Message] = []

        def note(message: Any, requests: list[Message] = requests) -> bool:
            inner = inside(message)
            requests.extend([inner] if inner is not None and inner.receiver == 1 else [])
            return asks(message, "upload", 1)  # the client never hears of it: the server has it for itself

        grid.lose = note
        serve(grid, terms, 1, **quick())
        upload = next(request for request in requests if request.stage == "upload")
        replies = []
        for power in range(-20, 21):
            basis = upload.body["broadcast/basis"] * 2.0**power
            for number in (upload.round, upload.round + power, upload.round):
                asked = replace(upload, round=number, body={**upload.body, "broadcast/basis": basis})
                reply = ask(grid.nodes[101], wrapped(asked))
                refused = reply.stage == "refusal"
                replies.append((reply.stage, {n: v.tobytes() if refused else v.shape for n, v in reply.body.items()}))
        assert [stage for stage, _ in replies].count("upload") <= 1
        shown.append([(stage, {n: v for n, v in body.items() if n != "tag"}) for stage, body in replies])
    assert shown[0] == shown[1]

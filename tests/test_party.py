"""`securefed party`: a sum whose messages are files, in which every command can be run again at any point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from safetensors.numpy import save_file
from typer.testing import CliRunner

from securefed._commands import party_answer, party_turns
from securefed._commands.cli import app
from securefed._commands.party_exchange import CLIENT_STATE
from securefed._commands.party_files import read_arrays, requests_in
from securefed._persistence.state_file import StateFile

RUNNER = CliRunner()
RNG = np.random.default_rng(0)
UPDATES = [{"w": RNG.normal(size=4), "b": RNG.normal(size=4)} for _ in range(3)]
WEIGHTS = (600, 77, 20)
SIGNS, SERVER = ("--identity", "server.key"), ("--server", "server.key.pub")


def party(*arguments: Any, code: int = 0) -> str:
    done: Result = RUNNER.invoke(app, ["party", *map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == code, (arguments, done.output, done.exception)
    return " ".join(done.output.split())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which an update of each client and the terms of three clients without a model lie."""
    monkeypatch.chdir(tmp_path)
    np.savez("update-0.npz", **UPDATES[0])
    lines = ["w,b", *(f"{w!r},{b!r}" for w, b in zip(*(UPDATES[1][n].tolist() for n in "wb"), strict=True))]
    Path("update-1.csv").write_text("\n".join(lines))
    save_file(UPDATES[2], "update-2.safetensors")
    for name in (0, 1, 2, "server"):
        party("identity", f"{name}.key")
    agree("--no-base", "--threshold", 2, *identities())
    Path("exchange").mkdir()
    return tmp_path


def identities() -> list[str]:
    return [word for client in range(3) for word in ("--identity", f"{client}={client}.key.pub")]


def agree(*options: Any, name: str = "terms.json") -> str:
    common = ("--like", "update-0.npz", "--clients", 3, "--bound", 8, "--largest-weight", 1000)
    return party("terms", name, *common, *options)


def contribute(client: int, *more: Any, code: int = 0) -> str:
    update = next(Path.cwd().glob(f"update-{client}.*"))
    given = ("--update", update, "--weight", WEIGHTS[client], "--identity", f"{client}.key", *SERVER)
    return party("contribute", "exchange", "--terms", "terms.json", "--party", client, *given, *more, code=code)


def server(*more: Any, code: int = 0) -> str:
    return party("sum", "exchange", "--terms", "terms.json", *SIGNS, *more, code=code)


def expected(clients: Any) -> dict[str, np.ndarray]:
    weights = [WEIGHTS[i] for i in clients]
    return {name: np.average([UPDATES[i][name] for i in clients], axis=0, weights=weights) for name in ("w", "b")}


def check(round: int, clients: Any) -> dict[str, Any]:
    mean = read_arrays(Path(f"exchange/round-{round}-mean.npz"))
    for name, value in expected(clients).items():
        np.testing.assert_allclose(mean[name], value, atol=1e-9)
    table = read_arrays(Path(f"exchange/round-{round}-mean.csv"))
    assert all(np.array_equal(table[name], mean[name]) for name in mean)
    facts: dict[str, Any] = json.loads(Path(f"exchange/round-{round}-result.json").read_text())
    assert facts["survivors"] == list(clients)
    assert facts["weight"] == pytest.approx(sum(WEIGHTS[i] for i in clients))
    assert any("stages: keys" in line for line in facts["plan"])
    assert 0 < facts["error"]["w"] < 1e-9
    return facts


def test_three_hospitals_sum_two_rounds_and_every_command_is_run_twice(here: Path) -> None:
    party_key = ("--seal-key-file", "seal.key")
    RUNNER.invoke(app, ["key", "seal.key"])
    for round in (1, 2):
        for _ in range(8):
            shown = server("--round", round, *party_key)
            if f"Round {round} is complete" in shown:
                break
            assert "waits for clients 0, 1 and 2" in server("--round", round, *party_key)
            assert "waits for clients 0, 1 and 2" in party("status", "exchange")
            for client in range(3):
                assert f"Round {round}, stage" in contribute(client, *party_key)
                files = {path: path.read_bytes() for path in Path("exchange").iterdir()}
                assert "is answered" in contribute(client, *party_key)
                assert {path: path.read_bytes() for path in Path("exchange").iterdir()} == files
            assert "the server's turn is next" in party("status", "exchange")
        check(round, range(3))
        assert f"--round {round + 1}" in server(*party_key)
        assert f"Round {round} is complete" in party("status", "exchange")
    names = {round: sorted(path.name for path in Path("exchange").glob(f"round-{round}-*-client-1.reply"))
             for round in (1, 2)}  # fmt: skip
    stages = ("1-keys", "2-shares", "3-upload", "4-confirm", "5-unmask")
    assert names[1] == [f"round-1-exchange-1-stage-{stage}-client-1.reply" for stage in stages]
    assert names[2] == [f"round-2-exchange-2-stage-{stage}-client-1.reply" for stage in stages[2:]]  # prepared keys


@pytest.mark.parametrize("stage", range(4))
def test_a_client_that_is_lost_at_any_stage_is_left_out_when_the_server_says_so(here: Path, stage: int) -> None:
    for number in range(8):
        shown = server()
        if "complete" in shown:
            break
        asked = [name.party for name in requests_in(Path("exchange"))]
        for client in asked:
            if not (client == 1 and number >= stage):
                contribute(client)
        if 1 in asked and number >= stage:
            assert "waits for client 1." in server()
            assert "waits for client 1." in party("status", "exchange")
            assert "Client 1 left out" in server("--without", 1)
    uploaded = stage > 2
    check(1, [0, 1, 2] if uploaded else [0, 2])


def test_a_command_that_was_killed_before_it_published_publishes_the_same_when_it_is_run_again(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is on disk, the message is not: what is written then is what was made before."""
    made: list[bytes] = []

    def killed(path: Path, data: bytes) -> None:
        made.append(data)
        raise KeyboardInterrupt

    for _ in range(8):
        with monkeypatch.context() as patched:
            patched.setattr(party_turns, "write_whole", killed)
            server(code=130)
        if "complete" in server():
            break
        for client in range(3):
            made.clear()
            with monkeypatch.context() as patched:
                patched.setattr(party_answer, "write_whole", killed)
                contribute(client, code=130)
            assert "is answered" in contribute(client)
            assert made[0] in [path.read_bytes() for path in Path("exchange").glob("*.reply")]
    check(1, range(3))


def test_a_model_binds_the_round_and_metrics_are_summed(here: Path) -> None:
    np.savez("model.npz", w=np.zeros(4), b=np.zeros(4))
    np.savez("other.npz", w=np.ones(4), b=np.zeros(4))
    agree("--metric", "loss", "--threshold", 2, name="bound.json")

    def both(*arguments: Any, code: int = 0) -> str:
        return party(*arguments, "--terms", "bound.json", code=code)

    assert "give --base" in (shown := both("sum", "exchange", *SIGNS, code=2)) and "--no-base" in shown
    for _ in range(8):
        shown = both("sum", "exchange", *SIGNS, "--base", "model.npz")
        if "complete" in shown:
            break
        assert "another model or cohort" in both("sum", "exchange", *SIGNS, "--base", "other.npz", code=2)
        for name in requests_in(Path("exchange")):
            i = name.party
            given = (
                "--update",
                next(Path.cwd().glob(f"update-{i}.*")),
                "--weight",
                WEIGHTS[i],
                "--metric",
                f"loss={i}",
                *SERVER,
            )
            model = "other.npz" if i == 1 else "model.npz"
            shown = both("contribute", "exchange", "--party", i, *given, "--base", model)
            assert ("given another model" in shown) == (i == 1 and name.word == "upload")
    facts = check(1, [0, 2])
    assert facts["metrics"]["loss"] == pytest.approx(2)
    assert "another model" in facts["refusals"]["1"]


def test_a_client_beyond_its_bound_is_told_and_the_round_is_repeated(here: Path) -> None:
    party("terms", "terms.json", "--like", "update-0.npz", "--clients", 3, "--no-base", "--bound", 0.5, code=2)
    Path("terms.json").unlink()
    common = ("--like", "update-0.npz", "--clients", 3, "--no-base", "--bound", 0.25, "--largest-weight", 1000)
    party("terms", "terms.json", *common, *identities())
    told, repeated = False, False
    for _ in range(25):
        shown = server()
        repeated |= "was void, and is repeated" in shown
        if "complete" in shown:
            break
        told |= "repeated with twice that" in "".join(contribute(client) for client in range(3))
    assert told
    assert repeated
    assert check(1, range(3))["void"]


def test_mistakes_are_named_with_what_to_do(here: Path) -> None:
    assert "is no public identity" in party(
        "terms", "t", "--like", "update-0.npz", "--clients", 3, "--identity", "0=x", code=2
    )
    assert "holds other terms" in party("terms", "terms.json", "--like", "update-0.npz", "--clients", 4, code=2)
    assert "needs a key holder" in party(
        "terms", "t", "--like", "update-0.npz", "--clients", 3, "--defense", "paillier", code=2
    )
    assert "NAME=VALUE" in party("terms", "t", "--like", "update-0.npz", "--clients", 3, "--identity", "0", code=2)
    assert "must end in" in party("terms", "t", "--like", "terms.json", "--clients", 3, code=2)
    assert "cannot read the exchange folder" in party("status", "nowhere", code=2)
    assert "cannot read the terms" in party("sum", "exchange", "--terms", "nowhere", *SIGNS, code=2)
    assert "lies in the exchange folder" in server("--state", "exchange/server.state", code=2)
    assert "round 1 comes before round 3" in server("--round", 3, code=2)
    assert "no request to client 0" in contribute(0)
    for number in ("1.7", "inf", "-1", "one"):  # 1.7 would invite client 1
        assert f"--cohort must name clients by whole numbers from 0; got '{number}'" in server(
            "--cohort", f"0,{number}", code=2
        )
    fraction = ("--identity", "0.7=0.key.pub")
    assert "--identity must name clients by whole numbers from 0; got '0.7'" in party(
        "terms", "t", "--like", "update-0.npz", "--clients", 3, *fraction, code=2
    )
    server()
    nowhere = ("contribute", "exchange", "--terms", "terms.json", *SERVER, "--party")
    assert "--party must be 0 to 2" in party(*nowhere, 3, code=2)
    assert "--without must be 0 to 2" in server("--without", 7, code=2)
    assert "holds the messages of a run" in server("--state", "another.state", code=2)
    assert "give client 0 its private identity" in party(*nowhere, 0, code=2)
    Path("0.key").chmod(0o644)
    assert "chmod 600" in contribute(0, code=2)
    Path("0.key").chmod(0o600)
    contribute(0)
    assert "did not write it" in contribute(0, "--state", "new.state", code=2)
    for client in (1, 2):
        contribute(client)
    server()
    for client in range(3):
        contribute(client)
    server()
    bare = (*nowhere, 0, "--identity", "0.key")
    assert "give --update FILE" in party(*bare, code=2)
    assert "these terms weight updates; give --weight" in party(*bare, "--update", small(), code=2)
    assert "lacks 'b'" in party(*bare, "--update", small(), "--weight", 5, code=2)
    (empty := Path("elsewhere")).mkdir()
    assert "0.state, give --state" in contribute(0, "--state", empty / "client-0.state", code=2)
    assert "is answered" in contribute(0)  # positive control: nothing was used up


def test_terms_without_a_largest_weight_take_no_weight(here: Path) -> None:
    party("terms", "alike.json", "--like", "update-0.npz", "--clients", 3, "--no-base")
    Path("other").mkdir()

    def turn(client: int, *more: Any, code: int = 0) -> str:
        return party("contribute", "other", "--terms", "alike.json", "--party", client, *SERVER, *more, code=code)

    for stage in range(3):
        shown = party("sum", "other", "--terms", "alike.json", "--state", "other.state", *SIGNS)
        for client in range(3):
            given = ("--update", next(Path.cwd().glob(f"update-{client}.*")))
            if stage == 2:
                refused = turn(client, *given, "--weight", 1, code=2)
                assert "leave it out" in refused and "--largest-weight ROWS" in refused
            turn(client, *given)
    for _ in range(2):
        shown = party("sum", "other", "--terms", "alike.json", "--state", "other.state", *SIGNS)
        if "complete" not in shown:
            for client in range(3):
                turn(client)
    mean = read_arrays(Path("other/round-1-mean.npz"))
    np.testing.assert_allclose(mean["w"], np.mean([update["w"] for update in UPDATES], axis=0), atol=1e-9)


def test_a_client_is_told_when_the_round_is_complete(here: Path) -> None:
    for _ in range(8):
        if "complete" in server():
            break
        shown = [contribute(client) + contribute(client) for client in range(3)]
        assert all("The server's turn is next" in text for text in shown)
    assert "Round 1 is complete" in (shown := contribute(0)) and "turn is next" not in shown


def small() -> str:
    np.savez("small.npz", w=np.zeros(4))
    return "small.npz"


def test_identities_are_private_and_kept(here: Path) -> None:
    assert Path("0.key").stat().st_mode & 0o777 == 0o600
    assert party("identity", "0.key") == party("identity", "0.key")
    assert Path("0.key.pub").read_text().strip() in party("identity", "0.key")
    assert Path("0.key").read_bytes().hex() not in party("identity", "0.key")


def test_two_commands_do_not_use_one_state_together(here: Path) -> None:
    server()
    with StateFile("client-0.state", CLIENT_STATE).alone():
        assert "another process is using" in contribute(0, code=2)
    assert "is answered" in contribute(0)


def test_a_clients_state_that_was_set_back_answers_no_request_again(here: Path) -> None:
    older: bytes | None = None
    for _ in range(8):
        if "complete" in server():
            break
        if requests_in(Path("exchange"))[0].word == "upload":
            older = Path("client-0.state").read_bytes()
        for client in range(3):
            contribute(client)
        if older is not None and requests_in(Path("exchange"))[0].word == "upload":
            newest = Path("client-0.state").read_bytes()
            Path("client-0.state").write_bytes(older)
            assert "did not write it" in contribute(0, code=2)
            Path("client-0.state").write_bytes(newest)
    assert older is not None
    check(1, range(3))


@pytest.mark.parametrize("command", ["identity", "terms", "contribute", "sum", "status"])
def test_every_command_helps_with_examples(command: str) -> None:
    shown = party(command, "--help")
    assert "Examples:" in shown
    assert f"securefed party {command}" in shown


def test_terms_name_the_time_of_an_answer_and_a_site_keeps_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[float | None] = []
    monkeypatch.setattr("securefed.parties._client.hold", lambda client, arrived, seconds: held.append(seconds))
    Path("terms.json").unlink()
    said = agree("--no-base", "--threshold", 2, "--answer-after", 2.5, *identities())
    assert "A client answers the request for its contribution 2.5 s after it arrived" in said
    server()
    for _ in range(3):
        for client in range(3):
            contribute(client)
        server()
    assert held == [2.5] * 3

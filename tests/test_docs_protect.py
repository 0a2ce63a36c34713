"""The code of docs/protect-your-loop.md runs as it is printed, and it names the errors that there are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import securefed
from securefed import errors
from securefed.parties import SumClient, SumServer, SumTerms

PAGE = (Path(__file__).parents[1] / "docs" / "protect-your-loop.md").read_text()
*PROGRAM, AGAIN, IDENTITIES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
PRINTED, ROUNDS = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
TERMS, CLIENT, CARRY, SERVER, MAIN = PROGRAM


def run(folder: Path, code: str, name: str) -> list[str]:
    """The lines that a file with this code prints, started in the folder as a reader would."""
    (folder / name).write_text(code)
    package = {"PYTHONPATH": str(Path(securefed.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, name], cwd=folder, env=os.environ | package, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def parts(lines: list[str]) -> tuple[list[str], list[float]]:
    """Split each printed line into its words and its loss."""
    return [line.rpartition(" ")[0] for line in lines], [float(line.rpartition(" ")[2]) for line in lines]


@pytest.mark.exhaustive  # eight processes that import torch
def test_the_program_trains_in_an_empty_folder_as_printed_and_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    said, losses = parts(PRINTED.splitlines())
    assert len(said) == 10 and "(0, 1, 2)" in said[6] and "(0, 2)" in said[7]
    assert losses[-1] < losses[0] / 50  # it learns
    for started in (1, 2):
        printed, found = parts(run(tmp_path, "\n\n".join(PROGRAM), "loop.py"))
        assert printed == said
        assert found == pytest.approx(losses, abs=5e-3)
        assert run(tmp_path, AGAIN, "again.py") == [str(started * int(ROUNDS))]
    assert {path.name for path in tmp_path.iterdir()} >= {"server.state", "client-0.state"}
    assert re.fullmatch(r"([0-9a-f]{4} ?)+", run(tmp_path, IDENTITIES, "identities.py")[-1])


def test_the_mean_of_the_printed_program_is_the_weighted_mean_of_the_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same functions, with the clients in threads: the server's model is the mean that a loop in the clear has."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "loop"}
    for block in PROGRAM:
        exec(block, names)  # noqa: S102 - our own page
    net, pairs, expected = names["network"](), [Pipe() for _ in range(3)], {}
    for number in range(3):
        own, (x, y) = names["network"](), names["rows_of"](number)
        names["train"](own, x, y)
        for name, value in own.state_dict().items():
            expected[name] = expected.get(name, 0) + value.double() * len(x) / 180
    threads = [Thread(target=names["client"], args=(number, there)) for number, (_, there) in enumerate(pairs)]
    for thread in threads:
        thread.start()
    pipes = [here for here, _ in pairs]
    result = names["server_round"](SumServer(names["terms"]), net, pipes)
    names["tell"](pipes, b"")
    for thread in threads:
        thread.join(60)
    assert result.weight == 180 and not any(thread.is_alive() for thread in threads)
    for name, value in net.state_dict().items():
        assert value.double().numpy() == pytest.approx(expected[name].numpy(), abs=1e-4)


def test_every_error_that_the_parties_raise_is_on_the_page() -> None:
    section = PAGE.partition("## Errors, by name")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([A-Z]\w+)`", section))
    raised = set()
    for party in (SumTerms.like, SumTerms.from_bytes, SumClient, SumClient.receive, SumServer, SumServer.open):
        raised |= set(re.findall(r"\b[A-Z]\w+\b(?=[\w, ]*: )", (party.__doc__ or "").partition("Raises:")[2]))
    raised |= set(re.findall(r"\b[A-Z]\w+\b(?=[\w, ]*: )", (SumServer.receive.__doc__ or "").partition("Raises:")[2]))
    assert {"ConfigError", "RoundVoid", "TermsDiffer"} <= raised  # the control: docstrings were read
    assert raised <= named
    assert all(issubclass(getattr(errors, name), errors.SecureFedError | Warning) for name in named)


def answers(pipe: Any) -> None:
    """Answer one request."""
    pipe.send_bytes(b"reply to " + pipe.recv_bytes())


def carry_until(events: int) -> Any:
    """The printed `carry`, whose time is up after so many replies and closed pipes, however long they take."""
    names: dict[str, Any] = {}
    exec(CARRY, names)  # noqa: S102
    left = [events]

    def patient(pipes: list[Any], _: float) -> list[Any]:
        ready: list[Any] = wait(pipes, 60.0) if left[0] > 0 else []
        left[0] -= len(ready)
        return ready

    names["wait"] = patient
    return names["carry"]


def test_the_printed_carry_goes_on_without_clients_that_are_gone_or_silent() -> None:
    pairs = [Pipe() for _ in range(4)]
    answering, silent, closed, dying = (there for _, there in pairs)
    closed.close()
    for act in (lambda: answers(answering), lambda: (dying.recv_bytes(), dying.close())):
        Thread(target=act).start()
    replies = carry_until(2)(dict.fromkeys(range(4), b"request"), [here for here, _ in pairs])
    assert replies == {0: b"reply to request"}
    assert silent.recv_bytes() == b"request"


def test_the_printed_carry_leaves_out_replies_that_come_too_late() -> None:
    here, there = Pipe()
    assert carry_until(0)({0: b"first"}, [here]) == {}
    there.send_bytes(b"late")
    Thread(target=lambda: (there.recv_bytes(), there.recv_bytes(), there.send_bytes(b"second's"))).start()
    assert carry_until(1)({0: b"second"}, [here]) == {0: b"second's"}


def test_the_printed_tell_goes_on_without_clients_that_are_gone() -> None:
    names: dict[str, Any] = {}
    exec(CARRY, names)  # noqa: S102
    (gone, closed), (here, there) = Pipe(), Pipe()
    closed.close()
    names["tell"]([gone, here], b"the model")
    assert there.recv_bytes() == b"the model"


def test_the_printed_carry_does_not_wait_once_all_replies_are_there() -> None:
    names: dict[str, Any] = {}
    exec(CARRY, names)  # noqa: S102
    usual, waited_for = names["wait"], []
    names["wait"] = lambda pipes, seconds: waited_for.append(len(pipes)) or usual(pipes, seconds)
    here, there = Pipe()
    Thread(target=lambda: answers(there)).start()
    assert names["carry"]({0: b"request"}, [here]) == {0: b"reply to request"}
    assert waited_for == [1]
    assert names["carry"]({}, [here]) == {} and waited_for == [1]

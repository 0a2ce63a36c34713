"""The code of docs/protect-your-loop.md runs as it is printed, and its table names the errors that there are."""

from __future__ import annotations

import re
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from securefed import errors
from securefed.parties import SumClient, SumServer, SumTerms

PAGE = (Path(__file__).parents[1] / "docs" / "protect-your-loop.md").read_text()
TERMS, CLIENT, ANSWERS, SERVER, LOST, CARRY, AGAIN, IDENTITIES = re.findall(
    r"```python\n(.*?)```", PAGE, flags=re.DOTALL
)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))


def train(net: torch.nn.Module, rows: torch.Tensor) -> None:
    adam = torch.optim.Adam(net.parameters(), 0.01)
    net(rows).square().sum().backward()
    adam.step()


class Sites:
    """Three clients, each with the page's code and names of its own; `carry` hands them requests one at a time."""

    def __init__(self, terms: SumTerms) -> None:
        self.names: list[dict[str, Any]] = [
            {"terms": terms, "number": number, "net": network(), "train": train, "rows": torch.randn(8 + number, 4)}
            for number in range(3)
        ]
        self.updates: list[dict[str, torch.Tensor]] = []
        for names in self.names:
            exec(CLIENT, names)  # noqa: S102 - our own page

    def send_model(self, state: dict[str, torch.Tensor]) -> None:
        for names in self.names:
            names["net"].load_state_dict(state)
            names["send"], names["next_request"] = None, lambda: None
            exec(ANSWERS, names)  # noqa: S102 - trains; no request yet
        self.updates = [{k: v.clone() for k, v in names["net"].state_dict().items()} for names in self.names]

    def carry(self, requests: Any) -> dict[int, bytes]:
        replies: dict[int, bytes] = {}
        for number, request in requests.items():
            names, waiting = self.names[number], [request]
            loop = ANSWERS[ANSWERS.index("while") :]
            names["next_request"] = lambda waiting=waiting: waiting.pop() if waiting else None
            names["send"] = lambda reply, number=number: replies.__setitem__(number, reply)
            exec(loop, names)  # noqa: S102
        return replies


def test_the_loop_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"net": network(), "rounds": 1}
    exec(TERMS, names)  # noqa: S102
    assert SumTerms.from_bytes(names["data"]).digest == names["terms"].digest
    sites = Sites(names["terms"])
    names |= {"send_model": sites.send_model, "carry": sites.carry}
    exec(SERVER, names)  # noqa: S102
    weights = torch.tensor([8.0, 9.0, 10.0])
    for name, value in names["net"].state_dict().items():
        exact = sum(w * u[name] for w, u in zip(weights, sites.updates, strict=True)) / weights.sum()
        torch.testing.assert_close(value.double(), exact.double(), atol=1e-5, rtol=0)
    assert names["server"].result.weight == pytest.approx(27)

    sites.send_model(names["net"].state_dict())
    exec(LOST, names)  # noqa: S102
    assert capsys.readouterr().out.splitlines()[-1] == "(0, 2)"
    exec(AGAIN, names)  # noqa: S102
    assert capsys.readouterr().out == "2\n"
    exec(IDENTITIES, names)  # noqa: S102
    assert names["public"].fingerprint in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} >= {"server.state", "client-0.state"}


def test_every_error_that_the_parties_raise_is_in_the_table() -> None:
    table = PAGE[PAGE.index("## Errors, by name") :]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE) for name in re.findall(r"\w+", row)
    }
    raised = set()
    for party in (SumTerms.like, SumTerms.from_bytes, SumClient, SumClient.receive, SumServer, SumServer.open):
        raised |= set(re.findall(r"\b[A-Z]\w+\b(?=[\w, ]*: )", (party.__doc__ or "").partition("Raises:")[2]))
    raised |= set(re.findall(r"\b[A-Z]\w+\b(?=[\w, ]*: )", (SumServer.receive.__doc__ or "").partition("Raises:")[2]))
    assert {"ConfigError", "RoundVoid", "TermsDiffer"} <= raised  # the control: docstrings were read
    assert raised <= named
    assert all(issubclass(getattr(errors, name), errors.SecureFedError) for name in named)


def test_the_printed_carry_goes_on_without_clients_that_are_gone_or_silent() -> None:
    names: dict[str, Any] = {}
    exec(CARRY, names)  # noqa: S102
    pairs = [Pipe() for _ in range(4)]
    answering, silent, closed, dying = (there for _, there in pairs)
    answering.send_bytes(b"reply")
    closed.close()
    Thread(target=lambda: (dying.recv_bytes(), dying.close())).start()
    replies = names["carry"](dict.fromkeys(range(4), b"request"), [here for here, _ in pairs], seconds=0.2)
    assert replies == {0: b"reply"}
    assert answering.recv_bytes() == silent.recv_bytes() == b"request"


def test_the_printed_carry_does_not_wait_once_all_replies_are_there() -> None:
    names: dict[str, Any] = {}
    exec(CARRY, names)  # noqa: S102
    usual, waited_for = names["wait"], []
    names["wait"] = lambda pipes, seconds: waited_for.append(len(pipes)) or usual(pipes, min(seconds, 1.0))
    here, there = Pipe()
    there.send_bytes(b"reply")
    assert names["carry"]({0: b"request"}, [here]) == {0: b"reply"}
    assert waited_for == [1]
    assert names["carry"]({}, [here]) == {} and waited_for == [1]

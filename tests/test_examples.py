"""The examples run as their pages say; over HTTP, what the server sees of a client does not depend on its data."""

from __future__ import annotations

import asyncio
import difflib
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from securefed.defenses import secure_aggregation
from securefed.errors import RoundVoid
from securefed.parties import SumClient, SumServer, SumTerms

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
FOLDERS = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__")
CLIENTS = 4
RNG = np.random.default_rng(0)
GOOD = {"w": RNG.uniform(-1, 1, 50)}


def start(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def command_of(folder: str) -> list[str]:
    """The command that starts an example, as the page of all examples prints it."""
    (line,) = re.findall(rf"^\| \[{folder}\]\({folder}\) .* `([^`]+)` \|$", (EXAMPLES / "README.md").read_text(), re.M)
    assert line in (EXAMPLES / folder / "README.md").read_text()
    words: list[str] = line.split()
    return [sys.executable if words[0] == "python" else words[0], *words[1:]]


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"\d+\.\d+(?:e-\d+)?", text)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_example_is_small_and_has_a_page(folder: str) -> None:
    lines = [line for path in (EXAMPLES / folder).glob("*.py") for line in path.read_text().splitlines() if line]
    assert len(lines) < 100
    assert 15 < len((EXAMPLES / folder / "README.md").read_text().splitlines()) < 60


def test_the_page_lists_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert FOLDERS == [
        "ddp",
        "files",
        "flower_demo",
        "flower_scaffold",
        "flower_statistics",
        "http",
        "pipes",
        "private",
        "sklearn",
    ]
    assert all(f"[{folder}]({folder})" in page for folder in FOLDERS)


@pytest.mark.exhaustive
def test_the_loop_over_pipes_learns_as_much_when_it_is_secured() -> None:
    plain, secured = numbers(start(*command_of("pipes")))
    assert plain >= 0.95
    assert abs(plain - secured) <= 0.005


def test_three_lines_a_side_secure_the_loop_over_pipes() -> None:
    module = load("pipes/train")
    for side, fewest in (("client", 3), ("server", 3)):
        before, after = (
            inspect.getsource(getattr(module, f"{kind}_{side}")).splitlines()[1:] for kind in ("plain", "secured")
        )
        added = [line for line in difflib.ndiff(before, after) if line.startswith("+ ")]
        assert len(added) == fewest


@pytest.mark.exhaustive
def test_the_server_over_https_goes_on_without_a_client_that_was_killed() -> None:
    assert shutil.which("openssl")
    shown = start(*command_of("http"))
    assert "clients (0, 1, 2, 4) in the mean" in shown
    assert numbers(shown)[-1] < 1e-6


@pytest.mark.exhaustive
def test_three_hospitals_sum_files_and_one_is_lost() -> None:
    shown = start(*command_of("files"), SECUREFED=f"{sys.executable} -m securefed")
    facts = json.loads(shown[shown.index("== The result") :].partition("\n")[2])
    assert facts["survivors"] == [0, 2]
    assert "Client 1 left out." in shown


@pytest.mark.exhaustive
def test_ranks_with_masked_gradients_train_as_in_plain_ddp() -> None:
    shown = start(*command_of("ddp"))
    assert len(shown.splitlines()) == 2
    assert shown in (EXAMPLES / "ddp" / "README.md").read_text()


@pytest.mark.exhaustive
def test_a_private_loop_stops_at_its_budget_and_learns() -> None:
    """Accuracy was .889 to .917 in five runs, and .907 without noise."""
    clipped, *_, private = start(*command_of("private")).splitlines()
    assert numbers(clipped)[0] == pytest.approx(0.9068, abs=0.01)
    assert "after 20 rounds, epsilon 8.0000" in private
    assert numbers(private)[0] > 0.8


def test_estimators_are_averaged_to_the_same_weights() -> None:
    plain, secured, difference = numbers(start(*command_of("sklearn")))
    assert plain == secured
    assert plain > 0.9
    assert difference < 1e-9


def view(update: Any, *, hidden: bool = True) -> tuple[list[tuple[Any, ...]], tuple[int, ...]]:
    """What the server sees of client 0 over HTTP in one attempt at a sum, and who is in the sum."""
    terms = SumTerms.like(
        GOOD, clients=CLIENTS, defense=secure_aggregation() if hidden else None, base=False, bounds=2.0,
        largest_weight=16.0, max_void=1,
    )  # fmt: skip
    module = load("http/parties_http")
    rounds = module.Rounds(SumServer(terms), {number: f"token {number}" for number in range(CLIENTS)}, patience=60)
    seen: list[tuple[Any, ...]] = []

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        size, status = [0, 0], [0]

        async def counted_receive() -> Any:
            event = await receive()
            size[0] += len(event.get("body", b""))
            return event

        async def counted_send(event: Any) -> None:
            status[0] = event.get("status", status[0])
            size[1] += len(event.get("body", b""))
            await send(event)

        await rounds.app(scope, counted_receive, counted_send)
        if scope["path"] == "/0" and status[0] != 204:  # how often it asked in vain is time
            seen.append((scope["method"], status[0], *size))

    async def play() -> tuple[int, ...]:
        async def client(number: int) -> None:
            own = update if number == 0 else GOOD
            headers = {"Authorization": f"Bearer token {number}"}
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(watched), base_url="http://sum", headers=headers
            ) as http:
                await module.contribute(http, SumClient(terms, number), own, weight=10)

        summed, *_ = await asyncio.gather(rounds.run(), *map(client, range(CLIENTS)), return_exceptions=True)
        assert not isinstance(summed, Exception) or isinstance(summed, RoundVoid)
        return () if isinstance(summed, RoundVoid) else summed.survivors

    return seen, asyncio.run(play())


def failing() -> Any:
    raise RuntimeError("out of memory")


def test_over_http_the_server_sees_the_same_of_a_client_whatever_its_data() -> None:
    """Status codes, lengths and order, to the end of the attempt; that some client was out shows in the opened sum."""
    expected, survivors = view(GOOD)
    assert survivors == (0, 1, 2, 3)
    assert [entry[:2] for entry in expected] == [("GET", 200), ("POST", 202)] * 4 + [("GET", 410)]
    for own, fits in (
        ({"w": np.zeros(50)}, True),
        ({"w": GOOD["w"] * np.nan}, False),
        ({"w": np.where(np.arange(50) == 7, np.inf, GOOD["w"])}, False),
        ({"w": GOOD["w"] * 1e30}, False),
        (failing, False),
    ):
        assert view(own) == (expected, survivors if fits else ())


def test_in_the_clear_the_same_comparison_finds_a_difference() -> None:
    """The positive control: without a defence a client whose values are not finite refuses by name."""
    good, everyone = view(GOOD, hidden=False)
    bad, survivors = view({"w": GOOD["w"] * np.nan}, hidden=False)
    assert (everyone, survivors) == ((0, 1, 2, 3), (1, 2, 3))
    assert good != bad


def test_a_client_with_another_s_token_is_turned_away() -> None:
    module = load("http/parties_http")
    terms = SumTerms.like(GOOD, clients=CLIENTS, defense=None, base=False)
    rounds = module.Rounds(SumServer(terms), {0: "a", 1: "b"}, patience=1)
    rounds.party.open()

    async def ask(path: str, token: str) -> int:
        transport = httpx.ASGITransport(rounds.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://sum") as http:
            return (await http.get(path, headers={"Authorization": f"Bearer {token}"})).status_code

    assert [asyncio.run(ask(path, token)) for path, token in (("/0", "a"), ("/0", "b"), ("/3", ""))] == [200, 401, 401]


def test_over_http_no_request_ends_the_server_or_fills_its_memory() -> None:
    """A header outside ASCII is no token, and a body without an end is refused at the longest message's length."""
    terms = SumTerms.like(GOOD, clients=CLIENTS, defense=secure_aggregation(), base=False)
    rounds = load("http/parties_http").Rounds(SumServer(terms), dict.fromkeys(range(CLIENTS), "token"), patience=60)
    rounds.party.open()
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while True:
            sent += 2**14
            yield bytes(2**14)

    async def ask() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(rounds.app), base_url="http://sum") as http:
            codes = [(await http.get("/0", headers={"Authorization": token})).status_code
                     for token in (b"Bearer t\xf6ken", b"Bearer \xff", b"", b"Bearer token")]  # fmt: skip
            body = await http.post("/0", headers={"Authorization": "Bearer token"}, content=endless())
            return [*codes, body.status_code]

    assert asyncio.run(ask()) == [401, 401, 401, 200, 413]
    assert sent <= terms.most_bytes + 2**15
    assert rounds.replies == {}

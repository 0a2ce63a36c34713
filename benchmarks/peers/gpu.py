"""Masks on a graphics card beside those of the processor: `python -m benchmarks gpu [PART ...]`, at most eight minutes.

It writes `results/gpu_CARD.json`, with the card's name in the file's name and in its environment. The parts `streams`,
`upload` and `sums` need no card; `kernel`, `client`, `nccl` and `training` do, and are named where there is none. Every
part that makes masks on the card first compares their words with those of the processor.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.peers import gpu_ranks
from benchmarks.rows import RESULTS, Row, clocked, row, show
from securefed._extras import is_installed
from securefed._messages import SERVER, Message
from securefed.defenses import Plan, Session, TensorPlan, secure_aggregation
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._secure_aggregation.chacha_stream import CHACHA20, STREAMS
from securefed.defenses._secure_aggregation.masks import SignedMask, apply_masks, upload_residues
from securefed.parties import SumClient, SumServer, SumTerms
from securefed.torch._device_encoding import Entries, masked_upload
from securefed.torch._device_masks import add_masks

BUDGET = 480.0
"""Seconds after which no further part begins."""
PAIRS, CLIENTS = 22, 4
SIZES = (1_000_000, 10_000_000)
TURNS = 3


def main(arguments: Sequence[str] = ()) -> None:
    """Measure the parts that are named, all by default, and write the results of this card."""
    parts: dict[str, tuple[bool, Callable[[], Iterator[Row]]]] = {
        "streams": (False, streams),
        "upload": (False, server_upload),
        "sums": (False, lambda: gpu_ranks.sum_rows("cpu", SIZES)),
        "kernel": (True, kernel),
        "client": (True, client),
        "nccl": (True, gpu_ranks.nccl_rows),
        "training": (True, gpu_ranks.training_rows),
    }
    if unknown := sorted(set(arguments) - set(parts)):
        raise SystemExit(f"unknown part {unknown[0]!r}; known: {', '.join(parts)}")
    torch.set_num_threads(1)
    card, began, left_out, rows = card_name(), time.monotonic(), [], []
    for name in arguments or parts:
        needs_card, measure = parts[name]
        if (needs_card and card is None) or time.monotonic() - began > BUDGET:
            left_out.append(name)
            continue
        found = list(measure())
        show(found)
        rows += found
    print(write(card, rows, left_out))
    if left_out:
        print(f"left out, for lack of {'a card with triton' if card is None else 'time'}: {', '.join(left_out)}")


def card_name() -> str | None:
    """Return the card's name; `None` without a card, or without triton to program it."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() and is_installed("triton") else None


def write(card: str | None, rows: Sequence[Row], left_out: Sequence[str]) -> str:
    """Write the results file of a card, and return its place."""
    slug = "none" if card is None else re.sub(r"[^a-z0-9]+", "_", card.lower()).strip("_")
    environment = {"card": card or "none", "torch": torch.__version__, "left out": ", ".join(left_out) or "nothing"}
    path = RESULTS / f"gpu_{slug}.json"
    path.write_text(json.dumps({"environment": environment, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
    return str(path)


# Without a card


def streams() -> Iterator[Row]:
    """Time a round of parties under each stream, in turns: the CPU seconds of one client, and of the server."""
    for size in SIZES:
        update = {"w": np.random.default_rng(0).uniform(-1, 1, size).astype(np.float32)}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in STREAMS}
        for _ in range(TURNS):
            for name in STREAMS:
                times[name].append(_round(name, update))
        for place, who in enumerate(("client", "server")):
            aes, chacha = ([one[place] for one in times[name]] for name in STREAMS)
            yield row(
                f"CPU of a {who} in a round", f"{CLIENTS} clients, d={size:.0e}, ring 32", chacha, "s",
                peer=median(aes), peer_name="aes-128-ctr",
            )  # fmt: skip


def _round(stream: str, update: dict[str, np.ndarray]) -> tuple[float, float]:
    """Play a round; return the CPU seconds of client 0 and of the server."""
    terms = SumTerms.like(
        update, clients=CLIENTS, defense=secure_aggregation(stream=stream), bounds=1.0, base=False, ring=32  # type: ignore[arg-type]
    )  # fmt: skip
    server, clients = SumServer(terms), [SumClient(terms, number) for number in range(CLIENTS)]
    of_client, of_server = 0.0, clocked(server.open)[1]
    while server.result is None:
        replies = {}
        for party, request in server.outgoing.items():
            replies[party], seconds = clocked(lambda p=party, r=request: clients[p].receive(r, update=update))
            of_client += seconds if party == 0 else 0.0
        of_server += clocked(server.receive, replies)[1]
    return of_client, of_server


def server_upload() -> Iterator[Row]:
    """Time what the server does with one upload, beside a copy of it: authentication, checks, addition."""
    size, cohort = SIZES[-1], tuple(range(CLIENTS))
    defense, plan = secure_aggregation(stream=CHACHA20), plan_of(size)
    session = Session("0" * 32, 0, cohort, plan)
    states = {number: defense.client_open(session, number) for number in cohort}
    state, stage, outgoing = defense.server_open(session)
    encoded = {"w": np.zeros(size, np.int64)}
    while stage != defense.upload:
        replies = {}
        for number, body in outgoing.items():
            states[number], answer = defense.client_step(
                states[number], Message(session.run, 0, stage, SERVER, number, body), None
            )
            replies[number] = Message(session.run, 0, stage, number, SERVER, answer)
        state, stage, outgoing = defense.server_step(state, replies)
    uploads = []
    for number, body in outgoing.items():
        request = Message(session.run, 0, stage, SERVER, number, body)
        uploads.append(
            Message(session.run, 0, stage, number, SERVER, defense.client_step(states[number], request, encoded)[1])
        )
    words = uploads[0].body["masked/w"]
    copies = [clocked(words.copy)[1] for _ in range(9)]
    times = []
    for upload in uploads:
        state, seconds = clocked(defense.server_absorb, state, upload)
        times.append(seconds)
    yield row(
        "server: one upload checked and added", f"d={size:.0e}, ring 32, no spool", times, "s", peer=median(copies),
        peer_name="a copy in memory", target="<= 5 copies", met=median(times) <= 5 * median(copies),
    )  # fmt: skip


def plan_of(size: int) -> Plan:
    """Return a plan of one tensor in a ring of 32 bits."""
    tensor = TensorPlan("w", (size,), 1.0, 32, 0.0, 0, 0.0)
    plan = Plan("benchmark", CLIENTS, (tensor,), {"w": 32})
    return secure_aggregation(stream=CHACHA20).plan(Quantise().plan(plan))


# With a card


def kernel() -> Iterator[Row]:
    """Time the kernel alone, for several numbers of masks and words, both rings, and other sizes of a program."""
    from securefed.torch import _chacha_kernel  # noqa: PLC0415 - imports triton

    for dtype in (torch.int32, torch.int64):
        _check_words(dtype)
    target = {"target": ">= 350 G words/s on an H200, 200 on an H100"}
    fast = 350 if "H200" in str(card_name()) else 200
    for size, masks in ((10**6, 1), (10**6, PAIRS), (10**8, 1), (10**8, PAIRS), (10**8, 99), (10**9, PAIRS)):
        speeds = _speeds(size, masks, torch.int32)
        judged = target | {"met": median(speeds) >= fast} if (size, masks) == (10**9, PAIRS) else {}
        yield row("kernel, ring 32", f"{masks} masks, {size:.0e} words", speeds, "G words/s", **judged)
    yield row("kernel, ring 64", f"{PAIRS} masks, 1e+08 words", _speeds(10**8, PAIRS, torch.int64), "G words/s")
    usual = _chacha_kernel.LANES
    for lanes in (usual // 2, usual * 2):
        _chacha_kernel.LANES = lanes
        speeds = _speeds(10**8, PAIRS, torch.int32)
        yield row(f"kernel, {lanes} blocks a program", f"{PAIRS} masks, 1e+08 words", speeds, "G words/s")
    _chacha_kernel.LANES = usual


def _check_words(dtype: torch.dtype) -> None:
    """Stop where the card's words are not those of the processor."""
    masks, size = _masks(3), 100_003
    ours = torch.zeros(size, dtype=dtype, device="cuda")
    theirs = np.zeros(size + 5, f"<u{ours.element_size()}")
    add_masks(ours, masks, offset=5)
    apply_masks([theirs], masks, stream=CHACHA20)
    if ours.cpu().numpy().tobytes() != theirs[5:].tobytes():
        raise SystemExit(f"the card's words of {dtype} are not those of the processor")


def _masks(count: int) -> list[SignedMask]:
    return [SignedMask(secrets.token_bytes(32), 1 if k % 2 else -1) for k in range(count)]


def _speeds(size: int, masks: int, dtype: torch.dtype) -> list[float]:
    """Measure words made and added, in 10^9 a second: a word of 64 bits counts once."""
    words, own = torch.zeros(size, dtype=dtype, device="cuda"), _masks(masks)
    return [size * masks / seconds / 1e9 for seconds in _on_card(lambda: add_masks(words, own))]


def _on_card(call: Callable[[], Any]) -> list[float]:
    """Seconds of calls on the card, by its own clock, after two that are not counted."""
    times = []
    for _ in range(TURNS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return times[2:]


def client() -> Iterator[Row]:
    """Time a client's upload on the card: fixed point, check, stand-in, masks, and the copy into pinned memory."""
    _check_upload()
    for size, limit in ((10**8, 0.05), (10**9, 0.3)):
        plan, masks = plan_of(size), _masks(PAIRS)
        value = torch.rand(size, device="cuda")
        host = torch.empty(size, dtype=torch.int32, pin_memory=True)

        times = _on_card(lambda v=value, p=plan, m=masks, h=host: h.copy_(_words(v, p, m), non_blocking=True))
        yield row(
            "client: device and copy", f"{PAIRS} pairs, {size:.0e} float32, ring 32", times, "s",
            target=f"<= {limit} s", met=median(times) <= limit,
        )  # fmt: skip
        peak = torch.cuda.max_memory_allocated() / 4 / size
        yield row("client: memory of the card", f"{size:.0e} float32, the update included", [peak], "x the update")
        del value, host
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _words(value: torch.Tensor, plan: Plan, masks: Sequence[SignedMask]) -> torch.Tensor:
    return masked_upload({"w": Entries(value, 0.5)}, plan, masks).words["w"]


def _check_upload() -> None:
    """Stop where the card's upload is not that of the processor, for three types; a value of NaN must be seen."""
    size, masks = 100_003, _masks(3)
    plan = plan_of(size)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        value = (torch.rand(size) * 2 - 1).to(dtype)
        ours = masked_upload({"w": Entries(value.cuda(), 0.3)}, plan, masks)
        scaled = np.multiply(value.float().numpy(), 0.3, dtype=np.float64)
        theirs = upload_residues(Quantise().encode({"w": scaled}, plan), plan)
        apply_masks(theirs, masks, stream=CHACHA20)
        if ours.words["w"].cpu().numpy().tobytes() != theirs[0].tobytes() or ours.out:
            raise SystemExit(f"the card's upload of {dtype} is not that of the processor")
        value[7] = torch.nan
        if not masked_upload({"w": Entries(value.cuda(), 0.3)}, plan, masks).out:
            raise SystemExit(f"the card did not see a value of NaN in {dtype}")


if __name__ == "__main__":
    main(sys.argv[1:])

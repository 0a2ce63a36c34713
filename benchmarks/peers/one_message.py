"""One message a client beside secure aggregation and Flower's SecAgg+: `python -m benchmarks.peers.one_message`.

CPU time of one party on one thread, transports left out, 10 % of the clients lost at the upload. Of N clients only
`UPLOADS` are run, with a committee of 20 of whom 5 may be corrupt and 4 lost; what the server and a member do for each
upload is scaled to .9 N uploads, and what they do once is added. All N identities exist, and plans are for N clients.

The peers' masks are measured one by one and counted: on the complete graph a client makes N - 1 pair masks, on a sparse
one as many as the design for 10 % adversarial and 10 % lost clients says, and one self mask; the server makes a self
mask for each survivor and a pair mask for each lost client and surviving neighbour. Flower's SecAgg+ (the version of
constraints.txt) runs its own client functions with as many neighbours as the sparse graph.

    python -m benchmarks.peers.one_message [small] [large]       # d = 1e5 and 1e6; N = 100 and 1000 each
    python -m benchmarks.peers.one_message full                  # an exchange of 10,000 clients, d = 1e5, all run
"""

from __future__ import annotations

import resource
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.peers.secure_aggregation import PEER, _peer
from benchmarks.rows import Row, clocked, cpu, row, run_parts
from securefed._messages import SERVER, Message
from securefed._tensors import Layout, Tensors, TensorSpec
from securefed.defenses._chain import chain
from securefed.defenses._one_message import one_message
from securefed.defenses._one_message.parameters import Encoding
from securefed.defenses._one_message.session import bundle_bytes
from securefed.defenses._plan import Session, UploadContext
from securefed.defenses._secure_aggregation import Identities
from securefed.defenses._secure_aggregation.graph import design_sparse_graph
from securefed.defenses._secure_aggregation.masks import SignedMask, apply_masks
from securefed.defenses._secure_aggregation.primitives import agree, private_key, public_bytes

UPLOADS, MEMBERS, CORRUPT, LOST, SURVIVING = 6, 20, 5, 4, 0.9
RUN = "0123456789abcdef0123456789abcdef"


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and write `results/one_message.json`."""
    parts = {
        "small": lambda: [r for n in (100, 1000) for r in _rows(n, 100_000)],
        "large": lambda: [r for n in (100, 1000) for r in _rows(n, 1_000_000)],
        "full": lambda: _full(10_000, 100_000),
    }
    run_parts("one_message", __doc__ or "", parts, arguments or ["small", "large"])


class Exchange:
    """One exchange planned for N clients."""

    def __init__(self, clients: int, entries: int) -> None:
        self.protocol = one_message(
            committee=range(MEMBERS), identities=Identities.generate(clients), corrupt=CORRUPT, lost=LOST, threshold=3
        )
        defense = chain(self.protocol)
        self.defense, self.plan = defense, defense.plan(Layout((TensorSpec("w", (entries,), 8.0, 32),)), clients)
        self.session = Session(RUN, 0, tuple(range(clients)), self.plan, b"c" * 32)
        self.entries = entries
        self.parties: dict[int, Any] = {}
        self.times: dict[str, list[float]] = {}
        self.sent = 0

    def timed(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call, and note the CPU seconds under a name."""
        result, seconds = clocked(call, *arguments)
        self.times.setdefault(name, []).append(seconds)
        return result

    def value(self, client: int) -> np.ndarray:
        return np.random.default_rng(client).uniform(-8, 8, self.entries)

    def reply(self, stage: str, party: int, body: Tensors) -> Message:
        """One party's answer."""
        if party not in self.parties:
            self.parties[party] = self.protocol.client_open(self.session, party)
        request = Message(RUN, 0, stage, SERVER, party, body)
        state = self.parties[party]
        if stage == "upload":
            value = {"w": self.value(party)}

            def upload() -> tuple[Any, Tensors]:
                accepted = self.protocol.client_accept(state, request, UploadContext(b"c" * 32, b"s" * 32))
                return self.protocol.client_upload(accepted, self.defense.encode(value, self.plan))

            self.parties[party], out = self.timed("client", upload)
            self.sent = sum(array.nbytes for array in out.values())
        else:
            self.parties[party], out = self.timed(f"member {stage}", self.protocol.client_step, state, request, None)
        return Message(RUN, 0, stage, party, SERVER, out)

    def run(self, uploading: Sequence[int]) -> None:
        """Make the exchange with the uploads of these clients."""
        state, stage, outgoing = self.timed("server keys", self.protocol.server_open, self.session)
        while True:
            arrived = {}
            for party in uploading if stage == "upload" else outgoing:
                reply = self.reply(stage, party, outgoing[party])
                if stage == "upload":
                    state = self.timed("absorb", self.protocol.server_absorb, state, reply)
                else:
                    arrived[party] = reply
            step = self.timed(f"server after {stage}", self.protocol.server_step, state, arrived)
            if not isinstance(step, tuple):
                break
            state, stage, outgoing = step
        decoded = self.defense.decode(step.total, self.plan, step.count)["w"]
        exact = sum(self.value(client) for client in uploading)
        assert np.abs(decoded - exact).max() <= self.plan.tensors[0].error


def _rows(clients: int, entries: int) -> list[Row]:
    made = Exchange(clients, entries)
    made.run(range(UPLOADS + 1))
    times, uploads, setting = made.times, SURVIVING * clients, f"N={clients}, d={entries:.0e}, 10 % lost"
    times["client"], times["absorb"] = times["client"][1:], times["absorb"][1:]  # the first fills caches
    scale = uploads / (UPLOADS + 1)
    once = sum(sum(times[f"server after {stage}"]) for stage in ("keys", "confirm", "open"))
    server = once + uploads * median(times["absorb"])
    server += scale * sum(sum(times[f"server after {stage}"]) for stage in ("upload", "check"))
    member = scale * median(times["member check"]) + sum(median(times[f"member {s}"]) for s in ("confirm", "open"))
    degree = design_sparse_graph(clients, 0.1, 0.1, active=True).degree
    mask = median(cpu(lambda: apply_masks([np.zeros(entries, np.uint32)], [SignedMask(secrets.token_bytes(32), 1)]), 5))
    key, other = private_key(secrets.token_bytes(32)), public_bytes(private_key(secrets.token_bytes(32)))
    pair = mask + 2 * median(cpu(lambda: agree(key, other, 0), 20))
    peers = {
        "complete": (pair * (clients - 1) + mask, mask * uploads * (1 + 0.1 * clients)),
        f"sparse, degree {degree}": (pair * degree + mask, mask * uploads * (1 + 0.1 * degree)),
    }
    flower = _peer("client", degree + 1, entries)["client_ms"] / 1e3
    large = clients == 1000 and entries == 1_000_000
    rows = [
        _row("client CPU a round", setting, times["client"], "s", flower, f"{PEER}, {degree} neighbours", 1.2, large),
        _row("server CPU a round", setting, [server], "s", None, None, 15.0, large),
        _row("member CPU a round, beside its upload", setting, [member], "s", None, None, None, large),
        _row("upload", setting, [(made.sent - _shares()) / 1e6], "MB", None, None, 7.5, large),
        _row("shares in the upload", setting, [_shares() / 1e6], "MB", None, None, None, large),
    ]
    for name, (client, opening) in peers.items():
        rows.append(_row(f"client CPU of secure_aggregation, {name}", setting, [client], "s", None, None, None, large))
        rows.append(
            _row(f"server masks of secure_aggregation, {name}", setting, [opening], "s", None, None, None, large)
        )
    return rows


def _shares() -> int:
    return MEMBERS * bundle_bytes(Encoding.of(1000, 1, 32))


def _row(
    quantity: str, setting: str, ours: Sequence[float], unit: str,
    peer: float | None, peer_name: str | None, most: float | None, large: bool,
) -> Row:  # fmt: skip
    """A row; the target is set for the largest setting only."""
    target = f"<= {most:g} {unit}" if most and large else None
    met = median(ours) <= most if target else None
    return row(quantity, setting, ours, unit, peer=peer, peer_name=peer_name, target=target, met=met)


def _full(clients: int, entries: int) -> list[Row]:
    """All clients of one exchange, in this process, on the wall; 10 % are lost."""
    began = time.perf_counter()
    made = Exchange(clients, entries)
    made.run(range(round(SURVIVING * clients)))
    minutes = (time.perf_counter() - began) / 60
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    setting = f"N={clients}, d={entries:.0e}, 10 % lost, {MEMBERS} members"
    return [
        row("a whole exchange simulated", setting, [minutes], "min", target="<= 15 min", met=minutes <= 15),
        row("memory of it", setting, [memory], "GiB", target="<= 24 GiB", met=memory <= 24),
    ]


if __name__ == "__main__":
    main(sys.argv[1:])

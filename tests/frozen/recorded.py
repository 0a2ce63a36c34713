"""Record what travels between the parties of sums and runs: a line for every message, with digests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from securefed import SERVER, Algorithm, Dataset, Federation, Layout, Message, Public, Tensors, TensorSpec
from securefed.algorithms import ClientData
from securefed.parties import SumClient, SumHelper, SumServer, SumTerms
from securefed.parties._envelope import unwrap
from tests.frozen.fixed_randomness import FixedRandomness, fixed_randomness

Lost = Callable[[int, str, int], bool]
"""Whether the reply of a party to a stage of an exchange is lost."""


def short(data: bytes) -> str:
    """Return 48 bits of a digest: enough to see a change."""
    return hashlib.sha256(data).hexdigest()[:12]


def body_digest(body: Tensors, layout_only: bool = False) -> str:
    """Return a digest of names, types, shapes and entries; of the first three where entries are never the same."""
    parts = [f"{name} {body[name].dtype.str} {body[name].shape}".encode() for name in sorted(body)]
    if not layout_only:
        parts += [np.ascontiguousarray(body[name]).tobytes() for name in sorted(body)]
    return short(b"\n".join(parts))


@dataclass
class Record:
    """The messages of one case, in their order.

    Attributes:
        drawn: the streams of secrets.
        own_randomness: whether a library draws its own (SEAL): then only lengths and layouts are the same.
        lines: a line for every message: number of the exchange, stage, sender, receiver, length, digest of the message
            as it travels, digest of its named arrays.
    """

    drawn: FixedRandomness
    own_randomness: bool = False
    lines: list[str] = field(default_factory=list)

    def note(self, data: bytes, message: Message) -> None:
        """Write the line of one message."""
        digests = (
            "-" if self.own_randomness else short(data),
            body_digest(message.body, layout_only=self.own_randomness),
        )
        place = f"{message.round} {message.stage} {message.sender}>{message.receiver}"
        self.lines.append(f"{place} {len(data)} {' '.join(digests)}")


@dataclass(frozen=True)
class SumCase:
    """Rounds of one sum between parties.

    Attributes:
        make: makes the terms.
        given: what client i gives in round r beside the request: `given(i, r)`.
        base: the base of round r; `None` where the terms have none.
        rounds: number of rounds.
        lost: which replies are lost.
        identities: private identities by client, where the terms pin them.
        signed: the private identity by which the server signs its requests.
        own_randomness: as in `Record`.
    """

    make: Callable[[], SumTerms]
    given: Callable[[int, int], Mapping[str, Any]]
    base: Callable[[int], Mapping[str, Any] | None] = lambda _: None
    rounds: int = 1
    lost: Lost = lambda *_: False
    identities: Mapping[int, bytes] = field(default_factory=dict)
    signed: bytes | None = None
    own_randomness: bool = False

    def record(self, secrets: str = "frozen") -> list[str]:
        """Play all rounds with these secrets; lines beside the messages say the terms, and what came out."""
        with fixed_randomness(secrets) as drawn:
            terms, record = self.make(), Record(drawn, self.own_randomness)
            with drawn.of(SERVER):
                server = SumServer(terms, identity=self.signed)
            parties: dict[int, Any] = {}
            for i in (*range(terms.clients), *terms.defense.aggregation.beside):
                with drawn.of(i):
                    parties[i] = SumClient(terms, i, identity=self.identities.get(i)) if i >= 0 else SumHelper(terms)
            for number in range(self.rounds):
                self._round(number, server, parties, record)
                result = server.result
                assert result is not None
                mean = {name: np.asarray(value) for name, value in result.mean.items()}
                kept = "-" if self.own_randomness else body_digest(mean)
                record.lines.append(f"result {','.join(map(str, result.survivors))} {len(result.void)} void {kept}")
        return [f"terms {'-' if self.own_randomness else terms.digest.hex()[:12]}", *record.lines]

    def _round(self, number: int, server: SumServer, parties: Mapping[int, Any], record: Record) -> None:
        base = self.base(number)
        given = {} if base is None else {"base": base}
        with record.drawn.of(SERVER):
            server.open(**given)
        while server.result is None:
            replies = {}
            for party, request in sorted(server.outgoing.items()):
                asked = _read(server.terms, request, SERVER)
                record.note(request, asked)
                with record.drawn.of(party):
                    more = {**self.given(party, number), **given} if party >= 0 else {}
                    reply = parties[party].receive(request, **more)
                answered = _read(server.terms, reply, party)
                record.note(reply, answered)
                if not self.lost(asked.round, asked.stage, party):
                    replies[party] = reply
            with record.drawn.of(SERVER):
                server.receive(replies)


def _read(terms: SumTerms, data: bytes, sender: int) -> Message:
    return Message.decode(unwrap(terms.digest, data, sender), claimed_sender=sender)


class Counting(Algorithm[Any, ClientData]):
    """An algorithm of whole numbers, exact on every processor: totals of rows, told back to the clients."""

    needs_outcome = True

    def layout(self, public: Public) -> Layout:
        return Layout((TensorSpec("total", (public.features,), 64.0), TensorSpec("count", (), 64.0)))

    def start(self, public: Public, rng: Any) -> Any:
        return np.zeros(public.features)

    def enroll(self, data: Dataset, public: Public, rng: Any) -> ClientData:
        return ClientData(data)

    def broadcast(self, server: Any) -> Tensors:
        return {"known": server}

    def contribute(self, client: ClientData, broadcast: Tensors, rng: Any) -> tuple[ClientData, Tensors]:
        rows = client.data.x
        return client, {"total": rows.sum(axis=0) + broadcast["known"] / 8, "count": np.asarray(float(len(rows)))}

    def combine(self, server: Any, aggregate: Any) -> Any:
        return aggregate.total["total"] / 8

    def evaluation_layout(self, public: Public) -> Layout:
        return Layout((TensorSpec("score", (), 64.0), TensorSpec("count", (), 64.0)))

    def evaluate(self, client: ClientData, broadcast: Tensors) -> Tensors:
        return {"score": np.asarray(client.data.x.sum()), "count": np.asarray(float(len(client.data.x)))}


class Choosing(Counting):
    """The same, with clients that are chosen by what they reveal."""

    candidates = 4

    @property
    def reveals(self) -> dict[str, str]:
        return {"rows": "its number of rows"}

    def reveal(self, client: ClientData, rng: Any) -> dict[str, Any]:
        return {"rows": np.asarray(float(len(client.data.x)))}

    def choose(self, revealed: Mapping[int, Any], cohort: int) -> Any:
        return sorted(revealed, key=lambda client: -float(revealed[client]["rows"]))[:cohort]


@dataclass
class Wire:
    """A transport that records every message and lets the party that is asked draw."""

    endpoints: Mapping[int, Any]
    record: Record
    lost: Lost

    def exchange(self, outgoing: Mapping[int, bytes], timeout: float | None = None) -> dict[int, bytes]:
        replies = {}
        for party, request in sorted(outgoing.items()):
            asked = Message.decode(request, claimed_sender=SERVER)
            self.record.note(request, asked)
            with self.record.drawn.of(party):
                reply = self.endpoints[party].handle(asked).encode()
            self.record.note(reply, Message.decode(reply, claimed_sender=party))
            if not self.lost(asked.round, asked.stage, party):
                replies[party] = reply
        return replies


@dataclass(frozen=True)
class RunCase:
    """A federated run of whole numbers.

    Attributes:
        defense: makes the defence.
        algorithm: what runs.
        options: keyword arguments of `Federation`.
        lost: which replies are lost.
    """

    defense: Callable[[], Any]
    algorithm: Algorithm[Any, Any] = field(default_factory=Counting)
    options: Mapping[str, Any] = field(default_factory=dict)
    lost: Lost = lambda *_: False

    def record(self, secrets: str = "frozen") -> list[str]:
        """Run two rounds with an evaluation, with these secrets."""
        with fixed_randomness(secrets) as drawn:
            record = Record(drawn)
            clients = [Dataset(np.arange(6.0).reshape(3, 2)[: 1 + i % 3] - i) for i in range(4)]
            with drawn.of(SERVER):
                federation = Federation(
                    self.algorithm, clients, self.defense(), seed=3, batched=False,
                    transport=lambda endpoints: Wire(endpoints, record, self.lost), **self.options,
                )  # fmt: skip
                result = federation.run(2, evaluate_every=2)
        return [*record.lines, f"result {result.output['known'].tolist()} {dict(result.history[-1].metrics)}"]

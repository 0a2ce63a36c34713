"""Take one turn of a sum whose messages are files: of a client, that answers, and of the server, that goes on.

A round makes one secure sum. It goes in stages (keys, shares, upload, unmasking): the server writes a request for each
client into the exchange folder, each client writes its reply, and when all have replied the server's next turn opens
the next stage. An attempt that gives no sum is void, and the round is repeated.

A turn may be taken again at any point, also after it was killed: the state and what is to be published are written to
one file at once, and published from there. So a message that was made is never made again with other contents.
`securefed party contribute` calls `answer`, and `securefed party sum` calls `take_turn`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from securefed._commands.party_files import (
    MessageName,
    check_private,
    csv_bytes,
    locked,
    npz_bytes,
    read_message,
    requests_in,
    write_whole,
)
from securefed._messages import REFUSAL, SERVER, Message
from securefed._persistence import container
from securefed._persistence.packing import from_bytes, nest, unnest
from securefed._persistence.sealing import Seal
from securefed._runtime.refusals import read_refusal
from securefed._tensors import Array
from securefed.errors import ConfigError, MessageRefused, SecureFedError, StorageError
from securefed.parties import SumClient, SumResult, SumServer, SumTerms
from securefed.parties._envelope import unwrap
from securefed.parties._guards import check_seal, open_beside
from securefed.parties._update import model_digest, read_update

_CLIENT: Final = "client's state of securefed party"
_SERVER: Final = "server's state of securefed party"


@dataclass(frozen=True)
class Exchange:
    """The files of one party of a sum.

    Attributes:
        terms: what all parties agreed on.
        folder: the exchange folder.
        state: the party's own file.
        seal: encrypts the state; `None` leaves it readable by its owner.
        ledger: of a client's data; by default beside its state.
    """

    terms: SumTerms
    folder: Path
    state: Path
    seal: Seal | None = None
    ledger: Path | None = None

    def load(self, kind: str) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """Read the state; `None` where there is none yet."""
        if not self.state.exists():
            return None
        meta, tensors = container.load(self.state, kind, self.seal)
        if meta["terms"] != self.terms.digest.hex():
            raise StorageError(f"{self.state} belongs to other terms; give the terms file that it was made with")
        return meta, tensors

    def save(self, kind: str, meta: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        """Write the state."""
        container.save(self.state, kind, {"terms": self.terms.digest.hex(), **meta}, dict(tensors), self.seal)


@dataclass(frozen=True)
class Contribution:
    """Contribution of a client to a sum.

    Attributes:
        update: arrays by name; `None` where none is given.
        weight: its weight in the mean, such as its number of rows.
        metrics: numbers that are summed beside the update, by name.
        base: the model that it was computed from; `None` without one.
    """

    update: Mapping[str, Any] | None = None
    weight: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    base: Mapping[str, Any] | None = None


def answer(at: Exchange, party: int, identity: bytes | None, mine: Contribution) -> list[str]:
    """Answer the newest request to a client, if it was not answered; return what happened, in sentences.

    Args:
        at: the client's files.
        party: the client's number.
        identity: its private identity, 32 bytes; `None` where the terms name no identities.
        mine: its contribution, which only the request for the upload takes; the other stages go without.

    Raises:
        ConfigError, DataError, StorageError, MessageRefused: as `SumClient`; nothing was answered.
    """
    if not 0 <= party < at.terms.clients:
        raise ConfigError(f"--party must be 0 to {at.terms.clients - 1}, a client of these terms; got {party}")
    check_private(at.state, at.folder)
    check_seal(at.terms, at.seal)
    with locked(at.state):
        name = next((name for name in requests_in(at.folder) if name.party == party), None)
        if name is None:
            return [f"There is no request to client {party} in {at.folder} now; it is not asked, or not yet."]
        reply = at.folder / name.file("reply")
        stored = at.load(_CLIENT)
        meta, tensors = stored or ({"reply": ""}, {"client": from_bytes(b"")})
        if meta["reply"] == reply.name:
            write_whole(reply, tensors["reply"].tobytes())
            complete = (at.folder / f"round-{name.round}-result.json").exists()
            return [
                describe(at.folder)
                if complete
                else f"{name.place()} is answered: {reply.name}. The server's turn is next."
            ]
        if reply.exists():
            raise StorageError(f"{reply} is there, and {at.state} did not write it; give --state of the one that did")
        if stored is None and name.stage > 1:
            raise StorageError(
                f"there is no {at.state}, which this client wrote in an earlier stage; go to the folder that holds "
                f"client-{party}.state, give --state, or, if it is lost, have the server go on --without {party}"
            )
        ledger = open_beside(at.state, at.seal, expected=stored is not None, named=at.ledger)
        client = SumClient.thaw(at.terms, party, tensors["client"].tobytes(), identity=identity, ledger=ledger)
        request = read_message(at.folder / name.file("request"), _most_bytes(at.terms))
        uploads = client.wants_update(request)
        if uploads:
            _check_given(mine, at.terms)
        answered = client.receive(request, mine.update, weight=mine.weight, metrics=mine.metrics, base=mine.base)
        at.save(_CLIENT, {"reply": reply.name}, {"client": from_bytes(client.freeze()), "reply": from_bytes(answered)})
        write_whole(reply, answered)
    return [
        f"{name.place(len(at.terms.plan.stages))} is answered: {reply.name}.", *_refusal(at.terms, party, answered),
        *(_out_of_range(mine, at.terms) if uploads else ()),
    ]  # fmt: skip


def _check_given(mine: Contribution, terms: SumTerms) -> None:
    if mine.update is None:
        raise ConfigError("this request asks for the contribution; give --update FILE, and --weight (number of rows)")
    if terms.base and mine.base is None:
        raise ConfigError("these terms bind each round to a model; give --base, the file that you trained from")


def _refusal(terms: SumTerms, party: int, reply: bytes) -> list[str]:
    """Say why this client's own reply refuses the request; nothing where it does not."""
    message = Message.decode(unwrap(terms.digest, reply, party), claimed_sender=party)
    return [f"The request was refused: {read_refusal(message)}"] if message.stage == REFUSAL else []


def _out_of_range(mine: Contribution, terms: SumTerms) -> list[str]:
    """Warn the client of its own values, in words that stay on its machine.

    Where the terms sum differences from the base, bounds are not compared: by default a defence clips differences.
    """
    assert mine.update is not None
    update = read_update(mine.update, terms.shapes, "the update")
    if odd := [name for name, value in update.items() if not np.isfinite(value).all()]:
        return [f"Your update holds values that are not finite in {odd[0]!r}: you sit out, and the round is repeated."]
    share = mine.weight / terms.largest_weight if terms.weighted else 1.0
    largest = {name: np.abs(value).max(initial=0) * share for name, value in update.items()}
    if far := [tensor for tensor in terms.tensors if not terms.differences and largest[tensor.name] > tensor.bound]:
        return [
            f"Your update exceeds the bound {far[0].bound:g} of {far[0].name!r}; the round is repeated with "
            "twice that, and again until the update fits."
        ]
    if terms.weighted and not 0 <= mine.weight <= terms.largest_weight:
        return [f"Your weight {mine.weight:g} is not from 0 to {terms.largest_weight:g} (the terms'): you sit out."]
    return []


def take_turn(
    at: Exchange, *, round: int | None = None, base: Mapping[str, Any] | None = None,
    cohort: Sequence[int] | None = None, without: Sequence[int] = (),
) -> list[str]:  # fmt: skip
    """Take the server's turn: open a round, or go on with the open one; return what happened, in sentences.

    Args:
        at: the server's files.
        round: the round to make, from 1; the newest one by default.
        base: the model to open the round with, where the terms bind one.
        cohort: the clients to invite; as `SumServer.open` by default.
        without: clients that are not waited for in this stage.

    Raises:
        ConfigError, DataError, StorageError, RoundVoid, BudgetSpent: as `SumServer`; the state is saved.
    """
    check_private(at.state, at.folder)
    with locked(at.state):
        return _Turn(at).take(round, base, cohort, without)


class _Turn:
    """One turn of the server: its state is read, changed and written.

    Args:
        at: the server's files.

    Attributes:
        meta: what the newest round was opened with (`_opened`), and the facts of the newest result as JSON; texts.
        mean: the newest mean, by name.
        server: the sum.
    """

    def __init__(self, at: Exchange) -> None:
        self.at = at
        waiting = requests_in(at.folder)
        stored = at.load(_SERVER)
        if stored is None and waiting:
            raise ConfigError(
                f"{at.folder} holds the messages of a run, and there is no state {at.state}; give --state of that run, "
                "or an empty folder for a new one"
            )
        self.meta, tensors = stored or ({"opened": "", "result": ""}, {})
        mean = unnest("mean", tensors)  # in the order of the names, and published in that of the terms
        self.mean = {name: mean[name] for name in at.terms.shapes if name in mean}
        self.server = SumServer(at.terms)
        if stored is not None:
            self.server = SumServer.thaw(at.terms, tensors["server"].tobytes())

    def take(
        self, round: int | None, base: Mapping[str, Any] | None, cohort: Sequence[int] | None, without: Sequence[int]
    ) -> list[str]:
        """Open the wanted round, go on with it, or say that it is complete; arguments as of `take_turn`."""
        unknown = set(without) - set(range(self.at.terms.clients))
        if unknown:
            raise ConfigError(
                f"clients are numbered 0 to {self.at.terms.clients - 1}; --without {min(unknown)} is none"
            )
        done = self._publish()
        complete, is_open = self.server.round, bool(self.server.outgoing)  # `complete`: number of complete rounds
        wanted = round
        if wanted is None:  # the open round; if none is open, the newest complete one, or the first
            wanted = complete + 1 if is_open or not complete else complete
        if wanted <= complete:
            return [*done, f"The next one is opened with --round {complete + 1}."]
        if wanted > complete + 1:
            raise ConfigError(f"round {complete + 1} comes before round {wanted}; give --round {complete + 1}")
        opened = self._opened(base, cohort)
        if not is_open:
            return self._open(base, cohort, opened)
        if (base is not None or cohort is not None) and opened != self.meta["opened"]:
            raise ConfigError(f"round {wanted} is open with another model or cohort; leave --base and --cohort out")
        return self._go_on(without)

    def _opened(self, base: Mapping[str, Any] | None, cohort: Sequence[int] | None) -> str:
        """Describe what a round is opened with, to compare when the same command is run again."""
        arrays = None if base is None else read_update(base, self.at.terms.shapes, "the base")
        return json.dumps([None if arrays is None else model_digest(arrays).hex(), cohort and sorted(cohort)])

    def _open(self, base: Mapping[str, Any] | None, cohort: Sequence[int] | None, opened: str) -> list[str]:
        if self.at.terms.base and base is None:
            raise ConfigError(
                "these terms bind each round to a model; give --base, the file that the clients train from, or, where "
                "there is no model, make the terms again with --no-base"
            )
        self.server.open(base, cohort=cohort)
        self.meta["opened"] = opened
        self._save()
        self._publish()
        return [f"Round {self.server.round + 1} is open.", *self._waited_for(sorted(self.server.outgoing))]

    def _go_on(self, without: Sequence[int]) -> list[str]:
        """Close the stage where all have replied but those that are left out."""
        names = self._names()
        replies, broken = self._replies(names)
        silent = set(names) - set(replies)
        if missing := sorted(silent - set(without)):
            return [*broken, *self._waited_for(missing)]
        choices = []  # what became of the clients that are not waited for
        if silent:
            choices.append(f"{_clients(sorted(silent))} left out.")
        if replied := sorted(set(without) & set(replies)):
            choices.append(f"{_clients(replied)} has replied, and is in.")
        void = len(self.server.void)  # attempts that were void before this turn
        try:
            result = self.server.receive(replies)
        except SecureFedError:
            self._save()
            raise
        if result is not None:
            self.meta["result"], self.mean = json.dumps(_facts(result, self.server)), dict(result.mean)
        refusals = [f"Client {party} is out: {reason}" for party, reason in sorted(self.server.refusals.items())]
        self._save()
        done = self._publish()
        if result is not None:
            return [*choices, *done]
        again = [f"The attempt was void, and is repeated: {reason}" for reason in self.server.void[void:]]
        return [*choices, *refusals, *again, *self._waited_for(sorted(self.server.outgoing))]

    def _replies(self, names: Mapping[int, MessageName]) -> tuple[dict[int, bytes], list[str]]:
        """Read the replies that are there and whole; a sentence for each that is neither."""
        replies, broken = {}, []
        for party, name in names.items():
            path = self.at.folder / name.file("reply")
            if not path.exists():
                continue
            data = read_message(path, _most_bytes(self.at.terms))
            try:
                Message.decode(unwrap(self.at.terms.digest, data, party), claimed_sender=party)
                replies[party] = data
            except MessageRefused as error:
                broken.append(f"{path.name} is not taken: {error}. Copy it anew, or go on with --without {party}.")
        return replies, broken

    def _names(self) -> dict[int, MessageName]:
        """Return the names of the requests that are open, by client."""
        terms, names = self.at.terms, {}
        for party, data in self.server.outgoing.items():
            message = Message.decode(unwrap(terms.digest, data, SERVER), claimed_sender=SERVER)
            stage = terms.plan.stages.index(message.stage) + 1
            # `server.round` counts completed rounds; `message.round` is the number of the exchange, from 0
            names[party] = MessageName(self.server.round + 1, message.round + 1, stage, message.stage, party)
        return names

    def _publish(self) -> list[str]:
        """Write the open requests, or the newest result, where they are not in the folder."""
        names = self._names()
        for party, name in names.items():
            write_whole(self.at.folder / name.file("request"), self.server.outgoing[party])
        if not self.meta["result"]:
            return []
        facts = json.loads(self.meta["result"])
        stem = f"round-{facts['round']}"
        # also where one is there: another site that writes into the folder may have put its own in this place
        write_whole(self.at.folder / f"{stem}-mean.npz", npz_bytes(self.mean))
        if table := csv_bytes(self.mean):
            write_whole(self.at.folder / f"{stem}-mean.csv", table)
        write_whole(self.at.folder / f"{stem}-result.json", (json.dumps(facts, indent=1) + "\n").encode())
        return [
            f"Round {facts['round']} is complete, of {_clients(facts['survivors']).lower()}: "
            f"{stem}-mean.npz {'and .csv hold' if table else 'holds'} the mean, and {stem}-result.json the rest."
        ]

    def _waited_for(self, parties: Sequence[int]) -> list[str]:
        name = next(iter(self._names().values()))
        return [f"{name.place(len(self.at.terms.plan.stages))} waits for {_clients(parties).lower()}."]

    def _save(self) -> None:
        self.at.save(_SERVER, self.meta, {"server": from_bytes(self.server.freeze())} | nest("mean", self.mean))


def describe(folder: Path) -> str:
    """Say in a sentence who is waited for, from the names of the files in the exchange folder."""
    names = requests_in(folder)
    if not names:
        return f"No round was opened in {folder}: the server's turn is next (securefed party sum)."
    if (folder / f"round-{names[0].round}-result.json").exists():
        return f"Round {names[0].round} is complete: round-{names[0].round}-mean.npz holds the mean."
    missing = [name.party for name in names if not (folder / name.file("reply")).exists()]
    if not missing:
        return f"{names[0].place()}: all have replied, and the server's turn is next (securefed party sum)."
    return f"{names[0].place()} waits for {_clients(missing).lower()}."


def _clients(parties: Sequence[int]) -> str:
    """Name clients: "Client 3", or "Clients 0, 1 and 2"."""
    texts = [str(party) for party in parties]
    return f"Client {texts[0]}" if len(texts) == 1 else f"Clients {', '.join(texts[:-1])} and {texts[-1]}"


def _facts(result: SumResult, server: SumServer) -> dict[str, Any]:
    """Return what the result file says, as JSON values."""
    plan = result.plan
    return {
        "round": result.round + 1,
        "run": server.run,
        "terms": server.terms.digest.hex(),
        "survivors": list(result.survivors),
        "weight": result.weight,
        "metrics": dict(result.metrics),
        "error": dict(result.error),
        "noise": dict(result.noise),
        "plan": str(plan).splitlines(),
        "epsilon": None if np.isinf(server.epsilon) else server.epsilon,
        "void": list(result.void),
        "refusals": {str(party): reason for party, reason in result.refusals.items()},
    }


def _most_bytes(terms: SumTerms) -> int:
    """Return a number of bytes that no message to or from one client exceeds.

    A request holds at most what every client uploads (Paillier's, to decrypt), and beside it a few fields for each
    tensor and client; an upload takes at most twice the planned bytes.
    """
    names = sum(len(tensor.name) for tensor in terms.plan.tensors) + 200 * len(terms.plan.tensors)
    return 2**20 + 8 * names + (terms.cohort + 1) * (2 * terms.plan.upload_bytes + 1000)

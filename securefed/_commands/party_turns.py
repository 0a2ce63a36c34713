"""Take the server's turn of a sum whose messages are files: write requests, read replies, publish the mean.

A round makes one secure sum. It goes in stages (keys, shares, upload, unmasking): the server writes a request for each
client into the exchange folder, each client writes its reply, and when all have replied the server's next turn opens
the next stage. An attempt that gives no sum is void, and the round is repeated.

A turn may be taken again at any point, also after it was killed: the state and what is to be published are written to
one file at once, and published from there. So a message that was made is never made again with other contents. The
command `securefed party sum` calls `take_turn`; `SumServer` makes the messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from securefed._commands.party_exchange import SERVER_STATE, Exchange
from securefed._commands.party_files import (
    MessageName,
    check_private,
    csv_bytes,
    npz_bytes,
    read_message,
    requests_in,
    write_whole,
)
from securefed._commands.party_sentences import clients_text, result_facts
from securefed._messages import SERVER, Message
from securefed._persistence.packing import from_bytes, nest, unnest
from securefed._persistence.state_file import StateFile
from securefed._runtime.exchange_context import tensors_digest
from securefed.errors import ConfigError, MessageRefused, SecureFedError
from securefed.parties import SumServer
from securefed.parties._envelope import sign, unwrap
from securefed.parties._update import read_update


def take_turn(
    at: Exchange, identity: bytes, *, round: int | None = None, base: Mapping[str, Any] | None = None,
    cohort: Sequence[int] | None = None, without: Sequence[int] = (),
) -> list[str]:  # fmt: skip
    """Take the server's turn: open a round, or go on with the open one; return what happened, in sentences.

    Args:
        at: the server's files.
        identity: the server's private identity, 32 bytes, which signs its requests and results.
        round: the round to make, from 1; the newest one by default.
        base: the model to open the round with, where the terms bind one.
        cohort: the clients to invite; as `SumServer.open` by default.
        without: clients that are not waited for in this stage.

    Raises:
        ConfigError, DataError, StorageError, RoundVoid, BudgetSpent: as `SumServer`; the state is saved.
    """
    check_private(at.state, at.folder)
    file = at.file(SERVER_STATE)
    with file.alone():
        return _Turn(at, file, identity).take(round, base, cohort, without)


class _Turn:
    """One turn of the server: its state is read, changed and written.

    Args:
        at: the server's files.
        file: the one of its state.
        identity: the server's private identity.

    Attributes:
        meta: what the newest round was opened with (`_opened`), and the facts of the newest result as JSON; texts.
        mean: the newest mean, by name.
        announced: the announced sum that it follows from; empty where the terms do not verify.
        server: the sum.
    """

    def __init__(self, at: Exchange, file: StateFile, identity: bytes) -> None:
        self.at, self.file, self.identity = at, file, identity
        waiting = requests_in(at.folder)
        stored = at.load(file)
        if stored is None and waiting:
            raise ConfigError(
                f"{at.folder} holds the messages of a run, and there is no state {at.state}; give --state of that run, "
                "or an empty folder for a new one"
            )
        values, tensors = stored or ({"opened": "", "result": ""}, {})
        self.meta = {name: values[name] for name in ("opened", "result")}
        mean = unnest("mean", tensors)  # in the order of the names, and published in that of the terms
        self.mean = {name: mean[name] for name in at.terms.shapes if name in mean}
        self.announced = tensors["announced"].tobytes() if "announced" in tensors else b""
        self.server = SumServer(at.terms, identity=identity)
        if stored is not None:
            self.server = SumServer.thaw(at.terms, tensors["server"].tobytes(), identity=identity)

    def take(
        self, round: int | None, base: Mapping[str, Any] | None, cohort: Sequence[int] | None, without: Sequence[int]
    ) -> list[str]:
        """Open the wanted round, go on with it, or say that it is complete; arguments as of `take_turn`."""
        unknown = set(without) - set(range(self.at.terms.clients))
        if unknown:
            raise ConfigError(
                f"--without must be 0 to {self.at.terms.clients - 1}, a client of these terms; got {min(unknown)}"
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
        return json.dumps([None if arrays is None else tensors_digest(arrays).hex(), cohort and sorted(cohort)])

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
            choices.append(f"{clients_text(sorted(silent))} left out.")
        if replied := sorted(set(without) & set(replies)):
            choices.append(f"{clients_text(replied)} has replied, and is in.")
        void = len(self.server.void)  # attempts that were void before this turn
        try:
            result = self.server.receive(replies)
        except SecureFedError:
            self._save()
            raise
        if result is not None:
            self.meta["result"], self.mean = json.dumps(result_facts(result, self.server)), dict(result.mean)
            self.announced = result.announced
        refusals = [f"Client {party}: {reason}" for party, reason in sorted(self.server.refusals.items())]
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
            data = read_message(path, self.at.terms.most_bytes)
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
        mean, told = npz_bytes(self.mean), (json.dumps(facts, indent=1) + "\n").encode()
        if self.announced:
            write_whole(self.at.folder / f"{stem}-announced.safetensors", self.announced)
        write_whole(
            self.at.folder / f"{stem}-result.signature",
            sign(self.identity, self.at.terms.digest, told, mean, self.announced),
        )
        write_whole(self.at.folder / f"{stem}-mean.npz", mean)
        if table := csv_bytes(self.mean):
            write_whole(self.at.folder / f"{stem}-mean.csv", table)
        write_whole(self.at.folder / f"{stem}-result.json", told)
        return [
            f"Round {facts['round']} is complete, of {clients_text(facts['survivors']).lower()}: "
            f"{stem}-mean.npz {'and .csv hold' if table else 'holds'} the mean, and {stem}-result.json the rest."
        ]

    def _waited_for(self, parties: Sequence[int]) -> list[str]:
        name = next(iter(self._names().values()))
        return [f"{name.place(len(self.at.terms.plan.stages))} waits for {clients_text(parties).lower()}."]

    def _save(self) -> None:
        kept = {"server": from_bytes(self.server.freeze()), "announced": from_bytes(self.announced)}
        self.at.save(self.file, self.meta, kept | nest("mean", self.mean))

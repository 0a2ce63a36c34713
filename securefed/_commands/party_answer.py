"""Take a client's turn of a sum whose messages are files: answer the server's newest request, and check its result.

A turn may be taken again at any point, also after it was killed: the state and the reply are written to one file at
once, and the reply is published from there. So a message that was made is never made again with other contents. The
command `securefed party contribute` calls `answer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from securefed._commands.party_exchange import CLIENT_STATE, Exchange
from securefed._commands.party_files import MessageName, check_private, read_message, stages_in, write_whole
from securefed._commands.party_sentences import describe
from securefed._messages import REFUSAL, SERVER, Message
from securefed._persistence.packing import from_bytes
from securefed._runtime.refusals import read_refusal
from securefed.errors import BindingError, ConfigError, MessageRefused, SecureFedError, StorageError
from securefed.parties import SumClient, SumResult, SumTerms
from securefed.parties._client import Update
from securefed.parties._envelope import unwrap
from securefed.parties._guards import check_seal, open_beside
from securefed.parties._update import check_rows, read_update


@dataclass(frozen=True)
class Contribution:
    """Contribution of a client to a sum.

    Attributes:
        update: arrays by name, or a function that computes them from a table of rows; `None` where none is given.
        weight: its weight in the mean, such as its number of rows; `None` where the terms name no largest weight.
        metrics: numbers that are summed beside the update, by name.
        base: the model that it was computed from; `None` without one.
        trained: number of the training by DP-SGD that made it, in the ledger of the client's data; `None` without one.
    """

    update: Update | None = None
    weight: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    base: Mapping[str, Any] | None = None
    trained: int | None = None


@dataclass(frozen=True)
class Keys:
    """Keys by which a client and the server know each other.

    Attributes:
        server: the server's public identity, 32 bytes, pinned at this site: the client answers no other's requests.
        identity: the client's private identity, 32 bytes; `None` where the terms name no identities.
    """

    server: bytes
    identity: bytes | None = None


def answer(at: Exchange, party: int, keys: Keys, mine: Contribution) -> list[str]:
    """Answer the newest request to a client, if it was not answered; return what happened, in sentences.

    Files in the folder that the server did not sign are no requests: any site can write them.

    Args:
        at: the client's files.
        party: the client's number.
        keys: its own identity, and the server's.
        mine: its contribution, which only the request for the upload takes; the other stages go without.

    Raises:
        ConfigError, DataError, StorageError, MessageRefused: as `SumClient`; nothing was answered.
        SumRefused: the round is complete, and its result is not that of the clients' contributions.
    """
    if not 0 <= party < at.terms.clients:
        raise ConfigError(f"--party must be 0 to {at.terms.clients - 1}, a client of these terms; got {party}")
    check_private(at.state, at.folder)
    check_seal(at.terms.plan, at.seal)
    file = at.file(CLIENT_STATE)
    with file.alone():
        name, request, refused = newest_request(at, party, keys.server)
        if name is None:
            none = f"There is no request to client {party} in {at.folder} now; it is not asked, or not yet."
            return [*refused, none]
        reply = at.folder / name.file("reply")
        stored = at.load(file)
        meta, tensors = stored or ({"reply": ""}, {"client": from_bytes(b"")})
        if meta["reply"] == reply.name:
            write_whole(reply, tensors["reply"].tobytes())
            if (at.folder / f"round-{name.round}-result.json").exists():
                client = _restored(at, party, keys, tensors["client"].tobytes(), known=True)
                return [*refused, *checked(at, client, name.round, keys.server, mine.base)]
            return [*refused, f"{name.place()} is answered: {reply.name}. The server's turn is next."]
        if reply.exists():
            raise StorageError(f"{reply} is there, and {at.state} did not write it; give --state of the one that did")
        if stored is None and name.stage > 1:
            raise StorageError(
                f"there is no {at.state}, which this client wrote in an earlier stage; go to the folder that holds "
                f"client-{party}.state, give --state, or, if it is lost, have the server go on --without {party}"
            )
        client = _restored(at, party, keys, tensors["client"].tobytes(), known=stored is not None)
        uploads = client.wants_update(request)
        if uploads:
            _check_given(mine, at.terms)
        answered = client.receive(
            request, mine.update, weight=mine.weight, metrics=mine.metrics, base=mine.base, trained=mine.trained
        )
        kept = {"client": from_bytes(client.freeze()), "reply": from_bytes(answered)}
        at.save(file, {"reply": reply.name}, kept)
        write_whole(reply, answered)
    return [
        *refused, f"{name.place(len(at.terms.plan.stages))} is answered: {reply.name}.",
        *_refusal(at.terms, party, answered), *(_out_of_range(mine, at.terms) if uploads else ()),
    ]  # fmt: skip


def _restored(at: Exchange, party: int, keys: Keys, frozen: bytes, *, known: bool) -> SumClient:
    """Restore the client from its state, with the ledger of its data; `known`: whether there is a state."""
    ledger = open_beside(at.state, at.seal, expected=known, named=at.ledger)
    return SumClient.thaw(at.terms, party, frozen, identity=keys.identity, ledger=ledger, server=keys.server)


def _check_given(mine: Contribution, terms: SumTerms) -> None:
    if mine.update is None:
        raise ConfigError("this request asks for the contribution; give --update FILE, and --weight if it has one")
    if callable(mine.update) and mine.trained is not None:
        raise ConfigError("a statistic of a table is no model that DP-SGD trained; leave --trained out")
    if terms.weighted and mine.weight is None:
        most = f"{terms.largest_weight:.12g}"
        raise ConfigError(f"these terms weight updates; give --weight, a number of rows up to {most}")
    if not terms.weighted and mine.weight is not None:
        raise ConfigError("these terms sum no --weight: leave it out, or make terms with --largest-weight ROWS")
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
    try:
        given = mine.update() if callable(mine.update) else mine.update
        check_rows(terms, given)
    except SecureFedError as error:
        return [f"You sit out, and the round is repeated: {error}"]
    update = read_update(given, terms.shapes, "the update")
    if odd := [name for name, value in update.items() if not np.isfinite(value).all()]:
        return [f"Your update holds values that are not finite in {odd[0]!r}: you sit out, and the round is repeated."]
    weight = 1.0 if mine.weight is None else mine.weight
    share = weight / terms.largest_weight if terms.weighted else 1.0
    largest = {name: np.abs(value).max(initial=0) * share for name, value in update.items()}
    if far := [tensor for tensor in terms.tensors if not terms.differences and largest[tensor.name] > tensor.bound]:
        return [
            f"Your update exceeds the bound {far[0].bound:g} of {far[0].name!r}; the round is repeated with "
            "twice that, and again until the update fits."
        ]
    if terms.weighted and not 0 <= weight <= terms.largest_weight:
        return [f"Your weight {weight:g} is not from 0 to {terms.largest_weight:g} (the terms'): you sit out."]
    return []


def newest_request(at: Exchange, party: int, server: bytes) -> tuple[MessageName | None, bytes, list[str]]:
    """Find the request to a client in the newest stage that the server opened.

    Args:
        at: the client's files.
        party: the client's number.
        server: the server's public identity.

    Returns:
        The request's name and bytes, `None` and no bytes where the client is not asked; and a sentence for each newer
        file that the server did not write.
    """
    refused: list[str] = []
    for stage in stages_in(at.folder):
        own = [name for name in stage if name.party == party]
        for name in own or stage:
            try:
                data = _signed_request(at, name, server)
            except (MessageRefused, StorageError) as error:
                refused.append(f"{name.file('request')} is not taken: {error}.")
                continue
            return (name, data, refused) if own else (None, b"", refused)
    return None, b"", refused


def _signed_request(at: Exchange, name: MessageName, server: bytes) -> bytes:
    """Read a request that the server signed and that is in its place; raise `MessageRefused` for another."""
    data = read_message(at.folder / name.file("request"), at.terms.most_bytes)
    limits = at.terms.core.limits
    message = Message.decode(unwrap(at.terms.digest, data, SERVER, limits=limits, pinned=server), claimed_sender=SERVER)
    stages = at.terms.plan.stages
    stage = stages.index(message.stage) + 1 if message.stage in stages else 0
    if (message.round + 1, stage, message.stage, message.receiver) != (
        name.exchange, name.stage, name.word, name.party,
    ):  # fmt: skip
        raise BindingError(SERVER, "the server wrote this request under another name")
    return data


def checked(at: Exchange, client: SumClient, round: int, server: bytes, base: Mapping[str, Any] | None) -> list[str]:
    """Check the result of a complete round, and say what was checked.

    Args:
        at: the client's files.
        client: the client, after its last answer.
        round: number of the round, from 1.
        server: the server's public identity.
        base: the model that the client computed its update from, where the terms sum differences.

    Raises:
        AuthenticationError: the server did not sign the result.
        SumRefused: the result is not that of the clients' contributions.
    """
    said = describe(at.folder)
    try:
        result = SumResult.from_folder(at.folder, at.terms, round, server=server)
    except ConfigError as error:
        return [f"{said} It was not checked: {error}."]
    if not at.terms.plan.verified:
        return [f"{said} The server signed it; that it is the sum of the contributions was not checked (verify=True)."]
    client.check(result, base=base)
    return [f"{said} Checked: it follows from the sum of the contributions of clients {list(result.survivors)}."]

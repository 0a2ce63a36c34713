"""Freeze a client's state to bytes and restore it, so that each message may be answered by another process.

    data = freeze(node)                         # after an answer
    thaw(node, data)                            # a node made anew with the client's data, before the next message

The bytes hold the secrets of the current exchange (the making of one sum) and the client's learned state: what it
contributes from, and what the defence remembers of earlier exchanges. Keep them on the client's machine, and seal them
(`Seal`) where others can read the disk. The bytes hold:

    version, run, client, terms    whose state it is: `thaw` compares them. `terms` is the text of what all parties
                                   agreed on (`SumNode.terms`)
    exchange, header               number and `ExchangeHeader` of the current exchange, where there is one
    protocol/...                   its protocol's state, with secrets
    node/...                       fields of `ClientNodeState` but for those marked local, such as the last exchange
                                   that the client took part in, and the defence's memory
    committed/...                  what the client contributes from, after the last contribution that a sum counted
    tentative/...                  the same after a contribution since then, which may count or not
    sums/...                       of which sums its data are part, where no ledger of its own remembers them

Never go on from a state that is older than an answer to a request for an upload: the client would mask two uploads
alike. Freeze after every answer, and keep only the newest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from securefed._persistence.packing import nest, pack, restore, unnest
from securefed._runtime.client_state import ClientNodeState
from securefed._runtime.exchange_header import BEFORE_ALL, ExchangeHeader
from securefed._runtime.sum_memory import SumMemory
from securefed._runtime.sum_node import SumNode
from securefed._tensors import Array, Tensors, decode, encode
from securefed.errors import DataError, StorageError

VERSION: Final = 4


def learned_of(node: SumNode) -> dict[str, Array]:
    """Pack the part of a state that outlives an exchange: no session, no protocol secrets, no data of the client."""
    state = node.state
    tensors = nest("node", pack(state)) | nest("committed", pack(state.committed))
    if node.guard.frozen:
        tensors |= nest("sums", node.guard.ledger.sums.to_tensors())
    return tensors | (nest("tentative", pack(state.tentative)) if state.tentative is not None else {})


def with_learned(node: SumNode, tensors: Tensors) -> ClientNodeState:
    """Return a freshly enrolled client's state with the learned part replaced by what `learned_of` returned.

    The tentative state is the one after the client's last contribution, which no server has confirmed yet.

    Raises:
        DataError: a field is missing.
    """
    state, template = node.state, node.state.committed
    if node.guard.frozen:
        node.guard.ledger.remember(SumMemory.from_tensors(unnest("sums", tensors)))
    state = restore(state, unnest("node", tensors))
    tentative = restore(template, unnest("tentative", tensors)) if state.tentative_round >= 0 else None
    return replace(state, committed=restore(template, unnest("committed", tensors)), tentative=tentative)


def freeze(node: SumNode, *, learned: bool = False) -> bytes:
    """Write the node's whole state to bytes, the current exchange included. Inverse: `thaw`.

    Args:
        node: the client.
        learned: leave out the current exchange with its secrets, so that only what was learned is written: for a file
            that outlives the exchange.
    """
    state = node.state
    header: dict[str, Any] = {"version": VERSION, "run": node.run, "client": node.client, "terms": node.terms}
    tensors = learned_of(node)
    if not learned and state.session is not None and state.header is not None:
        header |= {"exchange": state.session.round, "header": state.header.to_json()}
        tensors |= nest("protocol", pack(state.protocol))
    return encode(tensors, header)


def thaw(node: SumNode, frozen: bytes, *, resumes: str | None = None) -> None:
    """Restore a state that `freeze` wrote for the same client.

    Args:
        node: the client, enrolled with its data.
        frozen: the bytes.
        resumes: identifier of a run that died, where this run resumes from its checkpoint: only the learned state is
            taken over, because the secrets of the exchange belong to the old run.

    Raises:
        StorageError: not a frozen state, of another version, run or client, or of other hyper-parameters.
    """
    try:
        tensors, header = decode(frozen)
    except DataError as error:
        raise StorageError(f"the state of client {node.client} cannot be read: {error}") from error
    if (found := header.get("version")) != VERSION:
        raise StorageError(
            f"the state of client {node.client} has version {found}, and this release reads version {VERSION}; finish "
            "the run with the release that began it, or delete the file to enrol the client anew"
        )
    wanted = {"run": resumes or node.run, "client": node.client, "terms": node.terms}
    for name, value in wanted.items():
        if header.get(name) != value:
            raise StorageError(f"this state is of {name} {header.get(name)!r}, not {value!r}; give the client's own")
    try:
        state = with_learned(node, tensors)
        if resumes is not None:
            # Replays are recognised by the new run's identifier, and the round in which the old run died is repeated.
            state = replace(state, last_round=-1, place=BEFORE_ALL)
        elif "header" in header:
            opened = ExchangeHeader.from_json(header["header"])
            session = node.session(header["exchange"], opened)
            protocol = restore(node.protocol_for(session), unnest("protocol", tensors))
            state = replace(state, header=opened, session=session, protocol=protocol)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, DataError) as error:
        raise StorageError(f"the state of client {node.client} lacks a field: {error!r}; enrol it anew") from error
    node.state = state

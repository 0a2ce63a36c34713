"""A client's state as bytes, so that every message may be answered by another process.

    data = freeze(node)                         # after an answer
    thaw(node, data)                            # a node made anew with the client's data, before the next message

What is frozen holds the secrets of the exchange under way and what the client learned: it stays on its machine,
sealed (`securefed.sealing`) where others can read it. A state that answered an upload is never to be used for another
one: freeze after every answer, and keep the newest only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from securefed.errors import DataError, StorageError
from securefed.exchange_schedule import BEFORE_ALL
from securefed.node import ClientNode
from securefed.node_state import NodeState
from securefed.opening import Opening
from securefed.state import nest, pack, restore, unnest
from securefed.tensors import Array, Tensors, decode, encode

VERSION: Final = 2


def learned_of(state: NodeState) -> dict[str, Array]:
    """What outlives an exchange, as tensors: all but the session, its protocol and the client's data."""
    tensors = nest("node", pack(state)) | nest("committed", pack(state.committed))
    return tensors | (nest("tentative", pack(state.tentative)) if state.tentative is not None else {})


def with_learned(state: NodeState, tensors: Tensors) -> NodeState:
    """`state`, of a client enrolled anew with its data, with what `learned_of` gave.

    Raises:
        DataError: a field is missing.
    """
    template = state.committed
    state = restore(state, unnest("node", tensors))
    tentative = restore(template, unnest("tentative", tensors)) if state.tentative_round >= 0 else None
    return replace(state, committed=restore(template, unnest("committed", tensors)), tentative=tentative)


def freeze(node: ClientNode, *, learned: bool = False) -> bytes:
    """The node's whole state, the exchange under way included. Inverse: `thaw`.

    Args:
        learned: only what outlives an exchange, with no secret of the one under way: for a file.
    """
    state = node.state
    header: dict[str, Any] = {"version": VERSION, "run": node.run, "client": node.client, "terms": node.terms}
    tensors = learned_of(state)
    if not learned and state.session is not None and state.opening is not None:
        header |= {"exchange": state.session.round, "opening": state.opening.to_json()}
        tensors |= nest("protocol", pack(state.protocol))
    return encode(tensors, header)


def thaw(node: ClientNode, frozen: bytes, *, resumes: str | None = None) -> None:
    """Give `node` the state that `freeze` took of the same client.

    Args:
        resumes: the run that died, where the node's goes on from its checkpoint: take what the client learned in that
            one, and nothing of the exchange under way, whose secrets belong to it.

    Raises:
        StorageError: not a frozen state, of another version, run or client, or of other hyper-parameters.
    """
    try:
        tensors, header = decode(frozen)
    except DataError as error:
        raise StorageError(f"the state of client {node.client} cannot be read: {error}") from error
    wanted = {"version": VERSION, "run": resumes or node.run, "client": node.client, "terms": node.terms}
    for name, value in wanted.items():
        if header.get(name) != value:
            raise StorageError(f"this state is of {name} {header.get(name)!r}, not {value!r}; give the client's own")
    try:
        state = with_learned(node.state, tensors)
        if resumes is not None:
            # The new run's identifier tells its messages from replays, and a round that the run died in is asked again.
            state = replace(state, last_round=-1, place=BEFORE_ALL)
        elif "opening" in header:
            opening = Opening.from_json(header["opening"])
            session = node.session(header["exchange"], opening)
            protocol = restore(node.protocol_for(session), unnest("protocol", tensors))
            state = replace(state, opening=opening, session=session, protocol=protocol)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, DataError) as error:
        raise StorageError(f"the state of client {node.client} lacks a field: {error!r}; enrol it anew") from error
    node.state = state

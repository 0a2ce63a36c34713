"""Freeze a `RoundEngine` to bytes, in the middle of an exchange too, and restore it.

    data = freeze_engine(engine, pending, exchange)
    pending, exchange = thaw_engine(engine, data)             # an engine made anew with the same terms and run

The engine holds a run at the server: the algorithm's state, the sum that is being made (`PendingSum`, over several
attempts) and its open attempt (`OpenExchange`). `SumServer` freezes it so that a killed server goes on.

The bytes hold the server's secrets of the exchange, the sum of the uploads so far, and the keys that the last exchange
agreed on for the next one. An engine that is restored twice may use those keys twice; a client does not, since it
erases its part with its upload.

An exchange is one numbered attempt at a sum; rounds are counted with those that were given up. The values, in JSON:

    version    of this table
    loop       `RoundEngine.counters`: the next exchange's number, the privacy budget's count of exchanges, survivors of
               the last sum, doublings of the bounds, numbers that an adaptive defence learned from sums (a clipping
               norm), by client the last exchange that counted it, and the history
    tried      [round, kind, attempts] of the last sum: its next attempt gets the next number, since clients answer no
               attempt twice
    given_up   number of rounds that were given up
    log        bytes received and bytes sent so far
    announced  numbers of the exchanges whose sums are kept under `announced/`
    pending    kind (train or evaluate) of the sum, clients that its next attempt invites, why earlier attempts were
               void (texts), and whether a client sat out of one of them; absent between rounds
    number, header, exchange    of the open attempt: its number, `ExchangeHeader`, and `OpenExchange.freeze`

and the tensors:

    server/...      the algorithm's state
    prepared        keys for the next exchange (`SecureAggregation(pipelined=True)`), bytes; empty without them
    announced/N/... the sum of exchange N, with verify=True: a client in it checks it when it is next invited
    exchange/...    the protocol's state and the replies of the open attempt
"""

from __future__ import annotations

import json
from typing import Any, Final

from securefed._persistence.packing import from_bytes, nest, pack, restore, unnest
from securefed._runtime.exchange_header import ExchangeHeader
from securefed._runtime.open_exchange import OpenExchange
from securefed._runtime.round_engine import PendingSum, RoundEngine
from securefed._tensors import Array, Tensors, decode, encode
from securefed.errors import DataError, StorageError

VERSION: Final = 3


def freeze_engine(engine: RoundEngine, pending: PendingSum | None, exchange: OpenExchange | None) -> bytes:
    """Write an engine's state to bytes.

    Args:
        engine: the engine; simulated clients are not part of the bytes.
        pending: the sum that is being made; `None` between rounds.
        exchange: its open attempt.
    """
    values: dict[str, Any] = {
        "version": VERSION,
        "loop": engine.counters(),
        "tried": [[round, kind, attempts] for (round, kind), attempts in engine.tried.items()],
        "given_up": engine.given_up,
        "log": [engine.log.up, engine.log.down],
    }
    tensors: dict[str, Array] = nest("server", pack(engine.state)) | {"prepared": from_bytes(engine.prepared)}
    for number, announced in engine.announced.items():
        tensors |= nest(f"announced/{number}", announced)
    values["announced"] = sorted(engine.announced)
    if pending is not None:
        values["pending"] = [pending.kind, pending.cohort, pending.void, pending.was_out]
    if exchange is not None:
        values["number"], values["header"] = exchange.session.round, exchange.content.header.to_json()
        values["exchange"], frozen = exchange.freeze()
        tensors |= nest("exchange", frozen)
    return encode(tensors, {"engine": json.dumps(values)})


def thaw_engine(engine: RoundEngine, frozen: bytes) -> tuple[PendingSum | None, OpenExchange | None]:
    """Restore the state that `freeze_engine` wrote.

    The algorithm must be one with `needs_outcome` False, as the `ExternalSum` of every `SumServer` has: other clients
    need the broadcast that followed from their last contribution, and those are not in the bytes. This is not checked.

    Args:
        engine: made anew with the same terms and run; it is changed.
        frozen: the bytes.

    Returns:
        The sum that was being made, and its open attempt.

    Raises:
        StorageError: not a frozen engine, or of another version.
    """
    try:
        tensors, header = decode(frozen)
        values = json.loads(header["engine"])
        if values["version"] != VERSION:
            raise StorageError(f"a server's state of version {values['version']}; this release reads {VERSION}")
        engine.state = restore(engine.state, unnest("server", tensors))
        announced: dict[int, Tensors] = {
            number: unnest(f"announced/{number}", tensors) for number in values["announced"]
        }
        engine.continue_from(values["loop"], {}, announced)  # {}: no broadcasts that followed, as said above
        engine.given_up, engine.prepared = values["given_up"], tensors["prepared"].tobytes()
        engine.tried = {(round, kind): attempts for round, kind, attempts in values["tried"]}
        engine.log.up, engine.log.down = values["log"]
        if "pending" not in values:
            return None, None
        kind, cohort, void, was_out = values["pending"]
        pending = PendingSum(kind, tuple(cohort), void, was_out)  # JSON returns a tuple as a list
        if "exchange" not in values:
            return pending, None
        exchange = engine.reopen(values["number"], ExchangeHeader.from_json(values["header"]))
        exchange.thaw(values["exchange"], unnest("exchange", tensors))
        return pending, exchange
    except (KeyError, TypeError, ValueError, AttributeError, DataError) as error:
        raise StorageError(f"these bytes are no state of a server, or lack a field: {error!r}") from error

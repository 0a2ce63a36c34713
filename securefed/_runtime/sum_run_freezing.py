"""Freeze a `SumRun` to bytes, in the middle of an exchange too, and restore it.

    data = freeze_run(run, pending, exchange)
    pending, exchange = thaw_run(run, data, broadcast_of)     # a run made anew with the same terms and identifier

Beside the run's counters the bytes hold the sum that is being made (`PendingSum`, over several attempts) and its open
attempt (`OpenExchange`). `SumServer` freezes it so that a killed server goes on.

The bytes hold the server's secrets of the exchange, the sum of the uploads so far, and the keys that the last exchange
agreed on for the next one. A run that is restored twice may use those keys twice; a client does not, since it
erases its part with its upload.

An exchange is one numbered attempt at a sum; rounds are counted with those that were given up. The values, in JSON:

    version    of this table
    loop       `SumRun.counters`: the run, the next exchange's number, the privacy budget's count of exchanges, the
               blocks of clients that all sums so far tell apart, doublings of the bounds, numbers that an adaptive
               defence learned from sums (a clipping norm), by client the last exchange that counted it, and the history
    tried      [round, kind, attempts] of the last sum: its next attempt gets the next number, since clients answer no
               attempt twice
    given_up   number of rounds that were given up
    log        bytes received and bytes sent so far
    announced  numbers of the exchanges whose sums are kept under `announced/`
    pending    kind (train or evaluate) of the sum, clients that its next attempt invites, why earlier attempts were
               void (texts), and whether a client sat out of one of them; absent between rounds
    number, header, exchange    of the open attempt: its number, `ExchangeHeader`, and `OpenExchange.freeze`

and the tensors:

    prepared        keys for the next exchange (`SecureAggregation(pipelined=True)`), bytes; empty without them
    announced/N/... the sum of exchange N, with verify=True: a client in it checks it when it is next invited
    exchange/...    the protocol's state and the replies of the open attempt
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from securefed._persistence.packing import from_bytes, nest, unnest
from securefed._runtime.exchange_header import ExchangeHeader
from securefed._runtime.open_exchange import OpenExchange
from securefed._runtime.sum_run import PendingSum, SumRun
from securefed._tensors import Array, Tensors, decode, encode
from securefed.errors import DataError, StorageError

VERSION: Final = 3


def freeze_run(run: SumRun, pending: PendingSum | None, exchange: OpenExchange | None) -> bytes:
    """Write a run's state to bytes.

    Args:
        run: the run.
        pending: the sum that is being made; `None` between rounds.
        exchange: its open attempt.
    """
    values: dict[str, Any] = {
        "version": VERSION,
        "loop": run.counters(),
        "tried": [[round, kind, attempts] for (round, kind), attempts in run.tried.items()],
        "given_up": run.given_up,
        "log": [run.log.up, run.log.down],
    }
    tensors: dict[str, Array] = {"prepared": from_bytes(run.prepared)}
    for number, announced in run.announced.items():
        tensors |= nest(f"announced/{number}", announced)
    values["announced"] = sorted(run.announced)
    if pending is not None:
        values["pending"] = [pending.kind, pending.cohort, pending.void, pending.was_out]
    if exchange is not None:
        values["number"], values["header"] = exchange.session.round, exchange.content.header.to_json()
        values["exchange"], frozen = exchange.freeze()
        tensors |= nest("exchange", frozen)
    return encode(tensors, {"engine": json.dumps(values)})


def thaw_run(
    run: SumRun, frozen: bytes, broadcast_of: Callable[[ExchangeHeader], Tensors]
) -> tuple[PendingSum | None, OpenExchange | None]:
    """Restore the state that `freeze_run` wrote, of a run whose clients need no outcome (`SumSchema.needs_outcome`).

    Args:
        run: made anew with the same terms and identifier; it is changed.
        frozen: the bytes.
        broadcast_of: returns the broadcast of the open attempt, from its header.

    Returns:
        The sum that was being made, and its open attempt.

    Raises:
        StorageError: these bytes are no state of a server, of another version, or lack a field.
    """
    try:
        tensors, header = decode(frozen)
        values = json.loads(header["engine"])
        if values["version"] != VERSION:
            raise StorageError(f"a server's state of version {values['version']}; this release reads {VERSION}")
        announced: dict[int, Tensors] = {
            number: unnest(f"announced/{number}", tensors) for number in values["announced"]
        }
        run.continue_from(values["loop"], {}, announced)  # {}: no broadcasts that followed
        run.given_up, run.prepared = values["given_up"], tensors["prepared"].tobytes()
        run.tried = {(round, kind): attempts for round, kind, attempts in values["tried"]}
        run.log.up, run.log.down = values["log"]
        if "pending" not in values:
            return None, None
        kind, cohort, void, was_out = values["pending"]
        pending = PendingSum(kind, tuple(cohort), void, was_out)  # JSON returns a tuple as a list
        if "exchange" not in values:
            return pending, None
        opened = ExchangeHeader.from_json(values["header"])
        exchange = run.reopen(values["number"], opened, broadcast_of(opened))
        exchange.thaw(values["exchange"], unnest("exchange", tensors))
        return pending, exchange
    except (KeyError, TypeError, ValueError, AttributeError, DataError) as error:
        raise StorageError(f"these bytes are no state of a server, or lack a field: {error!r}") from error

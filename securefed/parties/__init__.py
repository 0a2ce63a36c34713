"""Sum updates of parties that do not trust each other: bytes in, bytes out, over any transport.

    terms  = SumTerms.like(model.state_dict(), clients=10, defense=secure_aggregation(),   # the same at every party
                           largest_weight=1000)

    client = SumClient(terms, party=3)                                                     # at each client
    reply  = client.receive(request, model.state_dict(), weight=600, base=received)

    server = SumServer(terms)                                                              # at the server
    server.open(base=model.state_dict())
    while server.result is None:
        server.receive(carry(server.outgoing))                                             # your transport
    model.load_state_dict(server.result.like(model.state_dict()))

Nothing here opens a socket. A client starts one thread, which writes its log lines a moment later; the clock is read
for these and for `answer_after` only. Each client makes its own secrets; other clients get encrypted shares of two of
them, by which the sum opens without a client that is lost.

An upload passes these files, in this order:

    _terms      what all parties agree on: tensors, defence, numbers of clients; `_runtime/sum_facts` reads them
    _server     opens a round and sends requests; `_runtime/sum_run` repeats attempts that are void
    _envelope   mark, version, digest of the terms and signature before each message
    _client     reads the request, the update, its weight and the model; keeps the state in a file
    _node       the protocol of the client: `_runtime/sum_node`, and the refusal of another model
    _update     what is uploaded for an update
    `_runtime/open_exchange`   takes replies at the server, stage by stage, and opens the sum
    _result     means and totals with their errors; `_checked_result` recomputes them at a client

An upload that the server does not expect changes no sum, and `SumServer.refusals` says why (`OpenExchange.receive`):

- Late: its stage was closed, and its client counts as dropped out ("it was not asked"); between two rounds
  `SumServer.receive` raises `ConfigError`, and in a later attempt or round it is of another exchange.
- Twice: the first one counts ("it has replied already").
- From another run, exchange or stage: refused by that name; its client may still send the right one.

Hand in what may be late with `receive(replies, more=True)`: without it each call ends the stage.
At a client (`SumNode`) each exchange is used up before its upload is computed, and written to the file: a request that
comes again, or of another run, is refused, whatever process reads it.

`_guards` and `_precision` hold rules for these and the sentences that a plan prints; `_terms_parts` holds the tensors
and the defence of the terms. `_simulation` plays all parties in one process. Each party freezes to bytes between two
messages (`_persistence/frozen`), which its file keeps (`_persistence/state_file`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from securefed._lazy import export_lazily

if TYPE_CHECKING:
    from securefed._runtime.committee_hand_over import hand_over_committee, take_over_committee
    from securefed.parties._client import SumClient
    from securefed.parties._helper import SumHelper
    from securefed.parties._result import SumResult
    from securefed.parties._server import SumServer
    from securefed.parties._terms import SumTerms
    from securefed.parties._terms_parts import SummedTensor

__all__ = [
    "SumClient",
    "SumHelper",
    "SumResult",
    "SumServer",
    "SumTerms",
    "SummedTensor",
    "hand_over_committee",
    "take_over_committee",
]

EXPORTS: Final = {
    "securefed.parties._terms": "SumTerms",
    "securefed.parties._terms_parts": "SummedTensor",
    "securefed.parties._client": "SumClient",
    "securefed.parties._server": "SumServer",
    "securefed.parties._helper": "SumHelper",
    "securefed.parties._result": "SumResult",
    "securefed._runtime.committee_hand_over": "hand_over_committee take_over_committee",
}
export_lazily(__name__, EXPORTS)

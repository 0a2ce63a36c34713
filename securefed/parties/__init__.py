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

Nothing here opens a socket or starts a thread, and no clock is read unless the terms name a time (`answer_after`).
Secrets are made by the client and never leave it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from securefed._lazy import export_lazily

if TYPE_CHECKING:
    from securefed.parties._client import SumClient
    from securefed.parties._helper import SumHelper
    from securefed.parties._result import SumResult
    from securefed.parties._server import SumServer
    from securefed.parties._summed_tensor import SummedTensor
    from securefed.parties._terms import SumTerms

__all__ = [
    "SumClient",
    "SumHelper",
    "SumResult",
    "SumServer",
    "SumTerms",
    "SummedTensor",
]

EXPORTS: Final = {
    "securefed.parties._terms": "SumTerms",
    "securefed.parties._summed_tensor": "SummedTensor",
    "securefed.parties._client": "SumClient",
    "securefed.parties._server": "SumServer",
    "securefed.parties._helper": "SumHelper",
    "securefed.parties._result": "SumResult",
}
export_lazily(__name__, EXPORTS)

"""Sum updates of parties that do not trust each other: bytes in, bytes out, over any transport.

    terms  = SumTerms.like(model.state_dict(), clients=10, defense=secure_aggregation())   # the same at every party

    client = SumClient(terms, party=3)                                                     # at each client
    reply  = client.receive(request, model.state_dict(), weight=600, base=received)

    server = SumServer(terms)                                                              # at the server
    server.open(base=model.state_dict())
    while server.result is None:
        server.receive(carry(server.outgoing))                                             # your transport
    model.load_state_dict(server.result.like(model.state_dict()))

Nothing here opens a socket, starts a thread or reads a clock. Secrets are made by the client and never leave it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from securefed._lazy import lazy_exports

if TYPE_CHECKING:
    from securefed.parties._client import SumClient
    from securefed.parties._helper import SumHelper
    from securefed.parties._result import SumResult
    from securefed.parties._server import SumServer
    from securefed.parties._terms import SummedTensor, SumTerms

__all__ = [
    "SumClient",
    "SumHelper",
    "SumResult",
    "SumServer",
    "SumTerms",
    "SummedTensor",
]

EXPORTS: Final = {
    "SumTerms": ("securefed.parties._terms", "What all parties agree on before they sum: tensors, bounds, defence."),
    "SumClient": ("securefed.parties._client", "One client: answers each request of the server with bytes."),
    "SumServer": ("securefed.parties._server", "The server: makes requests and opens the sum, round after round."),
    "SumHelper": ("securefed.parties._helper", "The key holder of a defence that needs one (Paillier, CKKS)."),
    "SumResult": ("securefed.parties._result", "Mean, sum, total weight, metrics and survivors of one round."),
    "SummedTensor": ("securefed.parties._terms", "One tensor of the terms: name, shape, bound and ring."),
}
__getattr__, __dir__ = lazy_exports(__name__, EXPORTS)

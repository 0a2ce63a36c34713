"""A simulated federation: the server and all its clients in one process.

    result = Federation(FedAvg(...), clients, secure_aggregation(), seed=0).run(rounds=20)

Every message is encoded and passes a transport, and each client runs its own side of the defence, so that sums,
messages and their sizes are those of a run over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from securefed._class_names import common_class_names
from securefed._messages import ClientId, PartyId
from securefed._public import Public
from securefed._runtime.client import ClientBatch
from securefed._runtime.history import Result
from securefed._runtime.ledger import Ledger
from securefed._runtime.privacy_checks import check_stateless_clients
from securefed._runtime.run_options import RunOptions
from securefed._runtime.server import Progress, Server
from securefed._runtime.sum_run import new_run
from securefed._runtime.terms import Terms
from securefed._transports import Endpoint, HelperNode, InProcessTransport, Transport
from securefed.algorithms._base import Algorithm
from securefed.algorithms._validation import check_object, check_packable
from securefed.datasets._base import Dataset
from securefed.defenses._base import Helper
from securefed.defenses._chain import Link
from securefed.errors import DataError, RangeRefused, RoundVoid


class Federation(Server):
    """A simulated federation, all clients behind one transport.

    Args:
        algorithm: hyper-parameters of the method.
        clients: one `Dataset` each; a client's id is its position.
        defense: protects the contributions in messages; without one, contributions are summed in the clear.
        seed: seeds initial states, cohorts and mini-batches. Keys and noise never come from it.
        cohort: number of clients planned for a round; all by default.
        public: declared facts; by default they are derived from the clients' data (see `Public.of`).
        transport: builds the transport from the endpoints; in process by default.
        batched: compute a cohort's contributions together where the algorithm can. Results agree with the
            client-by-client path up to rounding, which depends on which clients are computed together.
        reveal: accept that clients reveal, outside the defence, the scalars by which an algorithm selects clients. By
            default they do so only if the defence hides nothing.
        ledgers: by client, the ledger that records the privacy cost to its data; other clients keep none. A ledger in
            memory is lost with this process, even if there is a checkpoint.
        options: cohorts, checkpoint, transcript, retries and budget.

    Raises:
        DataError: the clients' rows cannot be used.
        ConfigError: parameters do not fit together.
        PlanError: the defence cannot keep its guarantee for these sizes.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        clients: Sequence[Dataset],
        defense: Link | None = None,
        *,
        seed: int = 0,
        cohort: int | None = None,
        public: Public | None = None,
        transport: Callable[[Mapping[PartyId, Endpoint]], Transport] = InProcessTransport,
        batched: bool = True,
        reveal: bool | None = None,
        ledgers: Mapping[ClientId, Ledger] | None = None,
        options: RunOptions | None = None,
    ) -> None:
        check_object(algorithm)
        _check_clients(clients)
        if public is not None:
            common_class_names(clients, public.class_names)
        terms = Terms.of(algorithm, public or Public.of(clients, cohort=cohort), defense, seed=seed, reveal=reveal)
        options, run = options or RunOptions(), new_run()
        keep = options.keep_transcript is not False
        nodes = {
            index: terms.node(index, run, data, keep=keep, ledger=(ledgers or {}).get(index))
            for index, data in enumerate(clients)
        }
        for node in nodes.values():
            node.simulated = True  # a contribution that breaks the layout ends the run by name, to find errors early
        # All clients enrol alike, so the first one's state shows what the states of this algorithm hold.
        check_stateless_clients(terms.defense, nodes[0].state.committed)
        if options.checkpoint is not None:
            check_packable(algorithm, algorithm.start(terms.public, np.random.default_rng(0)), "start")
            check_packable(algorithm, nodes[0].state.committed, "enroll")
        if batched:
            batch = ClientBatch(nodes)
            for node in nodes.values():
                node.batch = batch
        endpoints: dict[PartyId, Endpoint] = dict(nodes)
        self.helper: Helper | None = terms.defense.aggregation.helper(terms.public.cohort)
        if self.helper is not None:
            endpoints[self.helper.party] = HelperNode(self.helper, run)
        super().__init__(terms, transport(endpoints), run=run, options=options, nodes=nodes)

    def run(self, rounds: int, *, evaluate_every: int = 0, progress: Progress | None = None) -> Result:
        """Run as `Server.run` does, and say why a round stays void: the simulated clients know.

        Raises:
            RangeRefused: a client's values stay out of range, under any defence: a simulation knows it.
            RoundVoid: as of `Server.run`; its cause is the error for which the first client without a contribution had
                none. A server over a network does not learn it.
        """
        try:
            return super().run(rounds, evaluate_every=evaluate_every, progress=progress)
        except (RoundVoid, RangeRefused) as error:
            absent = [node for node in self.nodes.values() if node.absence is not None]
            if not absent:
                raise
            why, others = absent[0].absence, len(absent) - 1
            named = (RangeRefused if isinstance(why, RangeRefused) else RoundVoid)(
                f"the simulated client {absent[0].client} had no contribution because of {type(why).__name__}: {why}; "
                f"{others} more had none. What the server saw: {error}"
            )
            named.result = error.result
            raise named from why


def _check_clients(clients: Sequence[Dataset]) -> None:
    if isinstance(clients, Dataset) or not isinstance(clients, Sequence):
        raise DataError(
            f"clients must be a list with one securefed.Dataset for each client; got {type(clients).__name__}."
        )
    for index, data in enumerate(clients):
        if not isinstance(data, Dataset):
            raise DataError(
                f"client {index} is a {type(data).__name__}; give securefed.Dataset(x), or Dataset(x, y) with labels, "
                "for each client"
            )

"""A simulated federation: the server and all its clients in one process.

Federation(algorithm, clients, defense, seed=0).run(rounds)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from securefed.algorithms.base import Algorithm, Public
from securefed.cohort import Cohort
from securefed.coordinator import HelperNode
from securefed.datasets.base import Dataset
from securefed.defenses.base import Defense, Helper
from securefed.defenses.differential_privacy import Budget
from securefed.errors import DataError
from securefed.ledger import Ledger
from securefed.messages import ClientId, PartyId
from securefed.privacy import check_forgetful
from securefed.sealing import Seal
from securefed.selection import Schedule
from securefed.server import Server
from securefed.terms import Terms, new_run
from securefed.transports.base import Endpoint, Transport
from securefed.transports.in_process import InProcess


class Federation(Server):
    """A simulated federation, all clients behind one transport.

    Args:
        algorithm: hyper-parameters of the method.      clients: one `Dataset` each; ids are their positions.
        defense: the message layer; without one, contributions are summed in the clear.
        seed: of starts, cohorts and mini-batches. Keys and noise never come from it.
        cohort: S, clients planned for a round; all by default.
        public: declared facts; read off the clients where it is left out (see `Public.of`).
        schedule: which clients round k invites, instead of sampling.
        transport: builds the transport from the endpoints; in process by default.
        checkpoint: file to write every `checkpoint_every` rounds, and to resume from if it exists.
        keep: whether to keep the transcript (needed by attacks; grows with rounds x clients x tensors).
        max_void: attempts at one round before the run stops with `RoundVoid`.
        batched: compute a cohort's contributions together where the algorithm can. Results agree with the
            client-by-client path up to rounding, which depends on who is computed with whom.
        reveal: accept that clients reveal the scalars an algorithm selects by, outside the defence; by default only
            where nothing is hidden anyway.
        seal: encrypts the checkpoint, which holds what clients learned; without one it is in clear, for its owner only.
        prepare: let every client prepare its next upload between two rounds (`ClientNode.prepare`): encryption
            randomness. With all clients in one process this saves nothing; it is how a client's waiting time is used
            where they are apart.
        budget: of the defence's noise (`CentralGaussian.budget`), asked before every exchange, void ones too.
        ledgers: by client, the ledger of its data (`securefed.ledger`); clients that are not named keep none. One in
            memory is lost with this process, whatever the checkpoint says.

    Raises:
        DataError, ConfigError, PlanError: before anything runs.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        clients: Sequence[Dataset],
        defense: Defense | None = None,
        *,
        seed: int = 0,
        cohort: int | None = None,
        public: Public | None = None,
        schedule: Schedule | None = None,
        transport: Callable[[Mapping[PartyId, Endpoint]], Transport] = InProcess,
        checkpoint: Path | str | None = None,
        checkpoint_every: int = 10,
        seal: Seal | None = None,
        keep: bool = True,
        max_void: int = 8,
        timeout: float | None = None,
        budget: Budget | None = None,
        batched: bool = True,
        reveal: bool | None = None,
        prepare: bool = False,
        ledgers: Mapping[ClientId, Ledger] | None = None,
    ) -> None:
        _check_clients(clients)
        terms = Terms.of(algorithm, public or Public.of(clients, cohort=cohort), defense, seed=seed, reveal=reveal)
        run = new_run()
        nodes = {
            index: terms.node(index, run, data, keep=keep, ledger=(ledgers or {}).get(index))
            for index, data in enumerate(clients)
        }
        check_forgetful(terms.defense, nodes[0].state.committed)
        if batched:
            crew = Cohort(nodes)
            for node in nodes.values():
                node.crew = crew
        endpoints: dict[PartyId, Endpoint] = dict(nodes)
        self.helper: Helper | None = terms.defense.aggregation.helper(terms.public.cohort)
        if self.helper is not None:
            endpoints[self.helper.party] = HelperNode(self.helper, run)
        super().__init__(
            terms, transport(endpoints), run=run, schedule=schedule, checkpoint=checkpoint,
            checkpoint_every=checkpoint_every, seal=seal, keep=keep, max_void=max_void, timeout=timeout, budget=budget,
            nodes=nodes, prepare=prepare,
        )  # fmt: skip


def _check_clients(clients: Sequence[Dataset]) -> None:
    for index, data in enumerate(clients):
        if not isinstance(data, Dataset):
            raise DataError(
                f"client {index} is a {type(data).__name__}; give securefed.Dataset(x), or Dataset(x, y) with labels"
            )

"""Write a run to disk and resume it with the same result.

A checkpoint holds the server's state, and of the clients that are simulated in its process everything but their data.
Those clients enrol again with their data, and their saved states replace the fresh ones. Keys are not saved: a resumed
run makes new keys and continues the numbers of exchanges (attempts at a sum), so that no key or noise is ever used
twice. `Server` writes and reads it. The file holds, N being an exchange's number and I a client's id:

    format, run, loop      version of this table; public facts of the run; `Server.counters`
    server/...             the algorithm's state
    followed, announced    the numbers N of the next two lines
    followed/N/...         the broadcast that followed from exchange N
    announced/N/...        the sum of exchange N that its clients check (verify=True)
    client/I/...           what client I learned (`client_freezing.learned_of`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from securefed._messages import ClientId
from securefed._persistence import container
from securefed._persistence.packing import nest, pack, restore, unnest
from securefed._persistence.sealing import Seal
from securefed._runtime.client import ClientNode
from securefed._runtime.client_freezing import learned_of, with_learned
from securefed._runtime.exchange_header import BEFORE_ALL
from securefed._tensors import Tensors
from securefed.errors import DataError, StorageError

FORMAT: Final = 2
"""Version of the fields inside a checkpoint. Format 1 named states and algorithms as release 0.1.0 did."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint file and how it is written.

    Attributes:
        path: the file.
        every: rounds between two writes of the model; exchange numbers are reserved by further writes in between.
        seal: encrypts the file; `None` leaves it in the clear.
    """

    path: Path
    every: int
    seal: Seal | None = None

    def save(
        self,
        meta: Mapping[str, Any],
        loop: Mapping[str, Any],
        server: Any,
        followed: Mapping[int, Tensors],
        announced: Mapping[int, Tensors],
        nodes: Mapping[ClientId, ClientNode],
    ) -> None:
        """Write the run's state atomically.

        Args:
            meta: public facts of the run; a resumed run must have the same.
            loop: counters of the round loop, in JSON values.
            server: the algorithm's server state.
            followed: by exchange, the broadcast that followed from it, where the algorithm's clients need it to commit
                their contribution: those that are not invited again at once are told it later.
            announced: by exchange, the sum announced to the clients that check it, kept for the same reason.
            nodes: the clients simulated in this process.

        Raises:
            StorageError: the file cannot be written.
        """
        tensors = nest("server", pack(server))
        for exchange, broadcast in followed.items():
            tensors |= nest(f"followed/{exchange}", broadcast)
        for exchange, sums in announced.items():
            tensors |= nest(f"announced/{exchange}", sums)
        for client, node in nodes.items():
            tensors |= nest(f"client/{client}", learned_of(node))
        details = {"format": FORMAT, "run": dict(meta), "loop": dict(loop)}
        details |= {"followed": sorted(followed), "announced": sorted(announced)}
        container.save(self.path, "checkpoint", details, tensors, self.seal)

    def load(
        self, meta: Mapping[str, Any], server: Any, nodes: Mapping[ClientId, ClientNode]
    ) -> tuple[dict[str, Any], Any, dict[int, Tensors], dict[int, Tensors]]:
        """Read the checkpoint, and restore the states of `nodes` in place.

        Args:
            meta: public facts of this run; those in the file must be equal.
            server: a fresh server state, whose type the saved one has.
            nodes: the clients simulated in this process, freshly enrolled.

        Returns:
            `loop`, `server`, `followed` and `announced`, as they were given to `save`.

        Raises:
            StorageError: the file is unreadable, or belongs to a run with other parameters.
        """
        details, tensors = container.load(self.path, "checkpoint", self.seal)
        if (found := details.get("format", 1)) != FORMAT:
            raise StorageError(
                f"checkpoint {self.path} has format {found}, and this release reads format {FORMAT}; finish the run "
                "with the release that began it, or delete the file to start the run anew"
            )
        try:
            self._same_run(details["run"], meta)
            for client, node in nodes.items():
                state = with_learned(node, unnest(f"client/{client}", tensors))
                # `place` is the position in the run (round, training or evaluation, attempt) of the last exchange that
                # the client accepted; it accepts only later ones. The round that the run died in is opened again from
                # its first attempt, so this order starts anew. That is safe, for no exchange NUMBER is answered twice:
                # `last_round` is kept, and the server writes a checkpoint that reserves numbers before it uses them,
                # also between the writes of `every`, and goes on above all reserved ones (`Server._next_number`).
                node.state = replace(state, place=BEFORE_ALL)
            by_exchange: dict[str, dict[int, Tensors]] = {
                name: {exchange: unnest(f"{name}/{exchange}", tensors) for exchange in details[name]}
                for name in ("followed", "announced")
            }
            state = restore(server, unnest("server", tensors))
            return details["loop"], state, by_exchange["followed"], by_exchange["announced"]
        except (KeyError, TypeError, ValueError, AttributeError, DataError) as error:
            raise StorageError(f"checkpoint {self.path} lacks a field: {error!r}; delete it to start anew") from error

    def _same_run(self, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Raise `StorageError` that names a public fact in which the saved run differs from this one.

        Every fact of this run must be in the file. Facts that only the file has are ignored: this release compares none
        that it does not know.
        """
        different = [name for name in now if saved.get(name) != now[name]]
        if different:
            name = different[0]
            raise StorageError(
                f"checkpoint {self.path} belongs to another run: its {name} is {saved.get(name)!r}, this run's is "
                f"{now[name]!r}; use the same parameters, or another checkpoint file"
            )

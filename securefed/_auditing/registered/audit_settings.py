"""Settings that all registered algorithms of an audit share.

`registered_audit.audit` makes them of its arguments. They travel to worker processes, so that they hold names and
numbers and no data; each process loads the data once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from securefed._auditing.cases.case import Case, case
from securefed._auditing.cases.own_setup import OwnSetup
from securefed._auditing.cases.utility_floors import for_these_classes
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.datasets._loaders import load_once
from securefed.datasets._tables.table_format import TableFormat


@dataclass(frozen=True)
class Settings:
    """Settings that all registered algorithms of an audit share.

    Attributes:
        data: name of the data set, or path of the user's file.
        clients: number of clients.
        defenses: names of those to run.
        attacks: names of those to run.
        epsilon: the epsilon of the defence with noise (differential privacy), for all rounds together.
        delta: the delta that goes with epsilon.
        noise: by (epsilon, number of rounds) the noise multiplier that meets (epsilon, delta): the noise's standard
            deviation over the clipping norm.
        epsilons: the epsilons for the curve of leakage and utility against epsilon; may be empty.
        every_seed: whether the defences themselves run in every round of every seed. Otherwise they run the first
            rounds of the first seed; a cheaper run that only quantises, checked to have the same sums, stands for the
            rest.
        survivor_change: number of clients that come and go together where survivors change, the target among them.
        colluders: number of clients that tell the server what they sent; the attacker of every view of sums has it.
        active: whether a server that chooses its broadcasts attacks too.
        own: what the user changes of every algorithm's audit case; `own.owner` names the fact of the rows (such as
            their writer) that says whose they are, where each client is one owner.
        label: name of the column of labels in a file of the user's; empty for the usual ones.
        form: how a text table of the user's is written, where the user says so.
        clips: by (algorithm, rows of every client or `None`) the clipping norm under noise, where it is measured
            (`registered_subject.measured_clips`).
    """

    data: str
    clients: int
    defenses: tuple[str, ...]
    attacks: tuple[str, ...]
    epsilon: float
    delta: float
    noise: Mapping[tuple[float, int], float]
    epsilons: tuple[float, ...]
    every_seed: bool
    survivor_change: int = 1
    colluders: int = 0
    active: bool = False
    own: OwnSetup = OwnSetup()
    label: str = ""
    form: TableFormat = TableFormat()
    clips: Mapping[tuple[str, int | None], float] = field(default_factory=dict)

    def case(self, algorithm: str, rows: int | None = None) -> Case:
        """Return an algorithm's audit case with what the user changes of it.

        Args:
            algorithm: its name.
            rows: the number of rows of every client, where they are not those of `own`.
        """
        own = self.own if rows is None else replace(self.own, rows=rows)
        found = for_these_classes(own.apply(case(algorithm)), self.source().data)
        return replace(found, clip=self.clips.get((algorithm, rows), found.clip))

    def present(self, round: int) -> tuple[int, ...]:
        """List the clients of a round over changing survivors: all in even rounds, all but the first few in odd.

        Those that stay away are clients 0 to `survivor_change` - 1; client 0 is the target.
        """
        return tuple(range(self.clients))[self.survivor_change if round % 2 else 0 :]

    def joining(self, round: int) -> tuple[int, ...]:
        """List the clients of a round over changing survivors where the first few stay away in even rounds instead."""
        return self.present(round + 1)

    def columns(self, count: int) -> tuple[str, ...]:
        """Return the names of the data's columns; none where a run has another number of columns than the data."""
        names = self.source().features
        return names if len(names) == count else ()

    def source(self) -> LoadedDataset:
        """Load the data, once in a process."""
        return load_once(self.data, self.own.owner, self.label, self.form)

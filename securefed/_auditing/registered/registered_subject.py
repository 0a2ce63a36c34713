"""A registered algorithm as a subject of the audit: its case with the user's changes, and the runs of its seeds.

An audit case is the setting in which an algorithm is audited: hyper-parameters, number of rounds, split of the data,
secrets, clipping norm and utility. `registered_audit.audit` makes one subject for each algorithm and lets worker
processes call `audit_seed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from securefed._auditing.cases import Case, Prepared
from securefed._auditing.cases.audit_settings import Settings
from securefed._auditing.cases.own_setup import head, owners_of
from securefed._auditing.cases.utility_floors import floors
from securefed._auditing.engine.allowed_views import LATE, default_threshold
from securefed._auditing.engine.defense_names import DDP, DP
from securefed._auditing.engine.seed_result import SeedFloors, SeedResult
from securefed._auditing.registered.audited_defenses import NOISES, clipping_norm, distributed_multiplier, noise_words
from securefed._auditing.registered.seed_run import SeedRun
from securefed._auditing.registered.smallest_client import attack_smallest
from securefed._runtime.federation import Federation
from securefed.algorithms._graph.mrmtl import MRMTL
from securefed.algorithms._graph.ppgl import PPGL
from securefed.algorithms._pca.faps import FAPS
from securefed.algorithms._pca.fedpe import FedPE
from securefed.algorithms._pca.fedpg import FedPG
from securefed.attacks._gradient_inversion.gradient_rounds import joins_unattacked
from securefed.defenses._chain import chain
from securefed.errors import SecureFedError

_STATEFUL: Final = FAPS, FedPG, FedPE, PPGL, MRMTL
"""Algorithms beside gradient methods whose clients keep a subspace, a dual variable or a graph between rounds: the
first message of a client that joins late is unlike its later ones."""


@dataclass(frozen=True)
class RegisteredSubject:
    """A registered algorithm under audit, as its audit case runs it; an `audit_report.Subject`.

    Attributes:
        algorithm: its name in the registry.
        settings: the settings of the whole audit.
        rows: rows of every client, where the audit repeats each algorithm at several such numbers; `None` otherwise.
    """

    algorithm: str
    settings: Settings
    rows: int | None = None

    @property
    def name(self) -> str:
        """The algorithm's name in the report, with the rows a client where `rows` gives them."""
        if self.rows is None:
            return self.algorithm
        return f"{self.algorithm} (1 row)" if self.rows == 1 else f"{self.algorithm} ({self.rows} rows)"

    @property
    def case(self) -> Case:
        """The audit case with what the user changes of it."""
        return self.settings.case(self.algorithm, self.rows)

    def prepare(self, seed: int) -> Prepared:
        """Split the data for a seed: each client's rows, held-out rows and public facts."""
        return self.case.prepare(self.settings.source(), self.settings.clients, seed)

    def describe(self) -> Mapping[str, Any]:
        """Return the settings of its audit case, the sizes at which it runs, and how much noise each defence adds."""
        prepared = self.prepare(0)
        noise = {name: self._noise(name, prepared) for name in NOISES if name in self.settings.defenses}
        more: dict[str, Any] = {"noise multipliers": noise} if noise else {}
        built = self.case.build()
        if isinstance(built, _STATEFUL) or joins_unattacked(built, prepared.public):
            more[LATE] = "not attacked"
        if noise.get(DDP) is not None:
            clients = self.settings.clients
            sizes = self.case.clip, default_threshold(clients), clients
            more["noise"] = noise_words(self.settings.epsilon, *sizes)
        named = self.settings.own.owner
        owner = {"owner": named, "owners": owners_of(self.settings.source(), named)} if named else {}
        return self.case.describe() | {"sizes": head(prepared, self.case) | owner} | more

    def _noise(self, defense: str, prepared: Prepared) -> float | None:
        """Return the noise multiplier of a defence, the noise's standard deviation over the clipping norm.

        It is `None` where no noise of this epsilon fits the algorithm.
        """
        case, shared = self.case, self.settings
        if defense == DP:
            return shared.noise[shared.epsilon, case.rounds]
        sizes = (
            case.build().layout(prepared.public),
            shared.clients,
            default_threshold(shared.clients),
            shared.colluders,
        )
        try:
            return distributed_multiplier(case.clip, shared.epsilon, shared.delta, case.rounds, *sizes)
        except SecureFedError:
            return None

    def audit_seed(self, seed: int) -> SeedResult:
        """Run and attack one seed; all but keys and noise follows from the seed.

        On seed 0 the defences themselves run, and pictures are kept. On other seeds cheaper runs with the same sums
        stand for the defences.
        """
        case, prepared = self.case, self.prepare(seed)
        result = SeedRun(self.name, case, self.settings, prepared, seed, first=seed == 0).run()
        result.smallest += attack_smallest(self.name, case, self.settings, prepared, seed, result)
        result.floors.append(SeedFloors(self.name, seed, floors(case, prepared, seed)))
        return result


def measured_clips(subjects: Iterable[RegisteredSubject]) -> dict[tuple[str, int | None], float]:
    """Measure the clipping norm of every algorithm that does not run as published, as the search of an advice does.

    Returns:
        By (algorithm, rows of every client or `None`) the norm in three digits, of a run in the clear at seed 0; none
        of an algorithm whose run is refused.
    """
    clips: dict[tuple[str, int | None], float] = {}
    for subject in subjects:
        if subject.settings.own.published(subject.settings.data) and subject.rows is None:
            continue
        prepared, case = subject.prepare(0), subject.case
        with suppress(SecureFedError):  # the audit's own runs say why
            run = Federation(case.build(), prepared.clients, chain(), seed=0, public=prepared.public).run(case.rounds)
            clips[subject.algorithm, subject.rows] = float(f"{clipping_norm(run.transcript):.3g}")
    return clips

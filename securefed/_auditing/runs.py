"""One seed of one algorithm: run it under every defence, look at each run through every view, attack, score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from securefed._auditing.attacking import CHANGING_SURVIVORS, DIFFERENCE, Attacker, Attempt, finite, prefix_lengths
from securefed._auditing.audit_cells import CLIENT, RunFacts, Score
from securefed._auditing.cases import Case, Preparation, Prepared, WideCase, case
from securefed._auditing.misfit import explains, precision
from securefed._auditing.scoring import Assessment, assess
from securefed._auditing.task_results import Artifact, Gap, Task, TaskResult, Trace, Tradeoff
from securefed._messages import RoundRecord
from securefed._runtime.federation import Federation
from securefed._runtime.history import RoundHistory
from securefed._runtime.run_options import RunOptions
from securefed._runtime.server import Result
from securefed._tensors import Tensors
from securefed.attacks import views
from securefed.attacks._base import RoundView, Target, View
from securefed.attacks.scores import leakage
from securefed.datasets._loaders import LoadedDataset, load
from securefed.defenses._base import Aggregation, Defense
from securefed.defenses._chain import chain
from securefed.defenses._differential_privacy import clip, gaussian
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import KeyHolder, Paillier, open_upload
from securefed.defenses._homomorphic.encryption_randomness import power_table
from securefed.defenses._homomorphic.key_holder_protocol import threshold_of
from securefed.defenses._plain import Plain
from securefed.defenses._secure_aggregation import secure_aggregation
from securefed.errors import DivergenceError

PLAIN, SECURE_AGGREGATION, PAILLIER, DP = "plain", "secure_aggregation", "paillier", "dp"
DEFENSES = (PLAIN, SECURE_AGGREGATION, PAILLIER, DP)
TARGET = 0
ABSENCE_ROUNDS = 30
REAL_ROUNDS = 2
"""Rounds that an exact defence itself runs on the first seed, where all rounds cost the same."""
QUANTISED = chain(Quantise(), Plain())
DEFAULT_SETTING = "default setting"
UNTRACED = ("gradient_inversion/naive", "gradient_inversion/dlg", DIFFERENCE)
CURVE_SEEDS = 3
Real = tuple[Result, Federation]
COVERED = {DP: views.RELEASED}
"""The one view that a defence's epsilon covers."""


def run_task(task: Task) -> TaskResult:
    """Run one task; deterministic in its seed, save for keys and noise, which the operating system draws."""
    what, source = case(task.algorithm), _source(task.settings.data)
    prepared = what.prepare(source, task.settings.clients, task.seed)
    return _Seed(task, what, prepared).run()


@cache
def _source(name: str) -> LoadedDataset:
    return load(name)


@cache
def _key_holder() -> KeyHolder:
    holder = KeyHolder.generate(Paillier.bits)
    power_table(holder.public.n, holder.public.base, Paillier.randomness)  # made here, it counts in no run's time
    return holder


class _HeldPaillier(Paillier):
    """Paillier with one key for all runs of a process, as an institution's would be; its holder answers each run apart.

    So the key and the tables that noise comes from are made once, not once an algorithm.
    """

    def helper(self, clients: int, frozen: bytes | None = None) -> KeyHolder:
        return _key_holder().requiring(threshold_of(self.threshold, clients))


class _Seed:
    """One federation's data, run under each defence."""

    def __init__(self, task: Task, what: Case, prepared: Prepared) -> None:
        self.task, self.case, self.prepared = task, what, prepared
        self.settings = task.settings
        self.scores: list[Score] = []
        self.facts: list[RunFacts] = []
        self.artifacts: list[Artifact] = []
        self.skipped: list[str] = []
        self.gaps: list[Gap] = []
        self.traces: list[Trace] = []
        self.tradeoffs: list[Tradeoff] = []
        self.attacker = self._new_attacker()
        self._runs: dict[tuple[str, str], Result] = {}
        self._absence: dict[str, Attacker] = {}

    def run(self) -> TaskResult:
        steps: dict[str, Callable[[], None]] = {
            PLAIN: self._plain,
            SECURE_AGGREGATION: self._secure_aggregation,
            PAILLIER: self._paillier,
            DP: self._dp,
        }
        for name in self.settings.defenses:
            try:
                steps[name]()
            except DivergenceError as error:
                self.skipped.append(f"{self.case.name}, {name}, seed {self.task.seed}: {error}")
                self.gaps.append(Gap(self.case.name, name, "", "", self.task.seed, str(error)))
        return TaskResult(
            tuple(self.scores),
            tuple(self.facts),
            tuple(self.artifacts),
            tuple(self.skipped),
            tuple(self.traces),
            tuple(self.tradeoffs),
            tuple(self.gaps),
        )

    # --- defences -----------------------------------------------------------------------------------------------

    def _plain(self) -> None:
        result, _ = self._federation(chain())
        self._note(PLAIN, result)
        observed = views.server(result.transcript, TARGET)
        self._look(PLAIN, result, observed)
        if self.task.seed < self.case.traced:
            self._trace(self.attacker, DEFAULT_SETTING, observed, result, prefix_lengths(len(observed.rounds)))
            if self.case.wide is not None and self.task.first:
                self._wide(self.case.wide)

    def _wide(self, wide: WideCase) -> None:
        """The same attack at full width: how its conditioning grows with the number of unknowns."""
        with self._data(wide.prepare) as attacker:
            result, _ = self._federation(chain(), rounds=wide.rounds[-1])
            setting = f"full width, {self.prepared.public.features} features"
            self._trace(attacker, setting, views.server(result.transcript, TARGET), result, wide.rounds)

    @contextmanager
    def _data(self, prepare: Preparation) -> Iterator[Attacker]:
        """Other data for a while, with an attacker who knows their public facts."""
        usual = self.prepared
        self.prepared = prepare(_source(self.settings.data), self.settings.clients, self.task.seed)
        try:
            yield self._new_attacker()
        finally:
            self.prepared = usual

    def _new_attacker(self) -> Attacker:
        target = Target(self.case.build(), self.prepared.public)
        return Attacker(self.settings.attacks, self.case.secrets, target, self.task.seed)

    def _trace(self, attacker: Attacker, setting: str, observed: View, result: Result, rounds: tuple[int, ...]) -> None:
        for name, found in attacker.prefixes(observed, rounds, UNTRACED):
            errors, conditions = [], []
            for item in found:
                judged = assess(self.prepared, observed, item, result, TARGET) if item else None
                errors.append(judged[0].error if judged else math.nan)
                conditions.append(finite(item.condition) if item else math.nan)
            self.traces.append(Trace(setting, self.case.name, name, rounds, tuple(errors), tuple(conditions)))

    def _secure_aggregation(self) -> None:
        defense = chain(secure_aggregation())
        result = self._exact(SECURE_AGGREGATION, defense, self._sums(QUANTISED))[0]
        others = range(1, self.settings.clients)
        self._look(SECURE_AGGREGATION, result, views.sum_only(result.transcript, TARGET))
        self._look(SECURE_AGGREGATION, result, views.collusion(result.transcript, TARGET, others))
        changing = chain(secure_aggregation(survivor_change=self.settings.survivor_change))
        self._absences(SECURE_AGGREGATION, QUANTISED, changing)

    def _sums(self, defense: Defense, view: str = "", **how: Any) -> Result:
        """The run that leaves the sums of an audited defence without its cost; made once a seed and view.

        Those of `QUANTISED` are the sums of integers that every exact defence leaves, bit for bit.
        """
        key = defense.name, view
        if key not in self._runs:
            self._runs[key] = self._federation(defense, **how)[0]
        return self._runs[key]

    def _exact(
        self, name: str, defense: Defense, quantised: Result, view: str = "", **how: Any
    ) -> tuple[Result, Real | None]:
        """What the server of an exact defence sees, and the run under it, if there was one.

        On the first seed the defence itself runs `REAL_ROUNDS` rounds, whose sums are compared with the quantised
        run's; that one stands for the further rounds and seeds, as parity over whole runs under every exact defence is
        tested apart (`tests/contract/test_parity.py`). Facts of no round of the defence are not `real`; time and bytes
        come from those that are. With `every_seed` the defence runs every round of every seed.
        """
        if not (self.task.first or self.settings.every_seed):
            self._note(name, quantised, real=False, view=view)
            return quantised, None
        planned = len(quantised.history)
        whole = self.settings.every_seed or view == CHANGING_SURVIVORS  # whose rounds cost differently
        rounds = planned if whole else min(planned, REAL_ROUNDS)
        result, federation = self._federation(defense, **{**how, "rounds": rounds})
        same = _identical(result, quantised, whole=rounds == planned)
        self._note(name, result, output=quantised.output if same else None, identical=same, view=view)
        return (quantised if same and rounds < planned else result), (result, federation)

    def _absences(self, name: str, sums: Defense, defense: Defense | None = None) -> None:
        """The target stays away in every second round, and who goes with it: sums over different survivors subtract.

        Args:
            sums: leaves the sums that the server of the audited defence sees.
            defense: that defence, run beside it on the first seed, where its cost is of interest.
        """
        if DIFFERENCE not in self.settings.attacks or self.case.absences is None:
            return
        how: dict[str, Any] = {"rounds": ABSENCE_ROUNDS, "schedule": self.settings.present}
        with self._data(self.case.absences) as fresh:
            attacker = self._absence.setdefault(sums.name, fresh)  # which knows these sums, if they came up before
            result = self._sums(sums, CHANGING_SURVIVORS, **how)
            if defense is not None:
                result, _ = self._exact(name, defense, result, CHANGING_SURVIVORS, **how)
            observed = replace(views.sum_only(result.transcript, TARGET), view=CHANGING_SURVIVORS)
            self._look(name, result, observed, attacker)

    def _paillier(self) -> None:
        quantised = self._sums(QUANTISED)
        result, real = self._exact(PAILLIER, chain(_HeldPaillier()), quantised)
        self._look(PAILLIER, result, views.sum_only(result.transcript, TARGET))
        self._absences(PAILLIER, QUANTISED)
        seen = replace(views.server(quantised.transcript, TARGET), view=views.KEY_HOLDER_VIEW)
        if real is not None:
            opened = _opened(*real)
            seen = replace(seen, rounds=(*opened, *(seen.rounds[len(opened) :] if result is quantised else ())))
        self._look(PAILLIER, result, seen)

    def _dp(self) -> None:
        real = self.task.first or self.settings.every_seed
        result = self._noised(self.settings.epsilon, secure_aggregation() if real else Plain())
        self._note(DP, result, real=real, epsilon=self.settings.epsilon)
        self._look(DP, result, views.sum_only(result.transcript, TARGET))
        self._look(DP, result, views.released(result.transcript, TARGET))
        self._absences(DP, chain(clip(self.case.clip), Quantise(), Plain()))
        if self.task.seed < CURVE_SEEDS:
            self.tradeoffs += [self._tradeoff(epsilon) for epsilon in self.settings.epsilons]

    def _noised(self, epsilon: float, aggregation: Aggregation) -> Result:
        """Clipped, quantised, summed and noised; which aggregation sums changes no sum."""
        multiplier = self.settings.noise[epsilon, self.case.rounds]
        return self._federation(chain(clip(self.case.clip), gaussian(multiplier), Quantise(), aggregation))[0]

    def _tradeoff(self, epsilon: float) -> Tradeoff:
        """Leakage and utility at one epsilon."""
        result = self._noised(epsilon, Plain())
        observed = views.released(result.transcript, TARGET)
        leaks = [
            leakage(item.error, item.baseline)
            for attempt in self.attacker.attempts(observed)[0]
            for item in assess(self.prepared, observed, attempt.found, result, TARGET)
            if item.secret == CLIENT
        ]
        utility = self.case.utility(result.output, self.prepared.test)
        return Tradeoff(self.case.name, epsilon, self.task.seed, max(leaks, default=math.nan), utility)

    # --- runs and attacks ---------------------------------------------------------------------------------------

    def _federation(
        self, defense: Defense, *, rounds: int | None = None, schedule: Any = None
    ) -> tuple[Result, Federation]:
        """A run; one that noise drives out of its domain ends with its last good round, and the audit says so.

        Raises:
            DivergenceError: there is no good round.
        """
        federation = Federation(
            self.case.build(),
            self.prepared.clients,
            defense,
            seed=self.task.seed,
            public=self.prepared.public,
            options=RunOptions(schedule=schedule),
        )
        planned, done = rounds or self.case.rounds, list[RoundHistory]()
        try:
            return federation.run(planned, progress=done.append), federation
        except DivergenceError as error:
            if not done:
                raise
            what = f"{self.case.name}, {defense.name}, seed {self.task.seed}"
            self.skipped.append(f"{what}: only {len(done)} of {planned} rounds: {error}")
            return federation.run(len(done)), federation

    def _note(
        self,
        defense: str,
        result: Result,
        *,
        output: Tensors | None = None,
        real: bool = True,
        identical: bool | None = None,
        epsilon: float | None = None,
        view: str = "",
    ) -> None:
        rounds = len(result.history)
        traffic = sum(entry.up + entry.down for entry in result.history)
        self.facts.append(
            RunFacts(
                algorithm=self.case.name,
                defense=defense,
                seed=self.task.seed,
                utility=self.case.utility(result.output if output is None else output, self.prepared.test),
                bytes_per_client_round=traffic / rounds / self.settings.clients,
                seconds_per_round=sum(entry.seconds for entry in result.history) / rounds,
                rounds=rounds,
                epsilon=epsilon,
                real=real,
                identical=identical,
                view=view,
            )
        )

    def _look(self, defense: str, result: Result, observed: View, attacker: Attacker | None = None) -> None:
        """Run every attack that applies to this view, and its null."""
        done, refused = (attacker or self.attacker).attempts(observed)
        place = self.case.name, defense, observed.view
        self.gaps += [Gap(*place, name, self.task.seed, why) for name, _, why in (r.partition(": ") for r in refused)]
        level = precision(observed)
        for attempt in done:
            self._score(defense, result, observed, attempt, level)
        if not done and self.task.first:
            where = f"{self.case.name}, {defense}, {observed.view}"
            self.skipped.append(f"{where}: no attack applies ({'; '.join(refused) or 'none chosen'})")

    def _score(self, defense: str, result: Result, observed: View, attempt: Attempt, level: float) -> None:
        found = attempt.found
        genuine = assess(self.prepared, observed, found, result, TARGET)
        nothing: dict[str, float] = {}
        if attempt.null is not None:
            judged = assess(self.prepared, observed, attempt.null, result, TARGET)
            nothing = {item.secret: item.error for item in judged}
        for item in genuine:
            self.scores.append(
                Score(
                    algorithm=self.case.name,
                    defense=defense,
                    view=observed.view,
                    attack=attempt.attack,
                    secret=item.secret,
                    seed=self.task.seed,
                    error=item.error,
                    baseline=item.baseline,
                    null_error=nothing.get(item.secret, item.baseline),
                    failed=item.failed,
                    residual=found.residual,
                    rank=found.rank,
                    unknowns=found.unknowns,
                    condition=finite(found.condition),
                    explained=explains(found, level),
                    null_explained=False if attempt.null is None else explains(attempt.null, level),
                )
            )
            if self.task.first:
                self._keep(defense, observed.view, attempt.attack, item)

    def _keep(self, defense: str, view: str, attack: str, item: Assessment) -> None:
        self.artifacts.append(
            Artifact(
                algorithm=self.case.name,
                defense=defense,
                view=view,
                attack=attack,
                secret=item.secret,
                truth=item.truth,
                estimate=item.estimate,
                image_shape=self.prepared.image_shape,
            )
        )


def _opened(result: Result, federation: Federation) -> tuple[RoundView, ...]:
    """The target's uploads of a run under Paillier, decrypted."""
    holder, plan = federation.helper, result.plan
    assert isinstance(holder, KeyHolder)
    opener = partial(open_upload, holder, plan=plan)
    return views.opened(result.transcript, TARGET, opener, views.KEY_HOLDER_VIEW).rounds


def _identical(result: Result, quantised: Result, *, whole: bool) -> bool:
    """Whether every exchange of a run gave the sum of integers of the quantised one, which goes on unless `whole`."""

    def same(a: RoundRecord, b: RoundRecord) -> bool:
        return a.survivors == b.survivors and all(np.array_equal(a.encoded[n], b.encoded[n]) for n in a.encoded)

    ours, theirs = result.transcript.records, quantised.transcript.records
    if not ours or (len(ours) != len(theirs) if whole else len(ours) > len(theirs)):
        return False
    return all(same(a, b) for a, b in zip(ours, theirs, strict=False))

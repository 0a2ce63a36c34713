"""Run one seed of one registered algorithm under every defence, and attack each run in every view.

`RegisteredSubject.audit_seed` makes a `SeedRun` in a worker process. A view holds the messages that one kind of
attacker sees; under each defence these are attacked:

    plain, quantise               server: the target's own messages, as sent or rounded to fixed point
    secure_aggregation            sums; collusion: the sums less the contributions of all other clients
    paillier, ckks                sums; server + key holder: the target's messages, decrypted
    paillier_threshold            sums
    dp (noise added by server)    sums before the noise; released: after it
    ddp (noise added by clients)  sums with the noise in them

`sum_views` makes the views of sums: over all clients, over the fewest that the threshold allows, and less what declared
colluders sent. Two further views need runs of their own: `changing survivors`, in which the target stays away in every
second round; and `active server`, whose server chooses its broadcasts. What follows from the estimates is computed by
`implications`.

Defences without noise sum the same integers, bit for bit. So the audit attacks a run whose clients only round to fixed
point (the quantised run); the defences themselves run the first rounds of the first seed only (`_exact`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from securefed._auditing.cases import Case, Preparation, Prepared
from securefed._auditing.cases.audit_settings import Settings
from securefed._auditing.engine.allowed_views import default_threshold
from securefed._auditing.engine.defense_names import (
    CKKS,
    DDP,
    DP,
    PAILLIER,
    PAILLIER_THRESHOLD,
    PLAIN,
    QUANTISE,
    SECURE_AGGREGATION,
)
from securefed._auditing.engine.results import CLIENT, RunFacts
from securefed._auditing.engine.seed_result import (
    DEFAULT_SETTING,
    Gap,
    SeedResult,
    Trace,
    Tradeoff,
    finite_or_nan,
    run_costs,
)
from securefed._auditing.registered.attacked_views import JOINING, TARGET, AttackedViews
from securefed._auditing.registered.attacker import DIFFERENCE, Attacker, prefix_lengths
from securefed._auditing.registered.audited_defenses import (
    NOISES,
    QUANTISED,
    RealRun,
    SharedKeyPaillier,
    distributed,
    identical_sums,
    opened_uploads,
    shared_key_threshold_paillier,
)
from securefed._auditing.registered.sum_views import changing_sums
from securefed._runtime.federation import Federation
from securefed._runtime.history import Result, RoundHistory
from securefed._runtime.run_options import RunOptions
from securefed._tensors import Tensors
from securefed.attacks import views
from securefed.attacks._base import Target, View
from securefed.attacks._gradient_inversion.gradient_rounds import stores_gradients
from securefed.attacks.scores import leakage
from securefed.attacks.views import CHANGING_SURVIVORS
from securefed.defenses._base import Aggregation, Defense
from securefed.defenses._chain import chain
from securefed.defenses._differential_privacy import clip, gaussian
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import ckks
from securefed.defenses._plain import Plain
from securefed.defenses._secure_aggregation import secure_aggregation
from securefed.errors import DivergenceError

ABSENCE_ROUNDS: Final = 30
"""Rounds of the runs over changing survivors: 15 without the target, at which the attack's error is below .02."""
JOINING_ROUNDS: Final = 3
"""Rounds of the runs in which the target joins: without it, with it, and without it, which shows the others' part."""
REAL_ROUNDS: Final = 2
"""Rounds that a defence without noise itself runs on the first seed; the second begins with the state of the first."""
UNTRACED: Final = ("gradient_inversion/naive", "gradient_inversion/dlg", DIFFERENCE)
"""Attacks without a curve of errors against rounds: slow ones, and one that needs all rounds."""
CURVE_SEEDS: Final = 3
"""Seeds of the curves of leakage against epsilon, which only show the shape."""


class SeedRun(AttackedViews):
    """One federation's data, run under each defence and attacked.

    Args:
        name: the algorithm's name in the report.
        case: its audit case.
        settings: the settings of the whole audit.
        prepared: the seed's data: each client's rows, held-out rows and public facts.
        seed: the seed of the data split, the run and the attacks.
        first: whether the defences themselves run and pictures are kept.
    """

    def __init__(self, name: str, case: Case, settings: Settings, prepared: Prepared, seed: int, first: bool) -> None:
        self.name, self.case, self.settings, self.seed, self.first = name, case, settings, seed, first
        self.prepared, self.result = prepared, SeedResult(names=settings.columns(prepared.public.features))
        self.attacker = self._new_attacker()
        self.implied = {}
        self._runs: dict[tuple[str, str], Result] = {}
        self._absence: dict[str, Attacker] = {}

    def run(self) -> SeedResult:
        """Run and attack every defence of the audit; one that diverges in its first round is left out."""
        steps: dict[str, Callable[[], None]] = {
            PLAIN: self._plain,
            SECURE_AGGREGATION: self._secure_aggregation,
            PAILLIER: self._paillier,
            PAILLIER_THRESHOLD: self._paillier_threshold,
            CKKS: self._ckks,
            QUANTISE: self._quantise,
            DP: self._dp,
            DDP: self._ddp,
        }
        for name in self.settings.defenses:
            try:
                steps[name]()
            except DivergenceError as error:
                self.result.skipped.append(f"{self.name}, {name}, seed {self.seed}: {error}")
                self.result.gaps.append(Gap(self.name, name, "", "", self.seed, str(error)))
        return self.result

    def _plain(self) -> None:
        result, _ = self._federation(chain())
        self._note_costs(PLAIN, result)
        self._active(PLAIN, chain(), result)
        observed = views.server(result.transcript, TARGET)
        self._attack(PLAIN, result, observed)
        if self.seed < self.case.traced:  # the seeds of the curves of errors against rounds
            self._trace(self.attacker, DEFAULT_SETTING, observed, result, prefix_lengths(len(observed.rounds)))
            if self.case.wide is not None and self.first:
                self._wide(self.case.wide)

    def _wide(self, wide: Preparation) -> None:
        """Trace the attacks on data of full width, which have more unknowns and a larger condition number."""
        rounds = self.case.wide_rounds
        with self._data(wide) as attacker:
            result, _ = self._federation(chain(), rounds=rounds[-1])
            setting = f"full width, {self.prepared.public.features} features"
            self._trace(attacker, setting, views.server(result.transcript, TARGET), result, rounds)

    @contextmanager
    def _data(self, prepare: Preparation) -> Iterator[Attacker]:
        """Use other data within the context, and give an attacker who knows their public facts."""
        usual = self.prepared
        self.prepared = prepare(self.settings.source(), self.settings.clients, self.seed)
        try:
            yield self._new_attacker()
        finally:
            self.prepared = usual

    def _new_attacker(self) -> Attacker:
        target = Target(self.case.build(), self.prepared.public)
        return Attacker(self.settings.attacks, self.case.secrets, target, self.seed)

    def _trace(self, attacker: Attacker, setting: str, observed: View, result: Result, rounds: tuple[int, ...]) -> None:
        """Record each attack's error when it reads only the first `rounds[i]` rounds, for the curves of the report."""
        judge = self._judge(observed, result)
        for name, estimates in attacker.prefixes(observed, rounds, UNTRACED):
            errors = tuple(judge(item)[0].error if item else math.nan for item in estimates)
            conditions = tuple(finite_or_nan(item.condition) if item else math.nan for item in estimates)
            self.result.traces.append(Trace(setting, self.name, name, rounds, errors, conditions))

    def _secure_aggregation(self) -> None:
        defense = chain(secure_aggregation())
        result = self._exact(SECURE_AGGREGATION, defense, self._sums(QUANTISED))[0]
        others = range(1, self.settings.clients)
        self._attack_sums(SECURE_AGGREGATION, result)
        self._attack(SECURE_AGGREGATION, result, views.collusion(result.transcript, TARGET, others))
        changing = chain(secure_aggregation(survivor_change=self.settings.survivor_change))
        self._absences(SECURE_AGGREGATION, QUANTISED, changing)
        self._active(SECURE_AGGREGATION, chain(secure_aggregation()) if self.first else QUANTISED, result)

    def _sums(self, defense: Defense, view: str = "", **how: Any) -> Result:
        """Run a cheap defence with the same sums as an audited one, once for each seed and view.

        `QUANTISED` has the sums of integers of every defence without noise, bit for bit. `how` goes to `_federation`.
        """
        key = defense.name, view
        if key not in self._runs:
            self._runs[key] = self._federation(defense, **how)[0]
        return self._runs[key]

    def _exact(
        self, name: str, defense: Defense, quantised: Result, view: str = "", **how: Any
    ) -> tuple[Result, RealRun | None]:
        """Return the run to attack under a defence without noise, and the run under the defence itself, if any.

        Without the defence's own run, as on most seeds, the quantised run is attacked; so it is where their first sums
        (`REAL_ROUNDS`) are the same. The defence's own run is attacked if a sum differs, or if it made all rounds, as
        it does with `every_seed`. Time and bytes come from it where there is one (`RunFacts.real`).

        Args:
            name: the name of the defence in the report.
            defense: the defence itself.
            quantised: the run that only quantises.
            view: the one view that both runs are made for; empty for the usual runs.
            **how: rounds and schedule of the run, as in `_federation`.
        """
        if not (self.first or self.settings.every_seed):
            self._note_costs(name, quantised, real=False, view=view)
            return quantised, None
        planned = len(quantised.history)
        # where clients come and go, rounds with the target and without it alternate, and differ in cost
        few = REAL_ROUNDS * (2 if view == CHANGING_SURVIVORS else 1)
        rounds = planned if self.settings.every_seed else min(planned, few)
        result, federation = self._federation(defense, **{**how, "rounds": rounds})
        same = identical_sums(result, quantised, whole=rounds == planned)
        self._note_costs(name, result, output=quantised.output if same else None, identical=same, view=view)
        return (quantised if same and rounds < planned else result), (result, federation)

    def _absences(self, name: str, sums: Defense | Callable[[], Defense], defense: Defense | None = None) -> None:
        """Attack a run in which the target stays away in every second round, so that sums can be subtracted.

        Args:
            name: the name of the audited defence.
            sums: a cheap defence with the same sums, or a function that makes it for the data of this view.
            defense: the audited defence, run beside it on the first seed if its cost is of interest.
        """
        shared = self.settings
        staying = shared.clients - shared.survivor_change
        if self.case.rounds == 1 or staying < default_threshold(shared.clients):  # no two sums to subtract
            return
        how: dict[str, Any] = {"rounds": ABSENCE_ROUNDS, "schedule": self.settings.present}  # without it in odd rounds
        with self._data(
            self.case.absences or self.case.prepare
        ) as fresh:  # within, `self.prepared` holds the data of these runs
            sums = sums if isinstance(sums, Defense) else sums()
            attacker = self._absence.setdefault(sums.name, fresh)  # it remembers results on the same sums
            result = self._sums(sums, CHANGING_SURVIVORS, **how)
            if defense is not None:
                result, _ = self._exact(name, defense, result, CHANGING_SURVIVORS, **how)
            observed = changing_sums(result.transcript, TARGET, shared.clients, shared.colluders)
            self._attack(name, result, observed, attacker)
            if stores_gradients(self.case.build(), self.prepared.public):
                late = self._sums(sums, JOINING, rounds=JOINING_ROUNDS, schedule=shared.joining)
                self._attack_joining(name, changing_sums(late.transcript, TARGET, shared.clients, shared.colluders))

    def _paillier(self) -> None:
        quantised = self._sums(QUANTISED)
        result, real = self._exact(PAILLIER, chain(SharedKeyPaillier()), quantised)
        self._attack_sums(PAILLIER, result)
        self._absences(PAILLIER, QUANTISED)
        self._active(PAILLIER, QUANTISED, result)
        observed = replace(views.server(quantised.transcript, TARGET), view=views.KEY_HOLDER_VIEW)
        if real is not None:
            opened = opened_uploads(*real, TARGET)  # the rounds that Paillier itself ran
            later = observed.rounds[len(opened) :] if result is quantised else ()
            observed = replace(observed, rounds=(*opened, *later))
        self._attack(PAILLIER, result, observed)

    def _paillier_threshold(self) -> None:
        result, _ = self._exact(PAILLIER_THRESHOLD, shared_key_threshold_paillier(), self._sums(QUANTISED))
        self._attack_sums(PAILLIER_THRESHOLD, result)
        self._absences(PAILLIER_THRESHOLD, QUANTISED)

    def _ckks(self) -> None:
        """Attack the sums of CKKS, which err by 2^-30; after the first seed the quantised run's stand for them."""
        quantised = self._sums(QUANTISED)
        real = self.first or self.settings.every_seed
        result = self._federation(chain(ckks()))[0] if real else quantised
        self._note_costs(CKKS, result, real=real)
        self._attack_sums(CKKS, result)
        self._absences(CKKS, QUANTISED)
        key_holders = replace(views.server(quantised.transcript, TARGET), view=views.KEY_HOLDER_VIEW)
        self._attack(CKKS, quantised, key_holders)

    def _quantise(self) -> None:
        result = self._sums(QUANTISED)
        self._note_costs(QUANTISE, result)
        self._attack(QUANTISE, result, views.server(result.transcript, TARGET))

    def _dp(self) -> None:
        """Attack sums before and after the noise of the server; epsilon covers only what it publishes."""
        real = self.first or self.settings.every_seed
        result = self._noised(self.settings.epsilon, secure_aggregation() if real else Plain())
        self._note_costs(DP, result, real=real, epsilon=self.settings.epsilon)
        self._attack_sums(DP, result)
        self._attack(DP, result, views.released(result.transcript, TARGET))
        clipped = chain(clip(self.case.clip), Quantise(), Plain())
        self._absences(DP, clipped)
        self._active(DP, clipped, result)
        self._tradeoffs(DP)

    def _ddp(self) -> None:
        """Attack sums that hold every client's share of the noise, so that epsilon covers what the server sees."""
        real = self.first or self.settings.every_seed
        result = self._federation(self._distributed(self.settings.epsilon, self.case.rounds, real=real))[0]
        self._note_costs(DDP, result, real=real, epsilon=self.settings.epsilon)
        self._attack_sums(DDP, result)
        self._absences(DDP, lambda: self._distributed(self.settings.epsilon, ABSENCE_ROUNDS, real=False))
        self._active(DDP, self._distributed(self.settings.epsilon, self.case.rounds, real=False), result)
        self._tradeoffs(DDP)

    def _distributed(self, epsilon: float, rounds: int, *, real: bool) -> Defense:
        layout = self.case.build().layout(self.prepared.public)
        size, colluding = self.settings.clients, self.settings.colluders
        sizes = self.case.clip, epsilon, self.settings.delta, rounds, layout, size
        return distributed(*sizes, colluding=colluding, real=real)

    def _noised(self, epsilon: float, aggregation: Aggregation) -> Result:
        """Run under central noise (the server's) of an epsilon; the aggregation changes only the cost, not the sums."""
        multiplier = self.settings.noise[epsilon, self.case.rounds]
        return self._federation(chain(clip(self.case.clip), gaussian(multiplier), Quantise(), aggregation))[0]

    def _tradeoffs(self, noise: str) -> None:
        """Measure leakage and utility at several epsilons, under the first defence with noise of the audit."""
        if noise == next(name for name in self.settings.defenses if name in NOISES) and self.seed < CURVE_SEEDS:
            self.result.tradeoffs += [self._tradeoff(noise, epsilon) for epsilon in self.settings.epsilons]

    def _tradeoff(self, noise: str, epsilon: float) -> Tradeoff:
        """Measure leakage and utility at one epsilon, in the view that it covers."""
        if noise == DP:
            result = self._noised(epsilon, Plain())
        else:
            result = self._federation(self._distributed(epsilon, self.case.rounds, real=False))[0]
        observed = (views.released if noise == DP else views.sum_only)(result.transcript, TARGET)
        leaks = [
            leakage(item.error, item.baseline)
            for finding in self.attacker.attack(observed)[0]
            for item in self._judge(observed, result)(finding.estimate)
            if item.secret == CLIENT
        ]
        utility = self.case.utility(result.output, self.prepared.test)
        return Tradeoff(self.name, epsilon, self.seed, max(leaks, default=math.nan), utility)

    def _federation(
        self, defense: Defense, *, rounds: int | None = None, schedule: Any = None
    ) -> tuple[Result, Federation]:
        """Run the algorithm under a defence.

        A run that noise drives out of the algorithm's domain ends with its last good round, and the report says so.

        Args:
            defense: the defence that protects the contributions.
            rounds: number of training rounds; that of the audit case by default.
            schedule: (round) -> clients that take part; all by default.

        Raises:
            DivergenceError: there is no good round.
        """
        federation = Federation(
            self.case.build(),
            self.prepared.clients,
            defense,
            seed=self.seed,
            public=self.prepared.public,
            options=RunOptions(schedule=schedule),
        )
        planned, done = rounds or self.case.rounds, list[RoundHistory]()
        try:
            return federation.run(planned, progress=done.append), federation
        except DivergenceError as error:
            if not done:
                raise
            what = f"{self.name}, {defense.name}, seed {self.seed}"
            self.result.skipped.append(f"{what}: only {len(done)} of {planned} rounds: {error}")
            return federation.run(len(done)), federation

    def _note_costs(
        self, defense: str, result: Result, *, output: Tensors | None = None, real: bool = True, **more: Any
    ) -> None:
        """Record what a run cost and achieved; `more` are further fields of `RunFacts`."""
        utility = self.case.utility(result.output if output is None else output, self.prepared.test)
        costs = run_costs(result.history, self.settings.clients) | more
        self.result.facts.append(RunFacts(self.name, defense, self.seed, utility, real=real, **costs))

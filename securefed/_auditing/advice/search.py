"""`securefed.advise(...)`: find the settings under which an algorithm leaks no more than the user accepts.

The search tries every candidate of a fixed list (`candidates`): it runs and attacks each on the user's data (`trials`),
and simulates larger cohorts where noise costs too much utility (`cohorts`). All upper bounds hold together at 95 %, so
that choosing among the candidates does not make the advised one look better than it is.

Candidates do not depend on each other, so that worker processes try them side by side. Each worker builds the search
anew from the question (`_Question`), which holds names and numbers only.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final, Unpack

import numpy as np

from securefed._auditing.advice.advice_values import MEASURED, Advice, RecordSetting, Setting
from securefed._auditing.advice.advised_words import no_model_sentences, sentences
from securefed._auditing.advice.candidates import Candidate, candidates, data_options, paste
from securefed._auditing.advice.cohorts import COHORTS, CohortUtility, keeps, simulate, usable_from
from securefed._auditing.advice.limits import limits
from securefed._auditing.advice.record_privacy import record_settings
from securefed._auditing.advice.trials import Trial, Trials
from securefed._auditing.alerts import alerts
from securefed._auditing.cases import Prepared, case
from securefed._auditing.cases.held_out import HELD_OUT
from securefed._auditing.cases.setup import SetupOptions, TrainingSetup
from securefed._auditing.engine.kept_utility import kept
from securefed._auditing.engine.pace import logged
from securefed._auditing.engine.results import FEDERATION
from securefed._auditing.engine.seed_tasks import Progress, run_tasks
from securefed._auditing.engine.statistics import LEAST_ACCEPTABLE
from securefed._auditing.gate.leakage_limits import require_limit
from securefed._auditing.registered.audited_defenses import distributed_multiplier
from securefed._auditing.registered.smallest_client import smallest_client
from securefed._hyperparameters import check_choice, check_integer, check_number
from securefed.errors import ConfigError, SecureFedError

KEEP: Final = 0.9
"""Share of the utility in the clear that a usable setting keeps; the user may name another."""
COHORT_SEEDS: Final = 10
"""Most runs of each simulated cohort. Single runs of 8 clients under noise scatter by .09 (logistic regression, breast
cancer): the first two said .90 where the mean of 20 is .83. From 32 clients on three or four runs decide."""
_Records = tuple[tuple[RecordSetting, ...], str]
"""Settings that hide single rows, and why there are none."""


@logged
def advise(
    algorithm: str,
    *,
    acceptable: float = 0.1,
    colluding: int = 0,
    keep: float = KEEP,
    seeds: int = 10,
    fineness: int = 1,
    cohorts: Sequence[int] = COHORTS,
    workers: int | None = 1,
    progress: Progress | None = None,
    **setup: Unpack[SetupOptions],
) -> Advice:
    """Search defences and their parameters for those that keep a leak acceptable, and say what each costs.

    The attacker is a server that keeps to the protocol and sees, of each round, the smallest sum that the defence
    opens, less the contributions of the clients that collude with it. What is searched: no defence; secure aggregation
    at the smallest threshold and over all clients, with more rows a client, fewer rounds, fewer bits a number; and
    distributed noise at several epsilons and clips. A setting holds where the upper bound of every attack and the leak
    that would have been noticed are acceptable; under noise epsilon stands beside it. Nothing is promised against
    better attacks. Beside these, noise that hides single rows of a client is priced at several epsilons
    (`Advice.records`); it is never the advised setting, since it hides less than a client.

    Args:
        algorithm: its name in `securefed list`.
        acceptable: mean leakage of a client's data that the user can live with; at least .06, the smallest that shows.
        colluding: clients that tell the server all they know.
        keep: share of the utility in the clear, at the user's number of rounds, that a usable setting keeps.
        seeds: runs of each setting.
        fineness: 2 searches twice as fine.
        cohorts: numbers of clients at which the utility under noise is simulated.
        workers: processes that try settings; `None` for one on each core. They are those of `securefed.audit`.
        progress: called before the first setting and after every one; without it, progress is logged (INFO).
        **setup: the training, as in `audit`: `data`, `clients`, `rows_per_client` (one number), `rounds`, `settings`,
            `standardise`, `owner_column`, `label_column`, `fewest`, `delta`, and how a `.csv` file is written.

    Returns:
        The settings that were tried, the one to use if there is one, and two sentences.

    Raises:
        ConfigError: an argument out of range, or an algorithm that does not run on these data.
        DataError: the data cannot be read.
    """
    require_limit(acceptable, "acceptable")
    check_number("acceptable", acceptable, LEAST_ACCEPTABLE)
    check_number("keep", keep, 0, most=1)
    check_integer("seeds", seeds, 2)
    check_choice("fineness", fineness, (1, 2))
    asked = TrainingSetup(**setup).resolved()
    count = asked.clients
    check_integer("clients", count, 3)
    assert count is not None  # resolved
    if len(asked.sizes) > 1:
        given = list(asked.sizes)
        raise ConfigError(f"rows_per_client must be one number in an advice, such as {given[0]}; got {given}")
    facts = asked.facts()
    check_integer("colluding", colluding, 0, count - 2)
    check_integer("workers", 1 if workers is None else workers, 1)
    question = _Question(algorithm, asked, count, colluding, fineness, seeds, acceptable, keep, tuple(cohorts))
    found, measure = alerts(facts, asked.fewest), _search_of(question).measure
    tried, (records, none) = _try_all(question, workers or os.cpu_count() or 1, progress)
    advised = _best(tried)
    needed = None if advised is not None else _needed(tried)
    view = "the server that follows the protocol, and sees the smallest sum of each round that the defence opens"
    view += f", less the contributions of {colluding} clients that collude with it" if colluding else ""
    said = sentences(tried, advised, needed, acceptable, keep, max(cohorts, default=0))
    if advised is None and needed is None and not any(one.model for one in tried if math.isfinite(one.utility)):
        nothing = no_model_sentences(tried[0], measure)
        said = nothing if any(one.holds for one in tried) else (said[0], nothing[0])
    shared = algorithm, asked.data, acceptable, view, tuple(tried), advised, said, needed
    return Advice(*shared, keep, records, none, found, measure)


def listing(trials: Trials, clients: int, colluding: int = 0, fineness: int = 1) -> tuple[Candidate, ...]:
    """List the candidates for an algorithm on its data: larger numbers of rows only as far as the data suffice."""
    counts = trials.case.prepare(trials.source, clients, 0).public.rows
    same = counts[0] if len(set(counts)) == 1 else None
    most = 0 if trials.own.owner else int((1 - HELD_OUT) * trials.source.data.rows) // clients
    return candidates(clients, same, trials.case.rounds, most, colluding, fineness)


@dataclass(frozen=True)
class _Question:
    """The checked question of a user; the attributes are the arguments of `advise`, and `setup` the training."""

    algorithm: str
    setup: TrainingSetup
    clients: int
    colluding: int
    fineness: int
    seeds: int
    acceptable: float
    keep: float
    cohorts: tuple[int, ...]

    def search(self) -> _Search:
        """Read the data, and list the candidates."""
        own = self.setup.own
        trials = Trials(own.apply(case(self.algorithm)), own, self.setup.source(), self.setup.delta)
        return _Search(trials, self, listing(trials, self.clients, self.colluding, self.fineness))


_RECORDS: Final = -1
"""Number that stands for the settings that hide single rows, where others are numbers of candidates."""
_built = threading.local()
"""In each thread `last`, a pair of the last question and its search, which the tasks of one question share."""


def _search_of(question: _Question) -> _Search:
    """Build the search of a question, once in each process that tries its candidates."""
    last: tuple[_Question, _Search] | None = getattr(_built, "last", None)
    if last is None or last[0] != question:
        _built.last = last = question, question.search()
    return last[1]


def _try(task: tuple[_Question, int]) -> Setting | _Records:
    """Try one candidate of a question, or the settings that hide single rows."""
    question, number = task
    search = _search_of(question)
    return search.records() if number == _RECORDS else search.setting(number)


def _try_all(question: _Question, workers: int, progress: Progress | None) -> tuple[list[Setting], _Records]:
    """Try every candidate, the simplest first, and then the settings that hide single rows, which take longest.

    Returns:
        The candidates' settings in the order of the list, and the others.
    """
    listed = _search_of(question).listed
    kinds = [*(one.defense for one in listed), "records"]  # the last, as `_RECORDS` is the last number
    names = [*(f"{one.defense}, setting {k}" for k, one in enumerate(listed, 1)), "noise that hides single rows"]
    tasks = [(question, number) for number in (*range(len(listed)), _RECORDS)]
    *found, records = run_tasks(
        tasks, _try, progress, workers=workers, named=lambda task: names[task[1]], kind=lambda task: kinds[task[1]]
    )
    _built.last = None
    return found, records


class _Search:
    """Turns candidates into measured settings.

    Args:
        trials: runs and attacks settings of the algorithm.
        question: what the user asked.
        listed: the candidates, whose upper bounds hold together.
    """

    def __init__(self, trials: Trials, question: _Question, listed: tuple[Candidate, ...]) -> None:
        self._trials, self._question, self.listed = trials, question, listed
        self._seeds = range(question.seeds)
        asked = question.setup
        named = asked.data, asked.owner_column, asked.label_column, asked.standardise
        self._options = data_options(*named, asked.form)  # names the data in the commands to paste

    @property
    def measure(self) -> str:
        """Name of the measure of utility, such as accuracy."""
        return self._trials.case.utility_name

    def records(self) -> _Records:
        """Price noise that hides single rows."""
        question = self._question
        return record_settings(self._trials, question.clients, question.keep, self._seeds, self._options)

    def setting(self, number: int) -> Setting:
        """Run one candidate; one that cannot run is a setting that does not hold, with the reason as its note."""
        candidate, question = self.listed[number], self._question
        case, trials = self._trials.case, self._trials
        try:
            prepared = trials.prepare(candidate, 0)
            norm = trials.norm(candidate) if candidate.epsilon is not None else case.clip
            trial = trials.run(candidate, self._seeds, question.acceptable)
            in_the_clear = trials.clear_utilities(candidate, case.rounds, self._seeds)
            beside = kept(trial.utilities, in_the_clear, trials.floors(candidate, self._seeds))
            upload, seconds = trials.cost(candidate) if not trial.failure else (math.nan, math.nan)
        except SecureFedError as error:
            return _unmeasured(case.name, candidate, str(error))
        multiplier = 0.0
        if candidate.epsilon is not None:
            multiplier = distributed_multiplier(
                norm, candidate.epsilon, trials.delta, candidate.rounds, case.build().layout(prepared.public),
                candidate.clients, candidate.threshold, candidate.colluding,
            )  # fmt: skip
        utility = float(np.mean(trial.utilities)) if trial.utilities else math.nan
        clear = float(np.mean(in_the_clear))
        known = not math.isnan(beside.floor)
        enough = beside.keeps(question.keep) if known else keeps(utility, clear, question.keep)
        usable = enough and not trial.failure
        cohort = None if usable or candidate.epsilon is None or not beside.model else self._usable_from(candidate, norm)
        pooled = trial.pooled
        upper, detectable = trial.upper(len(self.listed)), trial.detectable(len(self.listed))
        small, few = trial.of_smallest, smallest_client(prepared.public.rows) is not None
        small_upper = small.upper(len(self.listed)) if few else math.nan
        holds = upper <= question.acceptable and detectable <= question.acceptable
        if few:
            holds &= small_upper <= question.acceptable and small.detectable(len(self.listed)) <= question.acceptable
        return Setting(
            algorithm=case.name,
            defense=candidate.words(norm),
            paste=paste(case.name, candidate, self._options, case.setting, norm, multiplier),
            clients=candidate.clients,
            rows_per_client=int(prepared.public.rows[0]),
            rounds=candidate.rounds,
            leak=trial.mean,
            leak_upper=upper,
            detectable=detectable,
            holds=holds,
            epsilon=candidate.epsilon,
            utility=utility,
            utility_clear=clear,
            bytes_up=upload,
            seconds_per_round=seconds,
            usable=usable,
            usable_from=None if cohort is None else cohort.clients,
            note=_note(trial, candidate),
            delta=None if candidate.epsilon is None else trials.delta,
            utility_deviation=float(np.std(trial.utilities, ddof=1)) if len(trial.utilities) > 1 else math.nan,
            simulated="" if cohort is None else _simulated(cohort, prepared, candidate),
            smallest_rows=prepared.smallest if few else 0,
            smallest_leak=small.mean,
            smallest_runs=max(map(len, small.leaks.values()), default=0),
            smallest_upper=small_upper,
            floor=beside.floor,
            floor_name=beside.name,
            model=beside.model,
            share=beside.share,
            share_low=beside.low,
            pooled_leak=pooled.mean(FEDERATION),
            people_leak=pooled.mean("people"),
            people=pooled.people,
            member_leak=pooled.mean("membership"),
            limits=limits(candidate, holds=holds),
        )

    def _usable_from(self, candidate: Candidate, norm: float) -> CohortUtility | None:
        """Simulate larger cohorts under the candidate's noise, and return the smallest that keeps enough utility."""
        case = replace(self._trials.sized(candidate.rows), rounds=candidate.rounds)
        # the noise is sized for the honest clients of the smallest sum that opens; larger cohorts keep this share
        share = (candidate.threshold - candidate.colluding) / candidate.clients
        found = simulate(
            case,
            self._trials.source,
            of=candidate.clients,
            rows=candidate.rows,
            norm=norm,
            epsilon=candidate.epsilon or math.inf,
            delta=self._trials.delta,
            share=share,
            seeds=range(COHORT_SEEDS),
            keep=self._question.keep,
            cohorts=[clients for clients in self._question.cohorts if clients > candidate.clients],
        )
        return usable_from(found, self._question.keep)


def _simulated(cohort: CohortUtility, prepared: Prepared, candidate: Candidate) -> str:
    """Say on what a cohort was simulated, and what it reached."""
    rows = candidate.rows or max(sum(prepared.public.rows) // len(prepared.public.rows), 1)
    each = "1 row" if rows == 1 else f"{rows} rows"
    return (
        f"{fmean(cohort.noised):.3f} of {fmean(cohort.clear):.3f} in the clear, mean of {len(cohort.noised)} runs of "
        f"{cohort.clients} equal clients of {each} each, drawn with replacement from all clients' rows"
    )


def _unmeasured(algorithm: str, candidate: Candidate, reason: str) -> Setting:
    """Make the setting of a candidate that could not run: its figures are NaN, and it does not hold."""
    nothing = dict.fromkeys(MEASURED, math.nan)
    sizes = {"clients": candidate.clients, "rows_per_client": candidate.rows or 0, "rounds": candidate.rounds}
    words = {
        "algorithm": algorithm,
        "defense": candidate.words(math.nan),
        "paste": "",
        "note": f"did not run: {reason}",
    }
    return Setting(**words, **sizes, **nothing, holds=False, epsilon=candidate.epsilon, usable=False)  # type: ignore[arg-type]


def _note(trial: Trial, candidate: Candidate) -> str:
    """Say what the figures of a setting leave out."""
    if trial.failure:
        return f"did not run: {trial.failure}"
    if not trial.leaks:
        return "no attack applies to this view, so that nothing is known of its leak"
    runs = len(trial.utilities)
    parts = [f"given up after {runs} seeds, which all leaked more"] if runs < trial.asked else []
    if math.isnan(trial.detectable(1)):
        parts.append("the attacks did not explain the messages, so that their silence says nothing")
    if candidate.epsilon is not None:
        parts.append("the clip was chosen on these data; epsilon does not cover that choice")
    return "; ".join(parts)


def _best(tried: Sequence[Setting]) -> Setting | None:
    """Choose among settings that hold and are usable: most utility (to a hundredth), then fewest bytes."""
    found = [setting for setting in tried if setting.holds and setting.usable]
    return min(found, key=lambda one: (-round(one.utility, 2), one.bytes_up), default=None)


def _needed(tried: Sequence[Setting]) -> int | None:
    """Return the smallest simulated cohort at which some setting that holds is usable."""
    sizes = [setting.usable_from for setting in tried if setting.holds and setting.usable_from is not None]
    return min(sizes, default=None)

"""`securefed.audit(...)`: attack registered algorithms under every defence, in every view that fits it, over seeds.

A task is one seed (one repetition) of one algorithm: a run under every defence, each attacked in every view, that is by
every kind of attacker. Tasks run in worker processes; then the results are gathered into one report.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, Unpack

from securefed import _catalogue as catalogue
from securefed._auditing.alerts import FEWEST, alerts, data_sheet, facts_of
from securefed._auditing.cases import case, defaults, every, require_clients
from securefed._auditing.cases.held_out import dealt_rows
from securefed._auditing.cases.own_setup import OwnSetup, owners_of
from securefed._auditing.differential_privacy.membership_audit import Play, membership_rows, play, unmeasured_canaries
from securefed._auditing.engine.audit_report import ACCEPTABLE, Report, make_report
from securefed._auditing.engine.incomplete_results import Missing
from securefed._auditing.engine.pace import logged
from securefed._auditing.engine.seed_result import Gap, SeedResult
from securefed._auditing.engine.seed_tasks import Progress, audit_seed, run_tasks
from securefed._auditing.engine.statistics import interval
from securefed._auditing.registered.audit_command import audit_command
from securefed._auditing.registered.audit_settings import Settings
from securefed._auditing.registered.audited_defenses import ALL, COVERED, DEFENSES, DP, NOISES, choose
from securefed._auditing.registered.client_step_audit import audit_client_step
from securefed._auditing.registered.registered_subject import RegisteredSubject, measured_clips
from securefed._auditing.registered.unfinished_tasks import Unfinished
from securefed._auditing.report.round_curves import curves_of
from securefed._hyperparameters import check_integer
from securefed.datasets._loaders import load_once
from securefed.datasets._tables.table_format import TableFormat, TableOptions
from securefed.errors import ConfigError, DataError

CLIENTS: Final = 8
"""Clients of an audit that names no number."""
Task = tuple[RegisteredSubject, int]
"""An algorithm with its audit case (the settings in which it is audited), and the seed to run."""


@logged
def audit(
    algorithms: Sequence[str] | None = None,
    defenses: Sequence[str] | None = None,
    attacks: Sequence[str] | None = None,
    *,
    data: str = "digits",
    clients: int | None = None,
    rows_per_client: int | Sequence[int] | None = None,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    standardise: bool = False,
    owner_column: str = "",
    label_column: str = "",
    seeds: int = 10,
    epsilon: float = 8.0,
    delta: float = 1e-5,
    epsilons: Sequence[float] = (),
    acceptable: float = ACCEPTABLE,
    every_seed: bool = False,
    survivor_change: int = 1,
    colluders: int = 0,
    fewest: int = FEWEST,
    membership: bool = False,
    active: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    keep: Path | str | None = None,
    **table: Unpack[TableOptions],
) -> Report:
    """Attack every named algorithm under every named defence.

    An algorithm that the data do not suit (no labels, too few columns) is refused if it was named; otherwise the report
    lists it among what did not run. A single algorithm whose messages no registered attack reads, as a user's own often
    is, is attacked as `audit_algorithm` does, which needs nothing but its client step: in unprotected messages and in
    exact sums, which stand for all defences that hide single messages.

    Args:
        algorithms: names; by default those of a quick audit; `["all"]` is every one with an audit case.
        defenses: names of registered ones, or `["all"]`; by default none, secure aggregation, Paillier, and distributed
            noise.
            Where the extra `paillier` is not installed, the default does without Paillier, and the report says so.
        attacks: names; all by default.
        data: name of a data set, or the path of an `.npz`, `.csv` or `.parquet` file (`securefed.datasets.load`).
        clients: number of clients; client 0 is attacked. By default 8, or one for each owner of rows.
        rows_per_client: rows of every client; by default as each algorithm's audit case has it, and of a file an even
            share. Of several numbers each makes one row of the report for every algorithm.
        rounds: number of training rounds; by default that of each algorithm's audit case.
        settings: hyper-parameters, which replace those of every algorithm's audit case; `None` as a value goes back to
            the algorithm's own default.
        standardise: scale every column to mean 0 and standard deviation 1 over all rows.
        owner_column: column that says whose row it is; each client then holds the rows of one owner, drawn anew for
            every seed (at most `rows_per_client` of them).
        label_column: column of the labels in a file; by default `y` or `label`.
        seeds: runs of each cell; a report to rely on needs 10.
        epsilon: the epsilon of the defence with noise, over all rounds together.
        delta: the delta that goes with epsilon.
        epsilons: the epsilons for curves of leakage and utility against epsilon, over three seeds.
        acceptable: leakage to the server up to which a defence counts as a remedy in the report.
        every_seed: run secure aggregation and Paillier themselves in every round of every seed. Otherwise they run the
            first rounds of the first seed, whose sums are checked against a run that only quantises; that run stands
            for all others.
        survivor_change: number of clients that come and go together where survivors change, as
            `secure_aggregation(survivor_change=...)` requires of them.
        colluders: number of clients that tell the server what they sent. A word of safety then holds against the server
            with their help, and says that one more may be too many.
        fewest: rows of a category, class or party, and people behind a mean, from which on they are not few: k of your
            release rule.
        membership: also ask which rows the target has, under every kind of noise (`membership_audit`).
        active: also attack with a server that chooses its broadcasts (view `active server`).
        workers: processes; all cores by default; `workers=1` starts none. Where an algorithm of the caller's is a class
            of the main program, a script calls this under `if __name__ == "__main__":`; elsewhere everything then runs
            in this process.
        progress: called before the first task and after every one; without it, progress is logged (INFO).
        keep: folder for the results so far; the same audit, started again after an interruption, continues from them.
        **table: `encoding`, `separator` and `decimal` of a `.csv` file, where it cannot be told how it is written, and
            the `classes` of a file's labels in the order of their numbers.

    Returns:
        The report; `save` writes `audit.json` and `audit.html`.

    Raises:
        UnknownNameError: an algorithm, defence or attack is unknown; nothing was run.
        ConfigError: an argument is out of range; nothing was run.
        MissingExtraError: a named defence needs a package that is not installed; nothing was run.
        DataError: the data cannot be read or do not suit a named algorithm; nothing was run.
    """
    start = time.perf_counter()
    sizes = (
        (rows_per_client,) if rows_per_client is None or isinstance(rows_per_client, int) else tuple(rows_per_client)
    )
    form = TableFormat(**table)
    source = load_once(data, owner_column, label_column, form)
    count = clients
    if count is None:
        count = owners_of(source, owner_column) if owner_column else CLIENTS
    if sizes == (None,) and not owner_column and count > 0:
        sizes = (dealt_rows(data, source, count),)
    held = [size for size in sizes if size is not None]
    parties = [min(held)] * count if held and not owner_column else []
    facts = facts_of(source, owner=owner_column, label=label_column, parties=parties, standardised=standardise)
    own = OwnSetup(
        sizes[0] if len(sizes) == 1 else None,
        rounds,
        tuple((settings or {}).items()),
        standardise,
        owner_column,
        fewest,
    )
    under, unavailable = choose(defenses)
    with_attacks = _attacks(attacks)
    noised = any(name in NOISES for name in under)
    _check(count, seeds, survivor_change, workers, membership, curves_without_noise=bool(epsilons) and not noised)
    check_integer("colluders", colluders, 0, count - 2)
    _check_privacy((epsilon, *epsilons), delta)
    shared = {"data": data, "clients": count, "seeds": seeds, "epsilon": epsilon, "delta": delta}
    curve = tuple(sorted(set(epsilons)))
    common = Settings(
        data, count, under, with_attacks, epsilon, delta, noise={}, epsilons=curve, every_seed=every_seed,
        survivor_change=survivor_change, colluders=colluders, active=active, own=own, label=label_column,
        form=form,
    )  # fmt: skip
    subjects, unfit = _fitting(
        _subjects(algorithms, common, sizes), named=bool(algorithms) and list(algorithms or ()) != [ALL]
    )
    # noise and clips follow from the subjects' numbers of rounds and from runs of them, so that they are known only now
    noise = _noise(subjects, (*under, DP) if membership else under, {epsilon, *curve}, delta)
    common = replace(common, noise=noise, clips=measured_clips(subjects) if noised or membership else {})
    subjects = [replace(subject, settings=common) for subject in subjects]
    tasks = [(subject, seed) for seed in range(seeds) for subject in subjects]
    processes = workers or os.cpu_count() or 1
    unfinished = Unfinished(Path(keep), common) if keep is not None else None
    results: list[SeedResult] = run_tasks(tasks, audit_seed, progress, workers=processes, kept=unfinished)
    rows, unplayed = _membership(tasks, processes, progress) if membership else ([], [])
    missing = [
        Missing(subject.name, defense, "", "", 0, seeds, reason)
        for subject in subjects
        for defense, reason in unavailable.items()
    ]
    skipped = [f"{name}: {reason}" for name, reason in unfit.items()]
    skipped += [reason for result in results for reason in result.skipped]
    skipped += [f"{gap.algorithm}, {gap.view}: {gap.reason}" for gap in unplayed]
    skipped += unmeasured_canaries() if membership else ()
    report = make_report(
        subjects,
        results,
        [name for name in DEFENSES if name in under],
        shared | ({"colluders": colluders} if colluders else {}) | {"acceptable": acceptable},
        covered=COVERED,
        unfit=unfit,
        command=audit_command(common, algorithms, seeds, clients, sizes, acceptable, membership=membership),
        curves=tuple(curves_of(results, {subject.name: subject.case.secret for subject in subjects})),
        tradeoffs=tuple(_tradeoffs(results)),
        membership=tuple(rows),
        missing=(*missing, *_missing_membership(unplayed, seeds)),
        skipped=tuple(dict.fromkeys(skipped)),
        alerts=alerts(facts, fewest),
        data=data_sheet(facts, data),
        seconds=time.perf_counter() - start,
    )
    ran = all(result.facts for result in results)
    unread = ran and not report.cells and len(subjects) == 1 and not attacks
    return audit_client_step(subjects[0], report, progress, active=active) if unread else report


def _check(
    clients: int, seeds: int, survivor_change: int, workers: int | None, membership: bool, *, curves_without_noise: bool
) -> None:
    """Refuse arguments that no audit can run with.

    Args:
        clients: number of clients.
        seeds: number of runs.
        survivor_change: number of clients that come and go together where survivors change.
        workers: number of processes; `None` for all cores.
        membership: whether the target's rows are also told from others.
        curves_without_noise: whether the caller asks for curves over epsilon, and for no defence with noise.
    """
    require_clients(clients)
    most = max((clients - 1) // 2, 1)
    if not 1 <= survivor_change <= most:
        raise ConfigError(
            f"survivor_change must lie in 1..{most} for {clients} clients, not {survivor_change}: secure aggregation "
            "opens sums of more than half of them"
        )
    if seeds < 1:
        raise ConfigError(f"an audit needs at least one seed, not {seeds}")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, not {workers}; leave it out for all cores")
    if membership and seeds < 2:
        raise ConfigError("membership rates are over seeds: they need at least two seeds")
    if curves_without_noise:
        raise ConfigError(
            f"curves over epsilon belong to a defence with noise; name one of {', '.join(NOISES)} among the defences, "
            "or leave them"
        )


def _check_privacy(epsilons: Iterable[float], delta: float) -> None:
    """Refuse an epsilon or a delta that no noise meets, before any run."""
    for epsilon in epsilons:
        if not 0 < epsilon < math.inf:
            raise ConfigError(f"epsilon must be positive and finite, not {epsilon}; 1 to 10 are usual")
    if not 0 < delta < 1:
        raise ConfigError(f"delta must lie between 0 and 1, not {delta}; 1e-5 is usual")


def _tradeoffs(results: Iterable[SeedResult]) -> Iterator[Mapping[str, Any]]:
    """Yield for each algorithm its epsilons, and at each the interval of leakage and the mean utility over seeds."""
    points = [point for result in results for point in result.tradeoffs if math.isfinite(point.leakage)]
    for name in dict.fromkeys(point.algorithm for point in points):
        epsilons = sorted({point.epsilon for point in points if point.algorithm == name})
        groups = [[p for p in points if (p.algorithm, p.epsilon) == (name, epsilon)] for epsilon in epsilons]
        yield {
            "algorithm": name,
            "epsilons": epsilons,
            "leakage": [asdict(interval([point.leakage for point in group])) for group in groups],
            "utility": [sum(point.utility for point in group) / len(group) for group in groups],
        }


def _membership(
    tasks: Sequence[Task], workers: int, progress: Progress | None
) -> tuple[list[Mapping[str, Any]], list[Gap]]:
    """Run the membership part, once for each algorithm; return its rows, and what was left out of it."""
    # of an algorithm that the report lists at several numbers of rows, the first of its subjects
    first = {subject.algorithm: subject.name for subject, _ in reversed(tasks)}
    tasks = [task for task in tasks if task[0].name == first[task[0].algorithm]]
    results = run_tasks(tasks, _play, progress, workers=workers, part="membership, ")
    settings = tasks[0][0].settings
    seeds = len({seed for _, seed in tasks})
    plays = [item for found, _ in results for item in found]
    # the worst case (canaries) is measured under the smallest noise of any number of rounds and epsilon of the audit
    rows = membership_rows(plays, settings.delta, min(settings.noise.values()), seeds)
    return [row.to_json() for row in rows], [gap for _, gaps in results for gap in gaps]


def _play(task: Task) -> tuple[list[Play], list[Gap]]:
    subject, seed = task
    return play(subject.algorithm, seed, subject.settings)


def _missing_membership(gaps: Iterable[Gap], seeds: int) -> Iterator[Missing]:
    """List what the membership part left out of `seeds` runs: an algorithm, under which noise, how often, and why."""
    groups: dict[tuple[str, str], list[Gap]] = {}
    for gap in gaps:
        groups.setdefault((gap.algorithm, gap.view), []).append(gap)
    for (algorithm, view), group in groups.items():
        yield Missing(algorithm, "", view, "", ran=seeds - len(group), asked=seeds, reason=group[0].reason)


def _noise(
    subjects: Iterable[RegisteredSubject], defenses: Iterable[str], epsilons: Iterable[float], delta: float
) -> Mapping[tuple[float, int], float]:
    """Compute the multiplier of central noise for each epsilon and number of rounds that some case needs."""
    if DP not in defenses:
        return {}
    from securefed.defenses._differential_privacy import calibrate  # noqa: PLC0415 - the accountant imports slowly

    rounds = {subject.case.rounds for subject in subjects}
    return {(epsilon, count): calibrate(epsilon, delta, count) for epsilon in epsilons for count in rounds}


def _subjects(names: Sequence[str] | None, settings: Settings, sizes: Sequence[int | None]) -> list[RegisteredSubject]:
    """List what an audit runs: every algorithm, once for each number of rows a client."""
    if names:
        found = every() if list(names) == [ALL] else tuple(dict.fromkeys(case(name).name for name in names))
    else:
        found = defaults()
    several = sizes if len(sizes) > 1 else (None,)
    return [RegisteredSubject(name, settings, rows) for name in found for rows in several]


def _fitting(subjects: Sequence[RegisteredSubject], *, named: bool) -> tuple[list[RegisteredSubject], dict[str, str]]:
    """Select the algorithms that can run on these data, and say why the others cannot."""
    fit: list[RegisteredSubject] = []
    unfit: dict[str, str] = {}
    for subject in subjects:
        try:
            subject.case.build().layout(subject.prepare(0).public)
            fit.append(subject)
        except (ConfigError, DataError) as refusal:
            unfit[subject.name] = str(refusal)
            if named or len(unfit) == len(subjects):
                kind = ConfigError if isinstance(refusal, ConfigError) else DataError
                raise kind(f"{subject.name} does not run on these data: {refusal}") from refusal
    return fit, unfit


def _attacks(names: Sequence[str] | None) -> tuple[str, ...]:
    """Resolve names of attacks, also `module:Class`; all registered ones if none is given."""
    return tuple(dict.fromkeys(catalogue.attacks[name].name for name in names or catalogue.attacks.names))

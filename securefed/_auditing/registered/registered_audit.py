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
from typing import Any, Unpack

from securefed import _catalogue as catalogue
from securefed._auditing.alerts import alerts, data_sheet
from securefed._auditing.cases import case, defaults, every
from securefed._auditing.cases.audit_settings import AuditOptions, AuditSettings, Settings
from securefed._auditing.differential_privacy.membership_audit import Play, membership_rows, play, unmeasured_canaries
from securefed._auditing.engine.audit_report import Report, make_report
from securefed._auditing.engine.defense_names import DP
from securefed._auditing.engine.incomplete_results import Missing
from securefed._auditing.engine.pace import logged
from securefed._auditing.engine.seed_result import Gap, SeedResult
from securefed._auditing.engine.seed_tasks import Progress, audit_seed, name_of, run_tasks
from securefed._auditing.engine.statistics import interval
from securefed._auditing.engine.unfinished_tasks import Unfinished
from securefed._auditing.registered.audit_command import audit_command
from securefed._auditing.registered.audited_defenses import ALL, COVERED, DEFENSES, NOISES, choose
from securefed._auditing.registered.client_step_audit import audit_client_step
from securefed._auditing.registered.registered_subject import RegisteredSubject, measured_clips
from securefed._auditing.report.round_curves import curves_of
from securefed.errors import ConfigError, DataError

Task = tuple[RegisteredSubject, int]
"""An algorithm with its audit case (the settings in which it is audited), and the seed to run."""


@logged
def audit(
    algorithms: Sequence[str] | None = None,
    defenses: Sequence[str] | None = None,
    attacks: Sequence[str] | None = None,
    *,
    using: AuditSettings | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    keep: Path | str | None = None,
    **options: Unpack[AuditOptions],
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
        using: data, parties, hyper-parameters, noise and seeds; by default those of `AuditSettings`.
        workers: processes; all cores by default; `workers=1` starts none. Where an algorithm of the caller's is a class
            of the main program, a script calls this under `if __name__ == "__main__":`; elsewhere everything then runs
            in this process.
        progress: called before the first task and after every one; without it, progress is logged (INFO).
        keep: folder for the results so far; the same audit, started again after an interruption, continues from them.
        **options: fields of `AuditSettings` by name, such as `data`, `clients`, `owner_column` or `seeds`; they replace
            those of `using`.

    Returns:
        The report; `save` writes `audit.json` and `audit.html`.

    Raises:
        UnknownNameError: an algorithm, defence or attack is unknown; nothing was run.
        ConfigError: an argument is out of range; nothing was run.
        MissingExtraError: a named defence needs a package that is not installed; nothing was run.
        DataError: the data cannot be read or do not suit a named algorithm; nothing was run.
    """
    start = time.perf_counter()
    asked = replace(using or AuditSettings(), **options)
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, not {workers}; leave it out for all cores")
    under, unavailable = choose(defenses)
    given = vars(asked.resolved()) | {"epsilons": tuple(sorted(set(asked.epsilons)))}
    common = Settings(**given, defenses=under, attacks=_attacks(attacks))
    noised = any(name in NOISES for name in under)
    if asked.epsilons and not noised:
        raise ConfigError(
            f"curves over epsilon belong to a defence with noise; name one of {', '.join(NOISES)} among the defences, "
            "or leave them"
        )
    subjects, unfit = _fitting(
        _subjects(algorithms, common), named=bool(algorithms) and list(algorithms or ()) != [ALL]
    )
    # noise and clips follow from the subjects' numbers of rounds and from runs of them, so that they are known only now
    noise = _noise(subjects, common)
    common = replace(common, noise=noise, clips=measured_clips(subjects) if noised or common.membership else {})
    subjects = [replace(subject, settings=common) for subject in subjects]
    tasks = [(subject, seed) for seed in range(common.seeds) for subject in subjects]
    processes = workers or os.cpu_count() or 1
    unfinished = Unfinished(Path(keep), common.digest()) if keep is not None else None
    # seed 0 runs the defences themselves, and takes longest: after seed 1, which shows early what the rest takes
    results: list[SeedResult] = run_tasks(
        tasks,
        audit_seed,
        progress,
        workers=processes,
        kept=unfinished,
        order=lambda task: -1 if task[1] == 1 else task[1],
    )
    rows, unplayed = _membership(tasks, processes, progress) if common.membership else ([], [])
    missing = [
        Missing(subject.name, defense, "", "", 0, common.seeds, reason)
        for subject in subjects
        for defense, reason in unavailable.items()
    ]
    skipped = [f"{name}: {reason}" for name, reason in unfit.items()]
    skipped += [reason for result in results for reason in result.skipped]
    skipped += [f"{gap.algorithm}, {gap.view}: {gap.reason}" for gap in unplayed]
    skipped += unmeasured_canaries() if common.membership else ()
    shared = {name: getattr(common, name) for name in ("data", "clients", "seeds", "epsilon", "delta")}
    facts = common.facts()
    report = make_report(
        subjects,
        results,
        [name for name in DEFENSES if name in under],
        shared | ({"colluders": common.colluders} if common.colluders else {}) | {"acceptable": common.acceptable},
        covered=COVERED,
        unfit=unfit,
        command=audit_command(common, algorithms, named_clients=asked.clients is not None),
        curves=tuple(curves_of(results, {subject.name: subject.case.secret for subject in subjects})),
        tradeoffs=tuple(_tradeoffs(results)),
        membership=tuple(rows),
        missing=(*missing, *_missing_membership(unplayed, common.seeds)),
        skipped=tuple(dict.fromkeys(skipped)),
        alerts=alerts(facts, common.fewest),
        data=data_sheet(facts, common.data),
        seconds=time.perf_counter() - start,
    )
    ran = all(result.facts for result in results)
    unread = ran and not report.cells and len(subjects) == 1 and not attacks
    return audit_client_step(subjects[0], report, progress, active=common.active) if unread else report


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
    results = run_tasks(tasks, _play, progress, workers=workers, named=lambda task: f"membership, {name_of(task)}")
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


def _noise(subjects: Iterable[RegisteredSubject], settings: Settings) -> Mapping[tuple[float, int], float]:
    """Compute the multiplier of central noise for each epsilon and number of rounds that some case needs."""
    if DP not in settings.defenses and not settings.membership:
        return {}
    from securefed.defenses._differential_privacy import calibrate  # noqa: PLC0415 - the accountant imports slowly

    rounds, epsilons = {subject.case.rounds for subject in subjects}, {settings.epsilon, *settings.epsilons}
    return {(epsilon, count): calibrate(epsilon, settings.delta, count) for epsilon in epsilons for count in rounds}


def _subjects(names: Sequence[str] | None, settings: Settings) -> list[RegisteredSubject]:
    """List what an audit runs: every algorithm, once for each number of rows a client."""
    if names:
        found = every() if list(names) == [ALL] else tuple(dict.fromkeys(case(name).name for name in names))
    else:
        found = defaults()
    several = settings.sizes if len(settings.sizes) > 1 else (None,)
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

"""`securefed.audit(...)`: every algorithm, every defence, every view that makes sense, every attack, over seeds."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from securefed import _catalogue as catalogue
from securefed._auditing.audit_cells import AUDIT, Missing, Report, gather
from securefed._auditing.cases import case, defaults, every, require_clients
from securefed._auditing.finding import ACCEPTABLE
from securefed._auditing.members import MembershipRow, Play, client_canaries, play, record_canaries
from securefed._auditing.members import gather as gather_plays
from securefed._auditing.missing import missing
from securefed._auditing.processes import run_all
from securefed._auditing.runs import COVERED, DEFENSES, DP, run_task
from securefed._auditing.statistics import interval
from securefed._auditing.task_results import Settings, Task, TaskResult
from securefed._auditing.unfinished import Unfinished
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.datasets._loaders import load
from securefed.errors import ConfigError, DataError, UnknownNameError

ALL = "all"
"""In place of algorithms' names: every one that has a case."""
Progress = Callable[[int, int, str], None]
"""Called with (tasks done, tasks in all, what was just done)."""


@dataclass(frozen=True)
class AuditResult:
    """A report and what its pictures are made of."""

    report: Report
    outcomes: tuple[TaskResult, ...]


def audit(
    algorithms: Sequence[str] | None = None,
    defenses: Sequence[str] | None = None,
    attacks: Sequence[str] | None = None,
    *,
    data: str = "digits",
    clients: int = 8,
    seeds: int = 10,
    epsilon: float = 8.0,
    delta: float = 1e-5,
    epsilons: Sequence[float] = (),
    acceptable: float = ACCEPTABLE,
    every_seed: bool = False,
    survivor_change: int = 1,
    membership: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    keep: Path | None = None,
) -> AuditResult:
    """Attack every named algorithm under every named defence.

    Args:
        algorithms: names; by default those of a quick audit (`cases.defaults`); `["all"]` is every one with a case.
        defenses, attacks: names; all by default.
        data: `digits`, `breast_cancer`, `mnist`, or a path to an `.npz` with `x` and `y`.
        clients: N; the target is client 0.      seeds: runs of each cell; >= 10 for a report to rely on.
        epsilon, delta: of the DP defence, over all rounds together.
        epsilons: for the report's curves of leakage and utility against epsilon (three seeds each).
        acceptable: leakage to the server up to which a defence counts as a remedy in the report.
        every_seed: run secure aggregation and Paillier themselves in every round of every seed, not only in the first
            rounds of the first (elsewhere the run with the same sums of integers stands for them; the first seed checks
            that they are the same).
        survivor_change: how many clients come and go together where survivors change, as
            `secure_aggregation(survivor_change=...)` has clients insist.
        membership: also ask which rows of the target were there, under every noise of the message layer (`members`).
        workers: processes; all cores by default. In a script, call this under `if __name__ == "__main__":`, as
            everything that starts processes; `workers=1` starts none.
        keep: folder in which an audit that is cut off leaves what it found; the same audit goes on from there.

    An algorithm that the data do not suit (no labels, too few columns) is refused where it was named, and left out with
    the reason where it was not.

    Returns:
        `.report` holds the cells and saves `audit.json`; `securefed._auditing.report.save` writes the page.

    Raises:
        UnknownNameError, ConfigError, DataError: before anything runs.
    """
    start = time.perf_counter()
    chosen = _algorithms(algorithms)
    under = _names("defense", defenses, DEFENSES, None)
    with_attacks = _names("attack", attacks, catalogue.attacks.names, catalogue.attacks.__getitem__)
    require_clients(clients)
    if not 1 <= survivor_change <= max((clients - 1) // 2, 1):
        raise ConfigError(
            f"survivor_change must lie in 1..{(clients - 1) // 2} for {clients} clients, not {survivor_change}: secure "
            "aggregation opens sums of more than half of them"
        )
    if seeds < 1:
        raise ConfigError(f"an audit needs at least one seed, not {seeds}")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, not {workers}; leave it out for all cores")
    if membership and seeds < 2:
        raise ConfigError("membership rates are over seeds: they need at least two seeds")
    if epsilons and DP not in under:
        raise ConfigError(
            f"curves over epsilon belong to the defence {DP!r}; name it among the defences, or leave them"
        )
    named = bool(algorithms) and list(algorithms or ()) != [ALL]
    chosen, unfit = _fitting(chosen, load(data), clients, named)  # refuses before anything runs
    shared = {"data": data, "clients": clients, "seeds": seeds, "epsilon": epsilon, "delta": delta}
    shared |= {"acceptable": acceptable}
    curve = tuple(sorted(set(epsilons)))
    noise = _noise(chosen, (*under, DP) if membership else under, {epsilon, *curve}, delta)
    settings = Settings(data, clients, under, with_attacks, epsilon, delta, noise, curve, every_seed, survivor_change)
    tasks = [Task(name, seed, seed == 0, settings) for seed in range(seeds) for name in chosen]
    unfinished = Unfinished(keep, settings) if keep is not None else None
    processes = workers or os.cpu_count() or 1
    outcomes = _run(tasks, processes, progress, unfinished)
    rows, unplayed = _members(tasks, processes, progress) if membership else ((), ())
    scores = [score for outcome in outcomes for score in outcome.scores]
    facts = [fact for outcome in outcomes for fact in outcome.facts]
    order = {name: index for index, name in enumerate(chosen)}
    gaps = [gap for outcome in outcomes for gap in outcome.gaps]
    left = [f"{name}: {reason}" for name, reason in unfit.items()]
    scores.sort(key=lambda score: (order[score.algorithm], DEFENSES.index(score.defense)))
    report = Report(
        version=version("securefed"),
        command=_command(settings, chosen, seeds) + " --membership" * membership,
        environment=environment(),
        settings={name: case(name).describe() for name in chosen} | {AUDIT: shared},
        cells=tuple(gather(scores, facts, COVERED)),
        facts=tuple(facts),
        tradeoffs=tuple(_tradeoffs(outcomes)),
        membership=tuple(row.to_json() for row in rows),
        missing=(*missing(chosen, under, seeds, scores, gaps, unfit), *_unplayed(unplayed, seeds)),
        skipped=tuple(dict.fromkeys([*left, *(said for outcome in outcomes for said in outcome.skipped), *unplayed])),
        seconds=time.perf_counter() - start,
    )
    return AuditResult(report, tuple(outcomes))


def _tradeoffs(outcomes: Iterable[TaskResult]) -> Iterator[Mapping[str, Any]]:
    """For each algorithm: epsilons, and the interval of leakage and the mean utility at each."""
    points = [point for outcome in outcomes for point in outcome.tradeoffs if math.isfinite(point.leakage)]
    for name in dict.fromkeys(point.algorithm for point in points):
        own = [point for point in points if point.algorithm == name]
        epsilons = sorted({point.epsilon for point in own})
        groups = [[point for point in own if point.epsilon == epsilon] for epsilon in epsilons]
        yield {
            "algorithm": name,
            "epsilons": epsilons,
            "leakage": [asdict(interval([point.leakage for point in group])) for group in groups],
            "utility": [sum(point.utility for point in group) / len(group) for group in groups],
        }


def _run(
    tasks: Sequence[Task], workers: int, progress: Progress | None, unfinished: Unfinished | None
) -> list[TaskResult]:
    """All tasks, in their own order whatever order they end in; those that `unfinished` knows are not run again."""
    known = [] if unfinished is None else [(task, unfinished.find(task)) for task in tasks]
    done = {_key(task): outcome for task, outcome in known if outcome is not None}

    def finished(task: Task, outcome: TaskResult) -> None:
        done[_key(task)] = outcome
        if unfinished is not None:
            unfinished.keep(task, outcome)
        if progress is not None:
            progress(len(done), len(tasks), f"{task.algorithm}, seed {task.seed}")

    run_all([task for task in tasks if _key(task) not in done], workers, run_task, finished)
    if unfinished is not None:
        unfinished.clear()
    return [done[_key(task)] for task in tasks]


def _members(
    tasks: Sequence[Task], workers: int, progress: Progress | None
) -> tuple[Sequence[MembershipRow], Sequence[str]]:
    """The membership part, and what was left out of it."""
    done: dict[tuple[str, int], tuple[list[Play], list[str]]] = {}

    def finished(task: Task, found: tuple[list[Play], list[str]]) -> None:
        done[_key(task)] = found
        if progress is not None:
            progress(len(done), len(tasks), f"membership, {task.algorithm}, seed {task.seed}")

    run_all(tasks, workers, play, finished)
    found = [done[_key(task)] for task in tasks]
    settings = tasks[0].settings
    noise = min(settings.noise.values())
    about = settings.delta, noise, len({task.seed for task in tasks})
    rows = [*gather_plays(item for plays, _ in found for item in plays)]
    rows += [*client_canaries(*about), *record_canaries(*about)]
    return rows, [reason for _, reasons in found for reason in reasons]


def _unplayed(reasons: Sequence[str], seeds: int) -> Iterator[Missing]:
    """What the membership part left out: an algorithm, under which noise, for how many seeds, and why."""
    found: dict[str, list[str]] = {}
    for said in reasons:
        where, _, reason = said.partition(": ")
        found.setdefault(where, []).append(reason)
    for where, all_ in found.items():
        algorithm, _, what = where.partition(", ")
        yield Missing(algorithm, "", what, "", seeds - len(all_), seeds, all_[0])


def _key(task: Task) -> tuple[str, int]:
    return task.algorithm, task.seed


def _noise(
    algorithms: Iterable[str], defenses: Iterable[str], epsilons: Iterable[float], delta: float
) -> Mapping[tuple[float, int], float]:
    """The noise multiplier for each epsilon and number of rounds that some case needs."""
    if DP not in defenses:
        return {}
    from securefed.defenses._differential_privacy import calibrate  # noqa: PLC0415 - the accountant imports slowly

    rounds = {case(name).rounds for name in algorithms}
    return {(epsilon, count): calibrate(epsilon, delta, count) for epsilon in epsilons for count in rounds}


def _algorithms(wanted: Sequence[str] | None) -> tuple[str, ...]:
    if not wanted:
        return defaults()
    if list(wanted) == [ALL]:
        return every()
    return tuple(dict.fromkeys(case(name).name for name in wanted))


def _fitting(
    algorithms: Sequence[str], source: LoadedDataset, clients: int, named: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The algorithms that can run on these data, and why the others cannot."""
    fit: list[str] = []
    unfit: dict[str, str] = {}
    for name in algorithms:
        try:
            case(name).build().layout(case(name).prepare(source, clients, 0).public)
            fit.append(name)
        except (ConfigError, DataError) as refusal:
            unfit[name] = str(refusal)
            if named or len(unfit) == len(algorithms):
                kind = ConfigError if isinstance(refusal, ConfigError) else DataError
                raise kind(f"{name} does not run on these data: {refusal}") from refusal
    return tuple(fit), unfit


def _names(kind: str, wanted: Sequence[str] | None, known: Sequence[str], find: Any) -> tuple[str, ...]:
    if not wanted:
        return tuple(known)
    out = []
    for name in wanted:
        full = find(name).name if find is not None else name
        if full not in known:
            raise UnknownNameError(kind, name, known)
        out.append(full)
    return tuple(dict.fromkeys(out))


def _command(settings: Settings, algorithms: Sequence[str], seeds: int) -> str:
    """The shell command that gives the same audit."""
    lists = (
        ("algorithms", tuple(algorithms), defaults()),
        ("defenses", settings.defenses, DEFENSES),
        ("attacks", settings.attacks, catalogue.attacks.names),
    )
    parts = [f"--{name} {','.join(chosen)}" for name, chosen, every in lists if chosen != every]
    parts += [f"--data {settings.data}", f"--clients {settings.clients}", f"--seeds {seeds}"]
    parts += [f"--epsilon {settings.epsilon:g}", f"--delta {settings.delta:g}"]
    if settings.epsilons:
        parts.append(f"--epsilons {','.join(f'{epsilon:g}' for epsilon in settings.epsilons)}")
    if settings.survivor_change > 1:
        parts.append(f"--survivor-change {settings.survivor_change}")
    return " ".join(["securefed audit", *parts, *(["--every-seed"] if settings.every_seed else [])])


def environment() -> dict[str, str]:
    """Versions that results depend on."""
    packages = ("numpy", "scipy", "torch", "cryptography", "phe", "gmpy2", "dp-accounting")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": str(os.cpu_count()),
        **{name: version(name) for name in packages},
    }

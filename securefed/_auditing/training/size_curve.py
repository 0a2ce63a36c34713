"""Measure the share of rows recovered over rows a client and repetitions of the local step.

The more rows a client trains on, and the longer it trains, the less its update tells of a single row. The curve shows
the caller from which sizes on rows are out of reach. `TrainingSubject` measures it before the audited runs, and the
report draws it. For each size, clients are made that hold the first rows of real ones; each trains once, and an attack
tries to recover its rows from the change of the model that it would send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from securefed._auditing.sentences.table import listed
from securefed._auditing.training.attack_inputs import AttackInputs
from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._auditing.training.lookup_tables import NONE_HELD, HeldCategories
from securefed._auditing.training.observed_runs import ObservedChange
from securefed._auditing.training.row_attack import recover_rows
from securefed._auditing.training.step_probe import probe_step
from securefed._auditing.training.text_attacks import recover_sequences
from securefed._auditing.training.token_inputs import TokenInputs
from securefed._auditing.training.training_secrets import TrainingSecrets
from securefed.attacks import views
from securefed.attacks._generic import TimeBudget
from securefed.errors import SecureFedError

SIZES: Final = (1, 2, 4, 8, 16, 32)
REPETITIONS: Final = (1, 2, 5)
"""How often the step runs in a client's turn: 1 is the caller's own, 5 is five times its epochs."""
RUNS: Final = 2
"""Clients that each size is tried on; one more costs the largest part of the audit's time."""
_SHARE: Final = 0.25
"""Share of the time that is left which one size may take. So what is measured first has most time: the step run once,
and the small sizes."""
_STEP_SEED: Final = 77
"""Seed of the observed step of client 0; client 1 has the next. `probe_step` runs with smaller seeds."""


@dataclass
class SizeCurve:
    """The shares at each size, and why sizes are missing.

    Attributes:
        shares: by (repetitions, rows a client), the share of rows recovered from each client tried.
        reasons: by (repetitions, rows a client), why the attack did not run on all clients.
    """

    shares: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    reasons: dict[tuple[int, int], str] = field(default_factory=dict)

    def chart(self, algorithm: str) -> Mapping[str, Any]:
        """Return the chart as `Report.curves` holds it: shares by rows a client, a line for each repetition."""
        series = {}
        for times in dict.fromkeys(times for times, _ in self.shares):
            known = sorted((rows, shares) for (t, rows), shares in self.shares.items() if t == times)
            series[f"step run {times}x" if times > 1 else "the step"] = {
                "rounds": [rows for rows, _ in known],  # `charts` calls every horizontal axis so
                "middle": [sum(shares) / len(shares) for _, shares in known],
                "low": [min(shares) for _, shares in known],
                "high": [max(shares) for _, shares in known],
            }
        return {
            "algorithm": algorithm,
            "title": "Share of rows recovered by rows a client",
            "note": "mean and range over clients, plain server view; the client's first rows",
            "scale": "share",
            "series": series,
        }

    def gaps(self) -> list[str]:
        """Say at which sizes the attack did not run on all clients, a line for each reason."""
        sizes: dict[str, dict[int, list[int]]] = {}  # by reason and repetitions, the rows a client
        for (times, rows), reason in sorted(self.reasons.items()):
            sizes.setdefault(reason, {}).setdefault(times, []).append(rows)
        return [
            f"rows recovered, not measured at {'; '.join(_called(times, rows) for times, rows in of.items())}: {why}"
            for why, of in sizes.items()
        ]


def measure_sizes(
    training: TorchTraining,
    clients: Sequence[TrainedRows],
    prior: Callable[[int], TrainedRows],
    classes: int,
    text: TokenInputs | None,
    seconds: float,
    held: HeldCategories = NONE_HELD,
) -> SizeCurve:
    """Attack clients that hold the first 1, 2, 4, ... rows of real ones, the step run once and several times.

    Args:
        training: model, loss and step.
        clients: their rows.
        prior: the rows that the attacker of one client knows, by its number.
        classes: number of classes.
        text: the tokens in the rows, whose sequences span checks recover; `None` where rows are no tokens.
        seconds: time for all of it. Steps that run once come first, and smaller sizes before larger ones.
            `SizeCurve.reasons` names the sizes for which no time was left.
        held: the lookup tables of the model.
    """
    curve, budget, most = SizeCurve(), TimeBudget.of(seconds), min(len(rows) for rows in clients)
    runs = min(RUNS, len(clients))
    cells = [(times, size) for times in REPETITIONS for size in SIZES if size <= most]
    for times, size in cells:
        if budget.remaining < 0:
            curve.reasons[times, size] = f"the {seconds:.0f} s for this curve were spent"
            continue
        limit = _SHARE * budget.remaining / runs  # seconds for each client
        repeated = training.repeated(times)
        for target in range(runs):
            small = [rows.part(slice(0, size)) for rows in clients]
            try:
                state = repeated.state
                known = prior(target)
                # what kind of step it is (one gradient? random?), from rows that the attacker knows
                facts = probe_step(repeated, state, known.part(slice(0, size)), target)
                change = repeated.change(state, small[target], _STEP_SEED + target)
                # the client's number serves as the number of the run, too
                observed = ObservedChange(views.SERVER_VIEW, target, target, (target,), (1.0,), state, change, None)
                inputs = AttackInputs(
                    repeated, observed, (size,), known, classes, text, facts, TimeBudget.of(limit), tables=held.tables
                )
                found = recover_sequences(inputs).tokens if text else recover_rows(inputs, limit).rows
            except SecureFedError as refusal:
                curve.reasons[times, size] = str(refusal)
                break
            secrets = TrainingSecrets(small, target, target, (), text, held)  # batch statistics, (), are not scored
            curve.shares.setdefault((times, size), []).append(secrets.recovered_share(found))
    return curve


def _called(times: int, rows: Sequence[int]) -> str:
    """Name sizes: "1, 2 and 4 rows a client", and how often the step runs in a row where it is not once."""
    named = f"{listed(map(str, rows))} row{'' if rows == [1] else 's'} a client"
    return named if times == 1 else f"{named}, the step run {times} times in a row"

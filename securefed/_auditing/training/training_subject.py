"""A torch training loop under audit: an `audit_report.Subject` whose attacks share one limit of time.

A server sees how a client's state dict changed in one round, in the clear (view `server`) or as the mean over all
clients (`sum only`). `training_audit.audit_training` calls `cut_to_budget` if it can run the step, makes one subject,
lets it measure the curve of sizes (which share of the rows the attacks recover, by rows a client), and calls
`audit_seed` for each run: one round and one target client, whose change is simulated or read from a recording.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch

from securefed._auditing.alerts import TableFacts
from securefed._auditing.engine.audit_result import CUT
from securefed._auditing.engine.clear_runs import DEFENSES
from securefed._auditing.engine.results import RunFacts
from securefed._auditing.engine.seed_result import Place, SeedResult
from securefed._auditing.training.attack_inputs import AttackInputs, in_two_digits
from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._auditing.training.lookup_tables import HeldCategories, categories, find_tables
from securefed._auditing.training.observed_runs import ObservedChange, ObservedRuns
from securefed._auditing.training.size_curve import SizeCurve, measure_sizes
from securefed._auditing.training.step_probe import StepFacts, probe_step
from securefed._auditing.training.token_inputs import TokenInputs, token_inputs
from securefed._auditing.training.training_secrets import TrainingSecrets, layer_statistics, standardised
from securefed._auditing.training.training_seed_run import TrainingSeedRun
from securefed._tensors import Array
from securefed.attacks import views
from securefed.attacks._generic import TimeBudget, clock
from securefed.errors import SecureFedError

_CURVE_SHARE: Final = 0.4
"""Largest share of the time for the curve of sizes: it takes tens of searches for rows, an audited run a few."""
_SUMS_SHARE: Final = 0.25
"""Share of a run's time for the attacks on its sum; each simulation of it costs as many steps as there are clients. The
rest is for the attacks on a single client's change. One view alone has all of the time."""
_STEPS_A_RUN: Final = 150
"""Runs of the step that one audited run needs about, for membership and label counts by simulation."""
_TEXTS: Final = 64
"""Texts that are read to find tables beside the tokens' own; a pass of them through the model may take long."""
_FEWEST: Final = 4
"""Rows a client below which a slow step is not cut further."""


@dataclass
class TrainingSubject:
    """A torch loop under audit.

    Attributes:
        training: model, loss and step.
        runs: what a server sees, run by run.
        clients: their rows.
        population: rows that no client has and the attacker knows; `None` where the other clients' rows stand in.
        classes: number of classes; 0 where the rows' targets (y) are no classes.
        views: the views that are attacked.
        seconds: time for all attacks together.
        slower: by how much longer a step takes on all rows, where clients were cut to fewer; 1 where they were not.
        facts: what the first probe of the step showed; `None` before it, and where there is no step to run.
        asked: seconds of the audit that would have given more time to what was cut down or left out.
        notes: sentences on clients that were cut to fewer rows.
        most: rows that the largest client holds, some of which may have been cut.
        table: facts of the clients' rows, where a row is a row of a table.
        curve: the shares of rows recovered; empty before `measure_sizes`.
    """

    training: TorchTraining
    runs: ObservedRuns
    clients: Sequence[TrainedRows]
    population: TrainedRows | None
    classes: int
    views: Sequence[str]
    seconds: float
    slower: float = 1.0
    facts: StepFacts | None = None
    asked: list[float] = field(default_factory=list)
    notes: Sequence[str] = ()
    most: int = 0
    table: TableFacts = TableFacts(())
    curve: SizeCurve = field(default_factory=SizeCurve)
    _statistics: dict[int, list[Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._left = self.seconds

    @property
    def name(self) -> str:
        """The model's class and the step's name."""
        step = self.training.step
        called = f", {getattr(step, '__name__', type(step).__name__)}" if step is not None else ""
        return f"{type(self.training.model).__name__}{called}"

    @cached_property
    def text(self) -> TokenInputs | None:
        """The tokens in the rows; `None` where rows are no tokens."""
        return token_inputs(self.training, TrainedRows.joined(list(self.clients)))

    @cached_property
    def held(self) -> HeldCategories:
        """The lookup tables that the rows' whole numbers index, apart from the tokens' own; and what they look up.

        Beside tokens only tables count that a column of the rows indexes, and not those of positions.
        """
        rows, text = TrainedRows.joined(list(self.clients)), self.text
        found = find_tables(self.training, rows if text is None else rows.part(slice(0, _TEXTS)))
        if text is not None:
            found = tuple(table for table in found if table.name != text.table and table.columns)
        clients = tuple(categories(self.training, found, rows.x) for rows in self.clients)
        population = None if self.population is None else categories(self.training, found, self.population.x)
        return HeldCategories(found, clients, population)

    def describe(self) -> Mapping[str, Any]:
        """Say what ran: the model, the step as it was measured, and the rows."""
        sizes = sorted({len(rows) for rows in self.clients})
        shown = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        trained = sum(value.numel() for value in self.training.model.parameters() if value.requires_grad)
        return {
            "hyper-parameters": {
                "parameters": str(trained),
                "rows a client": shown,
                "step": str(self.facts) if self.facts else "read from a recording, not run",
            },
            "data": "the caller's rows",
            "rounds": 1,
            "secret": "samples",
            "also attacked": "counts of labels, batch statistics, tokens, categories, membership, pooled data",
            "clip": "none",
            "utility": "utility",  # head of a column that stays empty: the model's utility is not measured
        }

    def assumptions(self) -> tuple[str, ...]:
        """List what the attackers are given."""
        known = "rows like the clients' are known (`population`)"
        if self.population is None:
            known = "the other clients' rows are known to whoever attacks one client"
        given = [
            "the model, the loss, the local step, the state that clients receive and each client's number of rows are "
            "public",
            known,
        ]
        if self.facts is not None:
            given.append(f"measured on {self.facts.rows} known rows, the local step is {self.facts}")
        if self.runs.count < len(self.clients):
            given.append(f"{self.runs.count} of {len(self.clients)} clients were targets")
        return tuple(given)

    @property
    def shared(self) -> Mapping[str, Any]:
        """The number of clients; of a recording, its runs; and to how many rows clients were cut, where they were."""
        recorded = {} if self.runs.most is None else {"recorded": self.runs.most}
        cut = {CUT: [max(len(own) for own in self.clients), self.most]} if self.notes else {}
        return {"clients": len(self.clients)} | recorded | cut

    def left_out(self) -> tuple[str, ...]:
        """List what had too little time, and how many seconds would do for all of it, and sizes without a figure."""
        more = (
            f"more time would test more: allow about `seconds={in_two_digits(max(self.asked))}`" if self.asked else ""
        )
        return (*filter(None, [more]), *self.notes, *self.curve.gaps())

    def audit_seed(self, seed: int) -> SeedResult:
        """Attack every view of one run; a single client's change gets most of the time.

        The runs come in order, from 0. Each has an equal part of the time that the runs before it have left.
        """
        result = SeedResult()
        of_run = max(self._left, 0.0) / (self.runs.count - seed)
        for view in self.views:
            began = clock().now()
            try:
                self._attack(seed, view, TimeBudget.of(of_run * self._share(view)), result)
            except SecureFedError as refusal:
                # DEFENSES: reports name `server` the view under no defence, `sum only` that under secure aggregation
                spot = Place(self.name, DEFENSES[view], view, seed, self.runs.target(seed))
                result.leave_out(spot, "every attack", str(refusal))
            self._left -= clock().now() - began
            self._note_costs(result, view, seed)
        return result

    def _note_costs(self, result: SeedResult, view: str, seed: int) -> None:
        """Record the costs of a run: a state dict in both directions, and the time of the step.

        Sums are computed from the clients' changes; no secure aggregation runs.
        """
        size = sum(value.numel() * value.element_size() for value in self.training.state.values())
        seconds, real = self.facts.seconds if self.facts else 0.0, view == views.SERVER_VIEW
        facts = RunFacts(self.name, DEFENSES[view], seed, math.nan, 2.0 * size, seconds, rounds=1, real=real)
        result.facts.append(facts)

    def measure_sizes(self) -> None:
        """Measure the share of rows recovered, for several numbers of rows a client and of local steps.

        It fills `curve`, and comes before the runs, which get the time that it leaves.
        """
        began, limit = clock().now(), self.seconds * _CURVE_SHARE
        self.curve = measure_sizes(self.training, self.clients, self._prior, self.classes, self.text, limit, self.held)
        self._left -= clock().now() - began

    def _share(self, view: str) -> float:
        """Return the share of a run's time that a view gets."""
        return (_SUMS_SHARE if view == views.SUM_ONLY else 1 - _SUMS_SHARE) if len(self.views) > 1 else 1.0

    def _attack(self, seed: int, view: str, budget: TimeBudget, result: SeedResult) -> None:
        """Attack one view of one run, within the budget; the results go into `result`."""
        observed = self.runs.observe(seed, view)
        prior = self._prior(observed.target)
        sizes = tuple(len(self.clients[client]) for client in observed.members)
        facts = self._probe(observed, prior) if self.training.step is not None else None
        of_runs = 1 if self.training.step is None else 1 - _CURVE_SHARE  # of all seconds; the curve may take the rest
        share = of_runs * self._share(view) / (self.runs.count * self.slower)
        inputs = AttackInputs(
            self.training,
            observed,
            sizes,
            prior,
            self.classes,
            self.text,
            facts,
            budget,
            share,
            self.held.tables,
        )
        # `None`: the rows of all clients together, which a sum may show where it does not show one client's
        for target in (observed.target, None) if view == views.SUM_ONLY else (observed.target,):
            statistics = self._statistics_of(seed, observed)
            secrets = TrainingSecrets(self.clients, target, seed, statistics, self.text, self.held, self.population)
            run = TrainingSeedRun(self.name, inputs, secrets, self.population, result, self._image)
            run.attack()
            self.asked += run.asked

    def _probe(self, observed: ObservedChange, prior: TrainedRows) -> StepFacts:
        """Probe the step on known rows, as many as the target has."""
        count = min(len(self.clients[observed.target]), len(prior))
        facts = probe_step(self.training, observed.state, prior.part(slice(0, count)), 11)  # 11: seed of its draws
        self.facts = self.facts or facts
        return facts

    def _prior(self, target: int) -> TrainedRows:
        """Return the rows that the attacker of one client knows, in an order of their own."""
        known = self.population
        if known is None:
            known = TrainedRows.joined([rows for index, rows in enumerate(self.clients) if index != target])
        order = np.random.default_rng([target, 61]).permutation(len(known))  # 61: a stream of its own
        return known.part(torch.as_tensor(order))

    def _statistics_of(self, seed: int, observed: ObservedChange) -> list[Array]:
        """Return the batch statistics of every client, then of all rows, under the received weights.

        They are means and variances at the layers of batch normalisation, in units of those of the known rows.
        """
        if seed not in self._statistics:
            module = self.training.received(observed.state)
            parts = [*self.clients, TrainedRows.joined(list(self.clients))]
            found = [layer_statistics(module, self.training.modes, rows.x) for rows in parts]
            pooled = layer_statistics(module, self.training.modes, self._prior(observed.target).x)
            self._statistics = {seed: [standardised(own, pooled) for own in found]}
        return self._statistics[seed]

    @property
    def _image(self) -> tuple[int, int] | None:
        """(height, width) of rows that are pictures of one channel; `None` for others."""
        shape = tuple(self.clients[0].x.shape[1:])
        return (shape[-2], shape[-1]) if len(shape) >= 2 and int(np.prod(shape[:-2])) == 1 else None


def cut_to_budget(
    training: TorchTraining, clients: list[TrainedRows], seeds: int, seconds: float
) -> tuple[list[TrainedRows], list[str], float, list[float]]:
    """Leave each client as many rows as the audit has time for.

    Args:
        training: model, loss and step.
        clients: their rows.
        seeds: number of runs.
        seconds: time for all attacks together.

    Returns:
        The clients, a sentence where rows were left out, how many times longer the step takes on all rows, and the
        seconds that would do for all rows, where some were left out.
    """
    most = max(len(rows) for rows in clients)
    # half of the time is for local steps, of which a run's attacks take about `_STEPS_A_RUN`
    count, allowed = most, 0.5 * seconds / (seeds * _STEPS_A_RUN)
    state, largest = training.state, max(clients, key=len)
    training.change(state, largest.part(slice(0, _FEWEST)), 0)  # the first run also loads code
    while True:
        began = clock().now()
        training.change(state, largest.part(slice(0, count)), 0)
        spent = clock().now() - began
        if count == most:
            full = spent
        if spent <= allowed or count <= _FEWEST:
            break
        count = max(count // 2, _FEWEST)
    if count == most:
        return clients, [], 1.0, []
    note = (
        f"the local step takes {full:.2g} s on {most} rows, too long for {seconds:.0f} s of attacks: every figure is "
        f"of clients cut to their first {count} rows ({spent:.2g} s); allow more `seconds` to audit all rows"
    )
    cut = [rows.part(slice(0, count)) for rows in clients]
    return cut, [note], max(full / spent, 1.0), [2 * full * seeds * _STEPS_A_RUN]

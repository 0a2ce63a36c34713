"""Invert one message of a network in stages: closed forms, then a fit in few coordinates, then descent on all entries.

The input is a gradient or model update (the message), the parameters at which it was computed, and the rows' labels or
guesses of them; the output is the rows. `module_inversion` calls this for messages of any torch module,
`view_inversion` for recorded runs, and `flame_network_inversion` for FLAME's. Stages, from the cheapest:

1. closed forms from the linear layer that the rows enter, if there is one: the ratio of its weight and bias gradients
   for one row, or the separation of the rows behind ReLUs (`row_separation`);
2. Levenberg-Marquardt on the rows' coordinates in the row space of that layer's gradient, which holds the rows
   (`row_space_fit`);
3. L-BFGS on all entries of the rows, with ReLUs smoothed at first (`smoothed_relu`).

After each stage the rows found so far are simulated. If they send the observed message, the inversion ends; otherwise
the next stage begins, and the rows that explain the message best are kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from securefed._public import require
from securefed._tensors import Array
from securefed.attacks._generic.time_budget import clock
from securefed.attacks._networks.client_simulations import ClientSimulation
from securefed.attacks._networks.first_layer import FirstLayerEvidence
from securefed.attacks._networks.flat_network import FlatNetwork
from securefed.attacks._networks.gradient_matching import GradientMatching, InversionProblem, RowPrior
from securefed.attacks._networks.gradient_searches import BestPoint, lbfgs, run_searches
from securefed.attacks._networks.row_parametrisations import (
    AllEntries,
    ContinuousColumns,
    MixedColumns,
    RowParametrisation,
    RowSpace,
)
from securefed.attacks._networks.row_space_fit import RowSpaceFit
from securefed.attacks._networks.smoothed_relu import SmoothedReLU, has_relu

_RACE_WIDTHS = 2
"""Number of widths at which all starts run; after these the best start goes on alone. On LeNet (digits) starts that end
in a wrong minimum show it after two; each further width would spend evaluations on all starts instead of the best."""
_JACOBIAN_BYTES = 2**25
"""Most bytes of a Jacobian of the fit in the row space; beyond, L-BFGS fits the coordinates instead."""
_NEARLY_SOLVED = 0.1
"""Relative residual below which rows of a closed form are the first start of the fit in the row space."""
_HISTORY = 100
"""Steps that L-BFGS remembers; the memory grows with it. With 100 and 2000 steps, 7 of 8 rows of a sigmoid batch of
digits exceeded 35 dB."""


@dataclass(frozen=True)
class InversionEffort:
    """Limits on the searches of an inversion.

    Attributes:
        exact: whether the closed forms and the row space of the first layer are used.
        restarts: random starts of each descent.
        evaluations: most evaluations of the objective in each start of L-BFGS.
        widths: falling widths with which the ReLUs of a network are smoothed (`smoothed_relu`). Each of them, and then
            the network itself, gets an equal part of `evaluations`; empty leaves smoothing out.
        balance: exponent by which the small tensors of a message gain weight while the network is smoothed
            (`GradientMatching`).
        evenness: weight of the images' total variation while the network is smoothed, in units of the squared width;
            without smoothing it is 0.
        solved: relative residual at which the inversion ends. Behind sigmoids and tanh it is no proof that every row
            was found (`RecoveredRows.residual`).
        fits: most starts of the fit in the row space.
        counts: most guesses of how often each label occurs that callers pass to `with_unknown_labels`, where the labels
            are not known.
        memory: most bytes that a search may take; larger searches are refused before anything is allocated.
        batched: whether starts are computed together; `None` decides by the size (`gradient_matching.VMAP_ENTRIES`).
        seconds: most seconds of an inversion, looked at between evaluations. One that runs out returns what it has
            reached, and says so (`RecoveredRows.stopped`).
        progress: called between evaluations with how many a search has made, the most that it may make (`None` for
            fits), and words with its stage and residual.
    """

    exact: bool = True
    restarts: int = 2
    evaluations: int = 2000
    widths: tuple[float, ...] = (0.5, 0.35, 0.25, 0.17, 0.12, 0.085, 0.06, 0.04, 0.03, 0.02, 0.01, 0.003, 0.001)
    balance: float = 0.5
    evenness: float = 10.0
    solved: float = 1e-4
    fits: int = 8
    counts: int = 60
    memory: int = 2 * 2**30
    batched: bool | None = None
    seconds: float = math.inf
    progress: Callable[[int, int | None, str], None] | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        require(self.restarts >= 1, f"restarts must be at least 1, not {self.restarts}")
        require(self.evaluations >= 1, f"evaluations must be at least 1, not {self.evaluations}")
        require(min(self.widths, default=1.0) > 0, f"widths must be positive, not {self.widths}")
        require(self.evenness >= 0, f"evenness must be at least 0, not {self.evenness}")
        require(self.seconds > 0, f"seconds must be positive, not {self.seconds}")
        require(self.solved > 0, f"solved must be positive, not {self.solved}")


@dataclass(frozen=True)
class RecoveredRows:
    """The rows that explain a message best.

    Attributes:
        rows: (B, features).
        residual: relative residual of the message under `rows`, 0 if exact. It stays large where nothing was found, and
            where the simulation is wrong (other hyper-parameters than the client's). That it is small does not prove
            that all rows are right, except at rounding level: behind sigmoids wrong pictures in a batch left 1e-5.
            Another `seed` that ends at the same rows is better evidence.
        stage: the stage that found them: "ratio" or "separation" (closed forms), "coordinates" (the fit in the row
            space), "descent" (L-BFGS) or "smoothed" (with smoothed ReLUs); "none" for a placeholder before any search.
        evaluations: number of evaluations of the objective, all starts together.
        seconds: wall-clock time of the whole inversion.
        targets: (B, ...) what the rows were compared with, in their order.
        stopped: whether `InversionEffort.seconds` ran out before the search had ended.
    """

    rows: Array
    residual: float
    stage: str
    evaluations: int = 0
    seconds: float = 0.0
    targets: Array | None = None
    stopped: bool = False


@dataclass(frozen=True)
class StagedInversion:
    """Invert messages of one network and one simulation.

    Attributes:
        network: the model and its loss.
        simulation: what a client sends, as a function of its rows.
        features: width of a row.
        prior: range of the entries, and shape of images.
        effort: how hard it tries.
        columns: categorical and continuous columns; `None` where all columns are numbers.
        began: time from which its seconds count, on the clock of budgets.
    """

    network: FlatNetwork
    simulation: ClientSimulation
    features: int
    prior: RowPrior
    effort: InversionEffort = InversionEffort()
    columns: MixedColumns | None = None
    began: float = field(default_factory=lambda: clock().now())

    @property
    def _late(self) -> bool:
        """Whether the time is up."""
        return clock().now() - self.began > self.effort.seconds

    def _stop(self, stage: str, most: int | None = None) -> Callable[[int, float], bool]:
        """Return a function that reports a search's residual (a descent gives its square), and says if time is up."""

        def stop(done: int, value: float) -> bool:
            clock().count(1)
            if (report := self.effort.progress) is not None:
                report(done, most, f"{stage}, residual {value if most is None else max(value, 0.0) ** 0.5:.2g}")
            return self._late

        return stop

    def __call__(
        self, problem: InversionProblem, rng: np.random.Generator, first: FirstLayerEvidence | None = None
    ) -> RecoveredRows:
        """Return the rows behind a message.

        Args:
            problem: the message, and the targets of its rows.
            rng: draws the starts.
            first: evidence from the gradient of the layer that the rows enter; `None` without such a layer.

        Raises:
            ConfigError: the searches need more memory than `effort.memory`.
        """
        started = time.perf_counter()
        self.require_memory(len(problem.targets))
        recovered = self._exact(problem, first, rng)
        if not recovered.residual <= self.effort.solved and not self._late:
            recovered = self._descend(problem, recovered, rng)
        stopped, targets = self._late and not recovered.residual <= self.effort.solved, problem.targets.numpy()
        return replace(recovered, seconds=time.perf_counter() - started, targets=targets, stopped=stopped)

    def from_first_layer(
        self, point: torch.Tensor, message: torch.Tensor, first: FirstLayerEvidence, classes: int
    ) -> RecoveredRows | None:
        """Return rows and labels in closed form from the first layer; `None` unless they explain the message.

        Args:
            point: (parameters,) initial parameters.
            message: (copies * parameters,) the message.
            first: evidence from the gradient of the layer that the rows enter.
            classes: number of classes.
        """
        started = time.perf_counter()
        labelled = first.labelled(classes) if self.effort.exact else None
        if labelled is None:
            return None
        rows, labels = labelled
        residual = self._matching(InversionProblem(point, message, torch.as_tensor(labels))).relative(rows)
        if not residual <= self.effort.solved:
            return None
        return RecoveredRows(rows, residual, first.stage, seconds=time.perf_counter() - started, targets=labels)

    def with_unknown_labels(
        self, hypotheses: Sequence[InversionProblem], rng: np.random.Generator, first: FirstLayerEvidence | None
    ) -> RecoveredRows:
        """Invert one message under several hypotheses about its labels, the likeliest first.

        A few steps of the fit in the row space choose the hypothesis: the first with a small residual. Where that fit
        cannot be used, the first hypothesis is taken.

        Args:
            hypotheses: the message with each guess of all its labels.
            rng: draws the starts.
            first: as in a call.
        """
        started, which, evaluations = time.perf_counter(), 0, 0
        if len(hypotheses) > 1 and (fits := self._row_space_fit(hypotheses, first)) is not None:
            which, evaluations = fits.choose_hypothesis(rng)
        recovered = self(hypotheses[which], rng, first)
        evaluations += recovered.evaluations
        return replace(recovered, evaluations=evaluations, seconds=time.perf_counter() - started)

    def require_memory(self, rows: int) -> None:
        """Refuse a search that would not fit into memory, before it is allocated.

        Raises:
            ConfigError: it needs more than `effort.memory`.
        """
        effort = self.effort
        # L-BFGS: two float64 vectors for each step that it remembers. Beside them, about six float64 vectors of the
        # message's size for each row (counted as eight rows at least): activations and gradients of the network. A
        # message holds `simulation.copies()` vectors of the network's parameters.
        history = 16 * effort.restarts * rows * self.features * min(_HISTORY, effort.evaluations)
        need = history + 48 * self.network.size * self.simulation.copies() * max(rows, 8)
        require(
            need <= effort.memory,
            f"{effort.restarts} searches for {rows} rows of {self.features} entries behind {self.network.size} "
            f"parameters need about {need / 2**20:.0f} MiB, beyond the limit of {effort.memory / 2**20:.0f} MiB; lower "
            "restarts, or raise InversionEffort.memory",
        )

    def _matching(self, problem: InversionProblem) -> GradientMatching:
        return GradientMatching(self.network, self.simulation, problem, AllEntries(self.features), self.prior)

    def _exact(
        self, problem: InversionProblem, first: FirstLayerEvidence | None, rng: np.random.Generator
    ) -> RecoveredRows:
        """Try the closed forms, then a fit of the rows' coordinates in the row space of the first layer's gradient."""
        best = self.closed_form(problem, first)
        if best.residual <= self.effort.solved or first is None or not self.effort.exact:
            return best
        count, matching = len(problem.targets), self._matching(problem)
        fits = self._row_space_fit([problem], first)
        if fits is None:
            space = RowSpace(first.row_space)
            ends = self._search(problem, space, self._starts(space, count, rng))
            end = min(ends, key=lambda item: item.value)
            rows = space.rows(torch.as_tensor(end.point.reshape(count, -1))).numpy()
            fitted = RecoveredRows(rows, matching.relative(rows), "coordinates", _spent(ends))
        else:
            fit = fits(0, rng, best.rows if best.residual <= _NEARLY_SOLVED else None)
            fitted = RecoveredRows(fits.rows(fit), fit.norm, "coordinates", fit.steps)
        return min((best, fitted), key=lambda item: item.residual)

    def closed_form(self, problem: InversionProblem, first: FirstLayerEvidence | None) -> RecoveredRows:
        """Return the rows that the first layer gives without a fit; the middle of the range where it gives none."""
        targets = problem.targets
        middle = np.full((len(targets), self.features), 0.5 * (self.prior.low + self.prior.high))
        if first is None or not self.effort.exact or first.rows is None:
            return RecoveredRows(middle, np.inf, "none", targets=targets.numpy())
        rows = first.ordered(targets)
        return RecoveredRows(rows, self._matching(problem).relative(rows), first.stage, targets=targets.numpy())

    def _row_space_fit(
        self, hypotheses: Sequence[InversionProblem], first: FirstLayerEvidence | None
    ) -> RowSpaceFit | None:
        """Return the fit in the row space; `None` without such a space, or where its Jacobian would be too large."""
        if first is None or not self.effort.exact:
            return None
        space, effort = RowSpace(first.row_space), self.effort
        if 8 * first.count * space.width * len(hypotheses[0].message) > min(effort.memory, _JACOBIAN_BYTES):
            return None
        limits = effort.fits, effort.solved, self._stop("coordinates")
        return RowSpaceFit(self.network, self.simulation, hypotheses, space, self.prior, *limits)

    def _descend(self, problem: InversionProblem, best: RecoveredRows, rng: np.random.Generator) -> RecoveredRows:
        """Run L-BFGS on the entries."""
        parametrisation: RowParametrisation = self.columns or AllEntries(self.features)
        starts = self._starts(parametrisation, len(problem.targets), rng)
        if self.effort.widths and self._has_relu(problem):
            ends, stage = self._smoothed(problem, parametrisation, starts), "smoothed"
        else:
            ends, stage = self._search(problem, parametrisation, starts), "descent"
        return self._better(problem, best, ends, parametrisation, stage)

    def _starts(self, parametrisation: RowParametrisation, count: int, rng: np.random.Generator) -> Array:
        """Draw (restarts, unknowns) starts with entries uniform in the range."""
        drawn = rng.uniform(self.prior.low, self.prior.high, (self.effort.restarts, count, self.features))
        return np.stack([parametrisation.unknowns(x).reshape(-1) for x in drawn])

    def _search(
        self,
        problem: InversionProblem,
        parametrisation: RowParametrisation,
        starts: Array,
        *,
        width: float = 0.0,
        evaluations: int | None = None,
    ) -> list[BestPoint]:
        """Run L-BFGS from each start (k, unknowns).

        `width` is that of the smoothed ReLUs, 0 without smoothing; `evaluations`, at most for each start, are those of
        `effort` by default.
        """
        effort, prior = self.effort, replace(self.prior, variation=self.effort.evenness * width**2)
        matching = GradientMatching(
            self.network,
            self.simulation,
            problem,
            parametrisation,
            prior,
            balance=effort.balance if width else 0.0,
            batched=effort.batched,
        )
        with SmoothedReLU(width) if width else nullcontext():
            searches = [lbfgs(start, _HISTORY) for start in starts]
            goal = (0.1 * effort.solved) ** 2  # of the squared relative residual
            most = evaluations or effort.evaluations
            stop = self._stop("smoothed" if width else "descent", most)
            return run_searches(searches, starts, matching, most, goal, stop)

    def _smoothed(
        self, problem: InversionProblem, parametrisation: RowParametrisation, starts: Array
    ) -> list[BestPoint]:
        """Run L-BFGS at ever smaller widths, each from where the last one ended, then on the network itself."""
        evaluations, share = 0, -(-self.effort.evaluations // (1 + len(self.effort.widths)))
        for k, width in enumerate((*self.effort.widths, 0.0)):
            ends = self._search(problem, parametrisation, starts, width=width, evaluations=share)
            evaluations += _spent(ends)
            if k + 1 == _RACE_WIDTHS:
                ends = [min(ends, key=lambda end: end.value)]
            starts = np.stack([end.point for end in ends])
        ends[0].evaluations += evaluations - _spent(ends)  # the one that is left counts for all widths and starts
        return ends

    def _has_relu(self, problem: InversionProblem) -> bool:
        """Return whether the network computes a ReLU that can be smoothed."""
        network, row = self.network, torch.zeros(1, self.features, dtype=self.network.dtype)
        return has_relu(network.objective, network.split(problem.point), row, problem.targets[:1])

    def _better(
        self,
        problem: InversionProblem,
        best: RecoveredRows,
        ends: list[BestPoint],
        parametrisation: RowParametrisation,
        stage: str,
    ) -> RecoveredRows:
        """Return the best of the rows so far and those at the ends of a search, whose stage is `stage`."""
        matching, evaluations = self._matching(problem), best.evaluations + _spent(ends)
        # The search's own value ranks its ends, until categories are rounded.
        candidates = ends if self.columns is not None else [min(ends, key=lambda end: end.value)]
        for end in candidates:
            rows = parametrisation.rows(torch.as_tensor(end.point.reshape(len(problem.targets), -1))).numpy()
            if self.columns is not None:
                rows = self._categorical(problem, self.columns, rows)
            residual = matching.relative(rows)
            if residual < best.residual or best.stage == "none":
                best = RecoveredRows(rows, residual, stage)
        return replace(best, evaluations=evaluations)

    def _categorical(self, problem: InversionProblem, columns: MixedColumns, rows: Array) -> Array:
        """Round the categories to their likeliest values, and fit the continuous columns to the message again."""
        rounded, continuous = columns.rounded(rows), columns.continuous
        if not continuous:
            return rounded
        parametrisation = ContinuousColumns(rounded, continuous)
        start = parametrisation.unknowns(rounded).reshape(1, -1)
        matching = GradientMatching(self.network, self.simulation, problem, parametrisation, self.prior)
        # fewer evaluations than a search from a random start
        end = run_searches([lbfgs(start[0], _HISTORY)], start, matching, self.effort.evaluations // 4, 0.0)[0]
        return np.asarray(parametrisation.rows(torch.as_tensor(end.point.reshape(len(rounded), -1))).numpy())


def _spent(ends: Sequence[BestPoint]) -> int:
    """Return the number of evaluations of all searches together."""
    return sum(end.evaluations for end in ends)

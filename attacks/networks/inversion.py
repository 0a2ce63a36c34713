"""The cascade: what is exact first, then a fit in few coordinates, then descent on the entries.

Each stage ends the cascade where its rows, simulated, send what was seen; otherwise the next begins, and the rows that
explain the message best are kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch

from securefed.attacks.networks.charts import Chart, Continuous, Entries, Mixed, Span
from securefed.attacks.networks.coordinates import Coordinates
from securefed.attacks.networks.descent import Best, drive, lbfgs, signed_adam
from securefed.attacks.networks.first_layer import FirstLayer
from securefed.attacks.networks.guided import Guided
from securefed.attacks.networks.matching import Matching, Prior, Problem
from securefed.attacks.networks.network import Network
from securefed.attacks.networks.smoothing import Smoothed, has_relu
from securefed.attacks.networks.steps import LocalSteps, Simulation
from securefed.public import require
from securefed.tensors import Array

_RACE = 2
"""Widths at which all starts run; measured on LeNet, those that end elsewhere are told by their misfit after them."""
_NEAR = 0.03
"""Relative misfit of rows that a guided search found, beyond which the other one is run too."""
_JACOBIAN = 2**25
"""Bytes of a Jacobian beyond which L-BFGS fits the coordinates instead."""


@dataclass(frozen=True)
class Effort:
    """How hard the cascade tries.

    Attributes:
        exact: whether exact shortcuts and the row space are used.
        restarts: random starts of each descent.
        evaluations: of L-BFGS, each start.      history: its memory.
        widths: of the smoothing that a search begins with where the network has ReLUs (`smoothing`), falling; each gets
            an equal part of `evaluations`, and so does the network itself. After `_RACE` of them the best start of each
            message goes on alone. Empty leaves it out.
        balance: of the tensors in the misfit of L-BFGS while it is smoothed (`Matching`).
        guided: whether the smoothed search for one row behind several local steps is guided by the last layer's update,
            where that tells the steps apart (`guided`).
        evenness: weight of images' total variation while the network is smoothed, in units of the squared width: it
            fades with the misfit that smoothing leaves, and with the last width it is gone.
        signed_steps: of signed Adam on cosine distance and total variation, where L-BFGS did not solve it; 0 leaves it
            out.      rate: its first step, in units of the range.      variation: weight of total variation there.
        box: weight of the range's violation.
        solved: relative misfit at which rows count as found.
        fits: starts of the Levenberg-Marquardt fit in coordinates.
        counts: of labels that are looked at, at most, in that fit, where labels are not known.
        memory: bytes that a search may take; more is refused before anything is allocated.
        batched: whether starts are computed together; `None` decides (`matching.TOGETHER`).
    """

    exact: bool = True
    restarts: int = 2
    evaluations: int = 2000
    history: int = 100
    widths: tuple[float, ...] = (0.5, 0.35, 0.25, 0.17, 0.12, 0.085, 0.06, 0.04, 0.03, 0.02, 0.01, 0.003, 0.001)
    balance: float = 0.5
    guided: bool = True
    evenness: float = 10.0
    signed_steps: int = 2000
    rate: float = 0.1
    variation: float = 1e-3
    box: float = 1e-3
    solved: float = 1e-4
    fits: int = 8
    counts: int = 60
    memory: int = 2 * 2**30
    batched: bool | None = None

    def __post_init__(self) -> None:
        require(self.restarts >= 1, f"restarts must be at least 1, not {self.restarts}")
        require(self.evaluations >= 1, f"evaluations must be at least 1, not {self.evaluations}")
        require(min(self.widths, default=1.0) > 0, f"widths must be positive, not {self.widths}")
        require(self.evenness >= 0, f"evenness must be at least 0, not {self.evenness}")
        require(self.signed_steps >= 0, f"signed_steps must be at least 0, not {self.signed_steps}")
        require(self.solved > 0, f"solved must be positive, not {self.solved}")


@dataclass(frozen=True)
class Inverted:
    """What the cascade believes.

    Attributes:
        rows: (B, features).
        targets: (B, ...) what the rows were compared with, in their order.
        residual: relative misfit of the message under `rows`, 0 exact; a wrong simulation (other hyper-parameters than
            the client's) leaves it large.
        stage: which stage found them: "ratio", "separation", "coordinates", "descent", "guided", "smoothed",
            "cosine".
        evaluations: of the objective, all starts together.      seconds: of the whole cascade.
    """

    rows: Array
    residual: float
    stage: str
    evaluations: int = 0
    seconds: float = 0.0
    targets: Array | None = None


@dataclass(frozen=True)
class Cascade:
    """Inverts messages of one network and one simulation.

    Attributes:
        features: width of a row.      prior: range, neighbours.
        columns: mixed types, `None` where all are numbers.
    """

    network: Network
    simulation: Simulation
    features: int
    prior: Prior
    effort: Effort = Effort()
    columns: Mixed | None = None

    def __call__(
        self, problems: Sequence[Problem], rng: np.random.Generator, first: Sequence[FirstLayer | None] = ()
    ) -> list[Inverted]:
        """Rows of each problem; all must have as many targets.

        Args:
            first: of each problem what its message says of the layer that rows enter, `None` without one.

        Raises:
            ConfigError: the searches need more memory than `effort.memory`.
        """
        require(len(problems) > 0, "there is no message to invert")
        begun = time.perf_counter()
        rows = len(problems[0].targets)
        self.require_memory(rows, len(problems))
        base = self._matching(problems)
        found: list[Inverted] = []
        for k, _ in enumerate(problems):
            layer = first[k] if k < len(first) and self.effort.exact else None
            found.append(self._exact(base, k, layer, rows, rng))
        left = [k for k, item in enumerate(found) if not item.residual <= self.effort.solved]
        if left:
            self._descend(base, left, found, rng)
        seconds = (time.perf_counter() - begun) / len(problems)
        return [
            replace(item, seconds=seconds, targets=problem.targets.numpy())
            for item, problem in zip(found, problems, strict=True)
        ]

    def read(self, point: torch.Tensor, message: torch.Tensor, first: FirstLayer, classes: int) -> Inverted | None:
        """Rows and their labels read off the first layer, without a guess; `None` unless they explain the message."""
        begun = time.perf_counter()
        told = first.labelled(classes) if self.effort.exact else None
        if told is None:
            return None
        rows, labels = told
        problem = Problem(point, message, torch.as_tensor(labels))
        residual = self._matching([problem]).relative(0, rows)
        if not residual <= self.effort.solved:
            return None
        return Inverted(rows, residual, first.stage, seconds=time.perf_counter() - begun, targets=labels)

    def among(self, accounts: Sequence[Problem], rng: np.random.Generator, first: FirstLayer | None) -> Inverted:
        """One message under several accounts of its targets, the likeliest first: the first that comes near goes on.

        They compete where a fit in coordinates is to be had; elsewhere the first account is believed.
        """
        fits = self._coordinates(accounts, first) if len(accounts) > 1 else None
        begun, (which, spent) = time.perf_counter(), (0, 0) if fits is None else fits.first(rng)
        found = self([accounts[which]], rng, [first])[0]
        seconds = time.perf_counter() - begun
        return replace(found, evaluations=found.evaluations + spent, seconds=seconds)

    def _matching(self, problems: Sequence[Problem]) -> Matching:
        return Matching(
            self.network,
            self.simulation,
            problems,
            [],
            Entries(self.features),
            replace(self.prior, box=self.effort.box),
        )

    def require_memory(self, rows: int, problems: int) -> None:
        """Refuse what would not fit, before it is allocated."""
        unknowns, runs = rows * self.features, problems * self.effort.restarts
        history = 16 * runs * unknowns * min(self.effort.history, self.effort.evaluations)
        gradients = 48 * self.network.size * self.simulation.copies() * max(rows, 8)
        need, limit = history + gradients, self.effort.memory
        require(
            need <= limit,
            f"{problems} x {self.effort.restarts} searches for {rows} rows of {self.features} entries behind "
            f"{self.network.size} parameters need about {need / 2**20:.0f} MiB, beyond the limit of "
            f"{limit / 2**20:.0f} MiB; lower restarts or history, or raise Effort.memory",
        )

    def _exact(self, base: Matching, k: int, first: FirstLayer | None, rows: int, rng: np.random.Generator) -> Inverted:
        best = Inverted(np.full((rows, self.features), 0.5 * (self.prior.low + self.prior.high)), np.inf, "none")
        if first is None:
            return best
        if first.rows is not None:
            ordered = first.ordered(base.problems[k].targets)
            best = self._swapped(base, k, Inverted(ordered, base.relative(k, ordered), first.stage))
        if best.residual <= self.effort.solved:
            return best
        fits = self._coordinates([base.problems[k]], first)
        if fits is None:
            fitted = self._span_descent(base, k, Span(first.span), rows, rng)
        else:
            fit = fits(0, rng)
            fitted = Inverted(fits.rows(fit), fit.norm, "coordinates", fit.steps)
        return min((best, fitted), key=lambda item: item.residual)

    def _swapped(self, base: Matching, k: int, found: Inverted) -> Inverted:
        """The rows in the order of the targets: pairs are swapped while that explains the message better.

        For messages of several steps, whose slopes are not those at the first point.
        """
        targets, improved = base.problems[k].targets, True
        rows, residual = found.rows, found.residual
        while improved and residual > self.effort.solved:
            improved = False
            for i, j in _pairs(targets):
                order = np.arange(len(rows))
                order[[i, j]] = order[[j, i]]
                swapped = base.relative(k, rows[order])
                if swapped < residual:
                    rows, residual, improved = rows[order], swapped, True
        return replace(found, rows=rows, residual=residual)

    def _coordinates(self, accounts: Sequence[Problem], first: FirstLayer | None) -> Coordinates | None:
        """The fit in the row space; `None` where there is none, or its Jacobian would be too large."""
        if first is None or not self.effort.exact:
            return None
        chart, effort = Span(first.span), self.effort
        if 8 * first.count * chart.width * len(accounts[0].message) > min(effort.memory, _JACOBIAN):
            return None
        return Coordinates(self.network, self.simulation, accounts, chart, self.prior, effort.fits, effort.solved)

    def _span_descent(self, base: Matching, k: int, chart: Span, rows: int, rng: np.random.Generator) -> Inverted:
        bests = self._search([base.problems[k]], chart, rows, rng, "squared")[0]
        best = min(bests, key=lambda item: item.value)
        candidate = chart.rows(torch.as_tensor(best.point.reshape(rows, -1))).numpy()
        return Inverted(candidate, base.relative(k, candidate), "coordinates", sum(b.evaluations for b in bests))

    def _descend(self, base: Matching, left: list[int], found: list[Inverted], rng: np.random.Generator) -> None:
        """L-BFGS on the entries; where that fails cosine and total variation, then L-BFGS from there."""
        rows = len(base.problems[0].targets)
        chart: Chart = self.columns or Entries(self.features)
        problems = [base.problems[k] for k in left]
        if self.effort.widths and self._kinked(problems[0]):
            left = [k for k in left if not self._guided(base, k, chart, found, rng)]
            problems = [base.problems[k] for k in left]
            if left:
                self._take(base, left, self._smoothed(problems, chart, rows, rng), chart, found, "smoothed")
        else:
            self._take(base, left, self._search(problems, chart, rows, rng, "squared"), chart, found)
        left = [k for k in left if not found[k].residual <= 10.0 * self.effort.solved]
        if not left or not self.effort.signed_steps:
            return
        problems = [base.problems[k] for k in left]
        rough = self._search(problems, chart, rows, rng, "cosine")
        starts = np.stack([best.point for bests in rough for best in bests])
        polished = self._search(problems, chart, rows, rng, "squared", starts)
        for one, other in zip(polished, rough, strict=True):
            for a, b in zip(one, other, strict=True):
                a.evaluations += b.evaluations
        self._take(base, left, rough, chart, found, "cosine")
        self._take(base, left, polished, chart, found, "cosine")

    def _search(
        self,
        problems: Sequence[Problem],
        chart: Chart,
        rows: int,
        rng: np.random.Generator,
        distance: str,
        starts: Array | None = None,
        *,
        width: float = 0.0,
        evaluations: int | None = None,
    ) -> list[list[Best]]:
        """Of each problem the ends of its starts: `effort.restarts` new ones, or those given, as many for each."""
        effort, prior = self.effort, replace(self.prior, box=self.effort.box)
        if starts is None:
            drawn = rng.uniform(prior.low, prior.high, (len(problems) * effort.restarts, rows, self.features))
            starts = np.stack([chart.unknowns(x).reshape(-1) for x in drawn])
        each = len(starts) // len(problems)
        of = np.repeat(np.arange(len(problems)), each)
        if distance == "cosine":
            prior = replace(prior, variation=effort.variation)
            low, high = (prior.low, prior.high) if isinstance(chart, Entries) else (-np.inf, np.inf)
            rate = effort.rate * (prior.high - prior.low)
            searches = [signed_adam(start, effort.signed_steps, rate, low, high) for start in starts]
            matching = Matching(
                self.network, self.simulation, problems, of, chart, prior, "cosine", batched=effort.batched
            )
            bests = drive(searches, starts, matching, effort.signed_steps, -np.inf)
        else:
            balance = effort.balance if width else 0.0
            prior = replace(prior, variation=effort.evenness * width**2)
            matching = Matching(
                self.network, self.simulation, problems, of, chart, prior, balance=balance, batched=effort.batched
            )
            searches = [lbfgs(start, effort.history) for start in starts]
            with Smoothed(width) if width else nullcontext():
                bests = drive(searches, starts, matching, evaluations or effort.evaluations, (0.1 * effort.solved) ** 2)
        return [bests[k * each : (k + 1) * each] for k in range(len(problems))]

    def _smoothed(
        self, problems: Sequence[Problem], chart: Chart, rows: int, rng: np.random.Generator
    ) -> list[list[Best]]:
        """L-BFGS at ever smaller widths, each from where the one before ended, and at last on the network itself."""
        starts: Array | None = None
        spent = np.zeros(len(problems), int)
        part = -(-self.effort.evaluations // (1 + len(self.effort.widths)))
        for k, width in enumerate((*self.effort.widths, 0.0)):
            ends = self._search(problems, chart, rows, rng, "squared", starts, width=width, evaluations=part)
            spent += [sum(best.evaluations for best in bests) for bests in ends]
            if k + 1 == _RACE:
                ends = [[min(bests, key=lambda best: best.value)] for bests in ends]
            starts = np.stack([best.point for bests in ends for best in bests])
        for bests, total in zip(ends, spent, strict=True):
            bests[0].evaluations += int(total) - sum(best.evaluations for best in bests)
        return ends

    def _guided(self, base: Matching, k: int, chart: Chart, found: list[Inverted], rng: np.random.Generator) -> bool:
        """Whether a smoothed search through steps whose last layer is known came near the message."""
        if not self.effort.guided or not isinstance(self.simulation, LocalSteps):
            return False
        problem = base.problems[k]
        guide = Guided.of(self.network, self.simulation, problem, self.prior, self.features, rng)
        if guide is None:
            return False
        search = replace(self, simulation=guide, effort=replace(self.effort, batched=False))
        ends = search._smoothed([guide.problem(self.network, problem)], chart, 1, rng)
        self._take(base, [k], ends, chart, found, "guided")
        return found[k].residual <= _NEAR

    def _kinked(self, problem: Problem) -> bool:
        """Whether the network has ReLUs to smooth."""
        network, row = self.network, torch.zeros(1, self.features, dtype=self.network.dtype)
        return has_relu(network.objective, network.split(problem.point), row, problem.targets[:1])

    def _take(
        self,
        base: Matching,
        which: list[int],
        ends: list[list[Best]],
        chart: Chart,
        found: list[Inverted],
        stage: str = "descent",
    ) -> None:
        for k, bests in zip(which, ends, strict=True):
            spent = found[k].evaluations + sum(best.evaluations for best in bests)
            # The search's own value ranks its ends, until categories are rounded.
            likely = bests if self.columns is not None else [min(bests, key=lambda best: best.value)]
            for best in likely:
                unknowns = torch.as_tensor(best.point.reshape(len(base.problems[k].targets), -1))
                rows = chart.rows(unknowns).numpy()
                if self.columns is not None:
                    rows = self._categorical(base, k, rows)
                residual = base.relative(k, rows)
                if residual < found[k].residual or found[k].stage == "none":
                    found[k] = replace(found[k], rows=rows, residual=residual, stage=stage)
            found[k] = replace(found[k], evaluations=spent)

    def _categorical(self, base: Matching, k: int, rows: Array) -> Array:
        """Categories at their likeliest values, the continuous columns fitted again to the message."""
        assert self.columns is not None
        rounded = self.columns.rounded(rows)
        taken = {column for group in self.columns.groups for column in group}
        free = [column for column in range(self.features) if column not in taken]
        if not free:
            return rounded
        chart = Continuous(rounded, free)
        start = chart.unknowns(rounded).reshape(-1)
        matching = Matching(self.network, self.simulation, [base.problems[k]], [0], chart, base.prior)
        best = drive([lbfgs(start, self.effort.history)], start[None], matching, self.effort.evaluations // 4, 0.0)[0]
        return np.asarray(chart.rows(torch.as_tensor(best.point.reshape(len(rounded), -1))).numpy())


def _pairs(targets: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Places i > j whose targets differ."""
    return ((i, j) for i in range(len(targets)) for j in range(i) if not torch.equal(targets[i], targets[j]))

"""LoSAC, a reading: whom FedADMM's server counts in (82) before every client has taken part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.ledger.ledger import Context, Experiment, Findings, Line
from benchmarks.ledger.losac_runs import PAPER, run
from securefed._public import Public
from securefed._tensors import Array, Tensors
from securefed.algorithms._optimization import CompositeFedADMM
from securefed.algorithms._optimization.local_steps import Memory
from securefed.algorithms._optimization.method import ModelServer
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._optimization.proximal import L1
from securefed.datasets._base import Dataset
from securefed.datasets._images import digits as load_digits
from securefed.problems import SoftmaxRegression

RUNS, LOOKS, ROUNDS = 10, 12, 60
CLIENTS, COHORT = 100, 10
GOAL = 0.95
"""Share of the descent from f(Z^0) to the lowest objective known whose round is counted; fixed before the runs."""
WHERE = "Appendix E, (82)"


@dataclass(frozen=True, kw_only=True)
class AllClientsFedADMM(CompositeFedADMM):
    """FedADMM whose server counts all N clients from the start, with X_i^0 = Z^0 = 0 and pi_i^0 = 0, so v_i^0 = 0."""

    def memory(self, model: Model) -> Memory:
        """Return X_i = 0, pi_i = 0, and 1: the client does not read X_i off the broadcast."""
        point, dual, joined = super().memory(model)
        return point, dual, joined + 1.0

    def start(self, public: Public, rng: np.random.Generator) -> ModelServer:
        """Return the server's state with every client counted."""
        server = super().start(public, rng)
        assert not server.vectors["x"].any()  # else v_i^0 = rho Z^0 would have to enter the sum
        server.vectors["heard"] = np.ones(public.clients)
        return server


READINGS: dict[str, type[CompositeFedADMM]] = {
    "ours: the clients heard so far": CompositeFedADMM,
    "the paper's: all N from the start": AllClientsFedADMM,
}


PROBLEM, REGULARISER = SoftmaxRegression(l2=0.01), L1(0.5)


@dataclass(frozen=True)
class Setting:
    """Clients by seed, and the step sizes of FedADMM."""

    name: str
    clients: Callable[[int], Sequence[Dataset]]
    rate: float
    rho: float


def digits(seed: int, shuffled: bool) -> Sequence[Dataset]:
    """Digits over 100 clients, sorted by class or shuffled; the seed draws which client holds what."""
    source, rng = load_digits().data, np.random.default_rng(seed)
    order = rng.permutation(source.rows) if shuffled else np.argsort(source.labels(), kind="stable")
    parts = np.array_split(order, CLIENTS)
    return [source.take(parts[k]) for k in rng.permutation(CLIENTS)]


SORTED = Setting("digits sorted by class, rho 2", partial(digits, shuffled=False), 0.2, 2.0)
SHUFFLED = Setting("digits shuffled, rho 5", partial(digits, shuffled=True), 0.05, 5.0)


def objective(clients: Sequence[Dataset], model: Tensors) -> float:
    """Return sum_i f_i(Z) + Psi(Z), f_i the sum of client i's losses."""
    losses = sum(data.rows * PROBLEM.loss(model, data.x, PROBLEM.targets(data)) for data in clients)
    layout = Model(PROBLEM, Public.of(clients)).layout
    return float(losses + REGULARISER.value(layout.flatten(model), layout))


def descended(
    setting: Setting, kind: type[CompositeFedADMM], clients: Sequence[Dataset], seed: int, rounds: int, cohort: int
) -> tuple[Array, Array]:
    """Return the rounds looked at and the objective at each."""
    at: list[int] = []
    found: list[float] = []

    def look(number: int, model: Tensors) -> bool:
        at.append(number)
        found.append(objective(clients, model))
        return False

    method = kind(problem=PROBLEM, regulariser=REGULARISER, learning_rate=setting.rate, rho=setting.rho, local_steps=1)
    run(method, clients, look, rounds=rounds, every=max(1, rounds // LOOKS), seed=seed, cohort=cohort)
    return np.array(at), np.array(found)


@dataclass(frozen=True)
class Ends:
    """Outcome of a run: the round of the goal, what is left at the end, and the highest objective after a round.

    The last two are over the descent from f(Z^0) to the lowest objective known.
    """

    reached: float
    left: float
    highest: float

    @classmethod
    def of(cls, at: Array, found: Array, first: float, lowest: float, rounds: int) -> Ends:
        """Return the ends of a run whose objectives are `found` after the rounds `at`."""
        left = (found - lowest) / (first - lowest)
        goal = np.flatnonzero(left <= 1 - GOAL)
        return cls(float(at[goal[0]]) if len(goal) else float(rounds), float(left[-1]), float(left.max()))


def reading(setting: Setting, context: Context) -> Findings:
    """Rounds to the goal and final objectives of both readings, on the same seeds."""
    rounds = ROUNDS // 10 if context.quick else ROUNDS
    seeds = [1000 * context.seeds[0] + k for k in range(2 if context.quick else RUNS)]
    runs: dict[str, list[tuple[Array, Array]]] = {name: [] for name in READINGS}
    for seed in seeds:
        context.progress(f"seed {seed}")
        for name, kind in READINGS.items():
            runs[name].append(descended(setting, kind, setting.clients(seed), seed, rounds, COHORT))
    everyone = setting.clients(seeds[0])  # the pooled problem, and so its optimum, is the same for every seed
    _, full = descended(setting, CompositeFedADMM, everyone, seeds[0], rounds, CLIENTS)
    layout = Model(PROBLEM, Public.of(everyone)).layout
    first = objective(everyone, layout.unflatten(np.zeros(layout.size)))
    lowest = min(float(found.min()) for found in (full, *(f for name in runs for _, f in runs[name])))
    words = (
        f"{setting.name}, {CLIENTS} clients, {COHORT} a round; softmax regression with l2 .01 and L1(.5); eta "
        f"{setting.rate:g}, T = 1, {rounds} rounds; the descent: from f(Z^0) to the lowest objective of any of these "
        f"runs and of one with all clients in every round"
    )
    lines: list[Line] = []
    for name, found in runs.items():
        ends = [Ends.of(*one, first, lowest, rounds) for one in found]
        for quantity, values in (
            (f"rounds to {GOAL:g} of the descent, {rounds} at most", [one.reached for one in ends]),
            ("part of the descent left at the end", [one.left for one in ends]),
            ("highest objective after a round above the lowest, over the descent", [one.highest for one in ends]),
        ):
            about = f"{quantity}, {name}"
            lines.append(Line(f"{WHERE}, {setting.name}", about, words, None, tuple(values), (None, None)))
    return Findings(tuple(lines))


TITLE = "A reading: whom FedADMM counts in (82)"
EXPERIMENTS = (
    Experiment("losac/counted-sorted", PAPER, f"{TITLE}, {SORTED.name}", partial(reading, SORTED), 0.7),
    Experiment("losac/counted-shuffled", PAPER, f"{TITLE}, {SHUFFLED.name}", partial(reading, SHUFFLED), 0.7),
)

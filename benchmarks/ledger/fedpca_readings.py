"""FedPCA, a reading: where a client starts that first takes part in a late round, beside the paper's start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

import numpy as np

from benchmarks.ledger.fedpca import LAST, PAPER, traffic, trained
from benchmarks.ledger.ledger import Context, Experiment, Findings, Line
from securefed._public import Public
from securefed._tensors import Tensors
from securefed.algorithms._pca import FedPE, FedPG, PrincipalComponents, centralised, reconstruction_loss
from securefed.algorithms._pca.consensus import ConsensusClient, ConsensusPCA
from securefed.algorithms._pca.operators import off, orth, random_basis
from securefed.datasets._base import Dataset
from securefed.datasets._images import digits as load_digits
from securefed.datasets._intrusion import unsw_nb15

RUNS, ROUNDS = 10, 80
LOOKS = 16
GOAL = 1.05
"""Training loss over the optimum whose round is counted; fixed before the runs."""
WHERE = "Algorithms 1 and 2, line 1"
WORDS = "'Randomly initialize Z^0 and U_i^0, for all i'"


class OwnStart:
    """Mixed into FedPG and FedPE: every client has its own random U_i^0 from the start, as line 1 reads."""

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> ConsensusClient:
        """Return a client's state with a random basis."""
        state: ConsensusClient = super().enroll(data, public, rng)  # type: ignore[misc]
        return replace(state, basis=random_basis(public.features, self.rank, rng))  # type: ignore[attr-defined]


class FedPGOwn(OwnStart, FedPG):
    """FedPG whose clients start at random bases of their own."""


class FedPEOwn(OwnStart, FedPE):
    """FedPE whose clients start at random bases of their own."""


OURS, THEIRS = "ours: orth(Z) of its first round", "the paper's: random, one for each client"
Starts = Mapping[str, type[ConsensusPCA]]
PG: Starts = {OURS: FedPG, THEIRS: FedPGOwn}
PE: Starts = {OURS: FedPE, THEIRS: FedPEOwn}


@dataclass(frozen=True)
class Setting:
    """Data, rank and penalty; a tenth of the clients takes part in a round."""

    name: str
    words: str
    clients: Callable[[], Sequence[Dataset]]
    rank: int
    rho: float


def digits() -> Sequence[Dataset]:
    """Centred digits, 50 clients sorted by class."""
    source = load_digits().data
    x = source.x - source.x.mean(axis=0)
    order = np.argsort(source.labels(), kind="stable")
    return [Dataset(x[part]) for part in np.array_split(order, 50)]


DIGITS = Setting("digits", "digits, centred, 50 clients sorted by class", digits, 3, 8.0)
UNSW = Setting("UNSW-NB15", "UNSW-NB15, 100 clients sorted by ct_srv_src", lambda: traffic(unsw_nb15).clients, 2, 1.0)


@dataclass(frozen=True)
class Ends:
    """Outcome of one run: means over its last looks, and the first look at the goal."""

    loss: float
    captured: float
    error: float
    reached: float


def measured(
    method: ConsensusPCA, clients: Sequence[Dataset], best: PrincipalComponents, seed: int, rounds: int
) -> Ends:
    """Run with a tenth of the clients a round and look at it 16 times."""
    at: list[int] = []
    found: list[tuple[float, float, float]] = []

    def look(done: int, output: Tensors) -> None:
        basis = output["basis"]
        loss = reconstruction_loss(basis, clients, normalise=True)
        at.append(done)
        found.append(
            (loss / best.loss, (best.total - loss) / best.captured, float(np.linalg.norm(off(best.basis, orth(basis)))))
        )

    every = max(1, rounds // LOOKS)
    trained(method, clients, seed, rounds, every=every, cohort=len(clients) // 10, look=look)
    reached = next((done for done, one in zip(at, found, strict=True) if one[0] <= GOAL), rounds)
    loss, captured, error = (mean(column) for column in zip(*found[-LAST:], strict=True))
    return Ends(loss, captured, error, float(reached))


def reading(setting: Setting, kind: str, starts: Starts, step: float, context: Context) -> Findings:
    """Losses, subspaces and rounds to the goal of both starts, on the same seeds."""
    clients = setting.clients()
    best = centralised(clients, setting.rank, normalise=True)
    rounds = ROUNDS // 10 if context.quick else ROUNDS
    seeds = [1000 * context.seeds[0] + k for k in range(2 if context.quick else RUNS)]
    words = (
        f"{setting.words}, {len(clients) // 10} a round, rank {setting.rank}, rho {setting.rho:g}, eta "
        f"{step:g}, 10 local steps, {rounds} rounds; means of the last {LAST} of {LOOKS} looks; the "
        f"paper: {WORDS}"
    )
    lines: list[Line] = []
    for name, start in starts.items():
        context.progress(name)
        parameters = {"rank": setting.rank, "rho": setting.rho, "step_size": step}
        method = start(local_steps=10, tolerance=0.0, **parameters)
        ends = [measured(method, clients, best, seed, rounds) for seed in seeds]
        lines += [
            Line(f"{WHERE}, {setting.name}", f"{label}, {kind}, {name}", words, None, values, (None, None))
            for label, values in (
                ("training loss / optimum", tuple(one.loss for one in ends)),
                ("captured variance / optimum", tuple(one.captured for one in ends)),
                ("distance of subspaces", tuple(one.error for one in ends)),
                (f"rounds to {GOAL:g} of the optimum, {rounds} at most", tuple(one.reached for one in ends)),
            )
        ]
    return Findings(tuple(lines))


TITLE = "A reading: where a client starts that comes late,"
EXPERIMENTS = (
    Experiment(
        "fedpca/start-fedpg-digits", PAPER, f"{TITLE} fedpg, digits", partial(reading, DIGITS, "FedPG", PG, 0.05), 0.5
    ),
    Experiment(
        "fedpca/start-fedpe-digits", PAPER, f"{TITLE} fedpe, digits", partial(reading, DIGITS, "FedPE", PE, 0.025), 0.5
    ),
    Experiment(
        "fedpca/start-fedpg-unsw", PAPER, f"{TITLE} fedpg, UNSW-NB15", partial(reading, UNSW, "FedPG", PG, 0.003), 0.5
    ),
    Experiment(
        "fedpca/start-fedpe-unsw", PAPER, f"{TITLE} fedpe, UNSW-NB15", partial(reading, UNSW, "FedPE", PE, 0.001), 0.5
    ),
)

"""FedPCA, Fig. 4(a, b): what the penalty rho does to FedPG's detection on both sets of traffic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.ledger.fedpca import COHORT, LAST, PAPER, RANK, ROWS, STEPPING, TITLES, Traffic, traffic, trained
from benchmarks.ledger.ledger import Context, Curve, Experiment, Findings, Line
from securefed._tensors import Tensors
from securefed.algorithms._pca import FedPG
from securefed.datasets._intrusion import ton_iot, unsw_nb15
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.detection import projection

PENALTIES = {0.1: 0.003, 1.0: 0.003, 10.0: 0.003, 100.0: 0.002}
"""eta by rho: eta (2 lambda_1 + rho) < about 1, where a client's lambda_1 is up to 139 on UNSW-NB15."""
ROUNDS = 400


def area(data: Traffic, rho: float, seed: int, rounds: int) -> float:
    """Return FedPG's AUC, the mean of the last evaluations of one run."""
    found: list[float] = []
    every = max(1, rounds // 20)

    def look(done: int, output: Tensors) -> None:
        if done > rounds - LAST * every:
            found.append(data.measure(projection(output["basis"])).auc_roc)

    method = FedPG(rank=RANK, rho=rho, step_size=PENALTIES[rho], **STEPPING)
    trained(method, data.clients, seed, rounds, every=every, cohort=COHORT, look=look)
    return float(np.mean(found))


def penalties(load: Callable[[], LoadedDataset]) -> Callable[[Context], Findings]:
    """Return the experiment on one set."""

    def run(context: Context) -> Findings:
        data, rounds = traffic(load), ROUNDS // 10 if context.quick else ROUNDS
        areas: dict[float, float] = {}
        for rho in PENALTIES:  # one seed: the paper prints no figure of this sweep
            areas[rho] = area(data, rho, context.seeds[0], rounds)
            context.progress(f"rho {rho:g}: {areas[rho]:.3f}")
        where = f"Fig. 4(a,b), {TITLES[data.name]}"
        about = (
            f"{data.split}, {COHORT} a round, rank {RANK}, 10 local steps, eta "
            f"{', '.join(f'{eta:g}' for eta in PENALTIES.values())}, {rounds} rounds, mean of the last {LAST} of 20 "
            "evaluations; one seed"
        )
        lines = [
            Line(where, f"AUC, FedPG, rho {rho:g}", about, None, (value,), (None, None)) for rho, value in areas.items()
        ]
        lines.append(
            Line(
                where,
                "AUC at the best rho less that at rho 1, to which the paper sets all methods",
                about,
                None,
                (max(areas.values()) - areas[1.0],),
                (None, 0.04),
                stated=False,
                evidence=ROWS,
            )
        )
        curve = Curve(where, "FedPG", tuple(areas), tuple(areas.values()), "rho", "AUC")
        return Findings(tuple(lines), (curve,))

    return run


EXPERIMENTS = (
    Experiment("fedpca/rho-unsw", PAPER, "Fig. 4(a): rho, UNSW-NB15", penalties(unsw_nb15), 0.5),
    Experiment("fedpca/rho-ton", PAPER, "Fig. 4(b): rho, TON-IoT, 22 features", penalties(ton_iot), 0.5),
)

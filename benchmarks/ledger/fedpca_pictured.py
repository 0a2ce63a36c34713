"""FedPCA, Fig. 9: reconstruction of traffic in three features, as a ratio of the errors of attacks and normal rows."""

from __future__ import annotations

import numpy as np

from benchmarks.ledger.fedpca import COHORT, METHODS, PAPER, RANK, ROWS, SELF, Traffic, traffic, trained
from benchmarks.ledger.ledger import Context, Findings, Line, at_night
from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed._tensors import Tensors
from securefed.algorithms._pca import SelfLearningPCA
from securefed.datasets._intrusion import unsw_nb15
from securefed.detection import Reconstruct, projection

FEATURES = ("dur", "stcpb", "sinpkt")
"""Features of the picture: duration, sequence number, time between packets."""


def ratio(reconstruct: Reconstruct, data: Traffic, columns: list[int]) -> float:
    """Return the mean squared error of the attacks over that of the normal rows, in the features of the picture."""
    errors = np.sum((reconstruct(data.test.x) - data.test.x)[:, columns] ** 2, axis=1)
    attack = data.test.labels() > 0
    return float(errors[attack].mean() / errors[~attack].mean())


def pictured(context: Context) -> Findings:
    """Return the ratios of the three methods of the picture, and FedPG's over its rivals'; one seed."""
    source, data, seed = unsw_nb15(), traffic(unsw_nb15), context.seeds[0]
    columns = [source.features.index(name) for name in FEATURES]
    own = Federation(SelfLearningPCA(rank=RANK), data.clients, options=RunOptions(keep_transcript=False)).run(1)
    found = {SELF: float(np.mean([ratio(projection(one["basis"]), data, columns) for one in own.personal.values()]))}
    for name in ("FedAE", "FedPG"):
        _, make, setting, rounds = METHODS[name]
        context.progress(name)
        method = make(**setting)
        rounds = rounds // 10 if context.quick else rounds
        output: Tensors = trained(method, data.clients, seed, rounds, every=rounds, cohort=COHORT).output
        if name == "FedPG":
            found[name] = ratio(projection(output["basis"]), data, columns)
        else:
            found[name] = ratio(lambda x, m=method, o=output: m.problem.reconstruct(o, x), data, columns)
    about = f"{data.split}, z-scores, features {', '.join(FEATURES)}, settings of Table I; one seed"
    words = "squared error of attacks over that of normal rows"
    lines = [
        Line(
            "Fig. 9, UNSW-NB15",
            f"{words}, {name}"
            + (" ('minimal' for regular data, 'substantial' for anomalies)" if name == "FedPG" else ""),
            about,
            None,
            (value,),
            (2.0, None) if name == "FedPG" else (None, None),
            stated=False,
            evidence=f"the paper shows a picture and reads it in words, to which a factor of two is put here; {ROWS}",
        )
        for name, value in found.items()
    ]
    return Findings(tuple(lines))


EXPERIMENTS = (at_night("fedpca/fig9", PAPER, "Fig. 9: traffic reconstructed", pictured, 0.5),)

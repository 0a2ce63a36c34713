"""FLAME with networks. Its Fashion-MNIST and Medical-MNIST are not at hand: its MLP and CNN on MNIST, cut down.

The paper prints nothing for MNIST here. What it claims of the networks is asked instead: the personal models are ahead
of the global one, and FLAME reaches a level of the global model in fewer rounds than FedAvg (Table III).
"""

from __future__ import annotations

from benchmarks.ledger.flame import ANCHOR, DECAY, FEW, LOCAL, PAPER, SPLIT, Trace, digits, fedavg, flame, trace
from benchmarks.ledger.ledger import Context, Experiment, Findings, Line
from securefed.problems._convolutional import ConvolutionalNetwork
from securefed.problems._dense import DenseNetwork

MLP_ROWS, CNN_ROWS = 14_000, 2_000
SHORTENED = f"{ANCHOR}; MNIST in place of the paper's sets, fewer rows and rounds: both tables would take hours here"


def mlp(context: Context) -> Findings:
    """FLAME and FedAvg with the MLP of Table I, 79,510 parameters; one seed."""
    rounds, seed, level = (2 if context.quick else 60), context.seeds[0], 80.0
    problem = DenseNetwork(hidden=(100,), start="uniform", l2=DECAY)
    clients = digits(50, seed, FEW if context.quick else MLP_ROWS)
    runs = {
        name: trace(make(problem), clients, seed, rounds, context.progress)
        for name, make in (("FLAME", flame), ("FedAvg", fedavg))
    }
    setting = f"MNIST, {MLP_ROWS} rows, two label shards a client; MLP, 50 clients, {LOCAL}; {SPLIT}; one seed"
    ours, theirs = runs["FLAME"], runs["FedAvg"]
    where = "Tables II, III, MLP on MNIST"
    return Findings(
        (
            _ahead(where, setting, ours),
            Line(
                where,
                f"rounds to {level:g} %, FedAvg over FLAME, {rounds} at most (on Fashion-MNIST 56 / 28)",
                setting,
                None,
                (theirs.first(level) / ours.first(level),),
                (1.0, None),
                stated=False,
                evidence=SHORTENED,
            ),
            *(_best(where, name, setting, run) for name, run in runs.items()),
        ),
        tuple(curve for name, run in runs.items() for curve in run.curves("Fig. 3, MLP on MNIST", name)),
    )


def cnn(context: Context) -> Findings:
    """FLAME with the CNN of Table I on pictures of 28x28; one seed, 20 clients."""
    rounds, seed = (1 if context.quick else 12), context.seeds[0]
    method = flame(ConvolutionalNetwork(l2=DECAY), batch_size=20)
    run = trace(method, digits(20, seed, CNN_ROWS // 4 if context.quick else CNN_ROWS), seed, rounds, context.progress)
    setting = f"MNIST, {CNN_ROWS} rows, two label shards a client, 20 clients, CNN, batches of 20; {SPLIT}; one seed"
    where = "Table II, CNN on MNIST"
    lines = (_ahead(where, setting, run), _best(where, "FLAME", setting, run))
    return Findings(lines, run.curves("Fig. 3, CNN on MNIST", "FLAME"))


def _best(where: str, name: str, setting: str, run: Trace) -> Line:
    quantity = f"{name} global model, best of {len(run.shared)} rounds"
    return Line(where, quantity, setting, None, (max(run.shared),), (None, None), unit="%")


def _ahead(where: str, setting: str, run: Trace) -> Line:
    return Line(
        where,
        f"personal models ahead of the global one, best of {len(run.shared)} rounds each, percentage points",
        setting,
        None,
        (max(run.personal) - max(run.shared),),
        (0.0, None),
        stated=False,
        unit="points",
        evidence=SHORTENED,
    )


EXPERIMENTS = (
    Experiment("flame/mlp", PAPER, "Tables II, III: MLP on MNIST", mlp, 1.6),
    Experiment("flame/cnn", PAPER, "Table II: CNN on MNIST", cnn, 1.5),
)

"""View algebra, what sums determine, and auditors of differential privacy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.pages.references.figures import Cell, Figure, Measurement
from benchmarks.pages.references.scenes import CLIENTS, digits, scene
from benchmarks.rows import RESULTS
from securefed._auditing.differential_privacy.noise_audit import audit_noise
from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import RoundOutcome
from securefed.algorithms._graph import PPGL
from securefed.algorithms._pca import FAPS, SSI, FedPG
from securefed.attacks import views
from securefed.attacks._base import RoundView, Target
from securefed.attacks._distances.graph_simulation import GraphSimulation
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.datasets._base import Dataset
from securefed.datasets._graphs import related_graphs, smooth_signals
from securefed.defenses._base import Plan, defenses
from securefed.defenses._chain import chain
from securefed.defenses._differential_privacy import clip, gaussian
from securefed.defenses._differential_privacy.clip import Clip
from securefed.defenses._differential_privacy.gaussian import CentralGaussian
from securefed.defenses._secure_aggregation import secure_aggregation

DELTA = 1e-5
NOISE = 2.0
MEMBERS = (2, 3, 4, 5)
FEATURES, RANK, ROUNDS = 6, 2, 40
_STEP, _FULL = 1e-5, 1e-10
"""Of the differences, and of a singular value that counts: blind directions end below 1e-11, the others above 1e-9."""


def algebra(defense: str, seed: int) -> Cell:
    """Sum less colluders against what the victim sent, relative to the largest message, the worst of five rounds."""
    run = scene(SSI(5, tolerance=0.0), digits(20, seed), 5, seed, defense=defenses.make(defense))
    transcript, worst, largest = run.result.transcript, 0.0, 0.0
    others = set(range(CLIENTS)) - {run.client}
    records = [record for record in transcript.records if record.kind == "train"]
    for seen, record in zip(views.collusion(transcript, run.client, others).rounds, records, strict=True):
        sent = views.decode(transcript.contributions[record.round, run.client], record.step)
        worst = max(worst, *(float(np.abs(seen.message[name] - sent[name]).max()) for name in sent))
        largest = max(largest, *(float(np.abs(value).max()) for value in sent.values()))
    return {"error": worst / largest}


def gram_directions(algorithm: Any, blind: int, seed: int) -> Cell:
    """Directions of (S_1, .., S_N) that sums over N = 2..5 clients leave open, all N together."""
    missing = 0
    for members in MEMBERS:
        clients = [Dataset(data.x / np.sqrt(data.rows)) for data in digits(FEATURES, seed)[:members]]
        run = scene(algorithm, clients, ROUNDS, seed)
        rounds = views.sum_only(run.result.transcript, None).rounds
        jacobian = np.hstack([_by_gram(algorithm, data, run.target.public, rounds, seed) for data in clients])
        missing += jacobian.shape[1] - members * blind - _rank(jacobian)
    return {"error": float(missing)}


def _by_gram(algorithm: Any, data: Dataset, public: Public, rounds: Sequence[RoundView], seed: int) -> Array:
    """Derivative of all that a client sends by the coordinates of its Gram matrix, by central differences."""
    coordinates = SymmetricMatrices.of(FEATURES)
    S = data.x.T @ data.x
    x, step = coordinates.coordinates(S), _STEP * float(np.linalg.norm(S))

    def sent(values: Array) -> Array:
        factor = np.linalg.cholesky(coordinates.matrix(values)).T
        rng = np.random.default_rng(seed)
        client, out = algorithm.enroll(Dataset(factor), public, rng), []
        for seen in rounds:
            tentative, message = algorithm.contribute(client, seen.broadcast, rng)
            client = algorithm.commit(tentative, RoundOutcome(True, seen.followed))
            out += [np.ravel(message[name]) for name in sorted(message)]
        return np.concatenate(out)

    columns = [(sent(x + step * e) - sent(x - step * e)) / (2 * step) for e in np.eye(coordinates.count)]
    return np.stack(columns, axis=1)


def graph_directions(seed: int) -> Cell:
    """The same of distances between 8 vertices, PPGL with K = 1; the Jacobian that the attack fits with."""
    missing = 0
    for members in MEMBERS:
        rng, method = np.random.default_rng(seed), PPGL(local_steps=1)
        graphs = related_graphs(members, 0.5, rng, vertices=8).graphs
        clients = [smooth_signals(one, 100, rng) for one in graphs]
        federation = Federation(method, clients, seed=seed)
        observed = views.sum_only(federation.run(ROUNDS).transcript, None)
        i, j = np.triu_indices(8, 1)
        truth = np.stack([((data.x[:, i] - data.x[:, j]) ** 2).mean(axis=0) for data in clients])
        jacobian = GraphSimulation.of(observed, Target(method, federation.public)).residual_and_jacobian(truth)[1]
        missing += jacobian.shape[1] - _rank(jacobian)
    return {"error": float(missing)}


def _rank(jacobian: Array) -> int:
    sizes = np.linalg.norm(jacobian, axis=0)
    values = np.linalg.svd(jacobian / np.where(sizes > 0, sizes, 1.0), compute_uv=False)
    return int(np.sum(values > _FULL * values[0]))


def coverage(index: int) -> Cell:
    """One of the auditors' bounds at one epsilon, as `benchmarks.peers.auditors` left it; 200 games each."""
    stored = json.loads((RESULTS / "auditors.json").read_text())["rows"]
    covered = [row["ours"] for row in stored if row["quantity"].startswith("coverage")]
    return {"error": 1 - covered[index], "covered": covered[index]}


class Weak(CentralGaussian):
    """A planted bug: a tenth of the noise that the plan counts."""

    def release(self, total: Tensors, plan: Plan) -> Tensors:
        assert plan.privacy is not None
        quieter = replace(plan.privacy, noise_multiplier=plan.privacy.noise_multiplier / 10)
        return super().release(total, replace(plan, privacy=quieter))


class Unclipped(Clip):
    """A planted bug: plans a clip and does not do it."""

    def encode(self, contribution: Tensors, plan: Plan) -> Tensors:
        return contribution


def flagged(make: Callable[[], Any], _seed: int) -> Cell:
    """Whether the audit of noise flags it; the noise comes from the operating system."""
    found = audit_noise(make(), DELTA, runs=450, confidence=1 - 1e-6)
    return {"error": float(found.flagged), "bound": found.bound}


def _none(value: float) -> bool:
    return value == 0


def _some(value: float) -> bool:
    return value > 0


_SUMS, _DP = "ATTACKS.md, sum only", "ATTACKS.md, differential privacy"
_AUDITS = {
    "noise x .1": lambda: chain(clip(1.0), Weak(NOISE), secure_aggregation()),
    "clip missing": lambda: chain(Unclipped(1.0), gaussian(NOISE)),
    "correct": lambda: chain(clip(1.0), gaussian(NOISE), secure_aggregation()),
}
_COVERAGE = Measurement("privacy/coverage", coverage, 12)
_GAUSSIAN = f"central Gaussian, z = {NOISE:g}, clip 1, delta 1e-5, 450 + 450 exchanges, confidence 1 - 1e-6"


def _ranks(name: str, run: Callable[[int], Cell], setting: str) -> Figure:
    return Figure(
        where=_SUMS,
        claim=f"full-rank Jacobian at N = 2..5: {name}",
        printed="10 of 10",
        better="high",
        setting=f"{setting}; directions left open",
        measurement=Measurement(f"sums/{name}", run),
        counted=_none,
    )


FIGURES = (
    Figure(
        where="ATTACKS.md, views",
        claim="sum less colluders = the victim's message, bit for bit in the ring",
        printed="10 of 10",
        better="high",
        setting="SSI, digits, 5 clients, 4 collude, fixed point; largest difference",
        measurement=Measurement("views/quantise", partial(algebra, "quantise")),
        counted=_none,
    ),
    Figure(
        where="ATTACKS.md, views",
        claim="and in the clear to 1e-12 of the largest message",
        printed="1e-12",
        setting="the same, messages in the clear",
        measurement=Measurement("views/plain", partial(algebra, "plain")),
    ),
    _ranks(
        "FAPS (one inner step)",
        partial(gram_directions, FAPS(RANK, inner_steps=1, adaptive=False, tolerance=0.0), 0),
        f"digits, n = {FEATURES}, p = {RANK}, {ROUNDS} rounds",
    ),
    _ranks(
        "FedPG (mod c I)",
        partial(gram_directions, FedPG(RANK, rho=2.0, step_size=0.1, local_steps=1, normalise=False, tolerance=0.0), 1),
        f"digits, n = {FEATURES}, p = {RANK}, {ROUNDS} rounds, rho = 2, eta = .1",
    ),
    _ranks("PPGL", graph_directions, f"8 vertices, K = 1, {ROUNDS} rounds"),
    Figure(
        where=_DP,
        claim="coverage >= 95 % at known epsilon: Clopper-Pearson, one run, one run f-DP",
        printed="12 of 12",
        better="high",
        setting="epsilon .5, 1, 2, 4 by each of the three, 200 games each; counted are shares of .95 and more",
        measurement=_COVERAGE,
        key="covered",
        counted=lambda value: value >= 0.95,
    ),
    Figure(
        where=_DP,
        claim="a released Gaussian-fit auditor was above the true value in 35 of 40 draws; ours",
        printed=".875",
        setting="the same; share of games above epsilon",
        measurement=_COVERAGE,
        unit="share",
    ),
    *(
        Figure(
            where=_DP,
            claim=f"planted bug flagged: {name}" if name != "correct" else "correct code is not flagged",
            printed="0 of 10" if name == "correct" else "10 of 10",
            better="low" if name == "correct" else "high",
            setting=_GAUSSIAN,
            measurement=Measurement(f"privacy/{name}", partial(flagged, make)),
            counted=_some,
        )
        for name, make in _AUDITS.items()
    ),
)

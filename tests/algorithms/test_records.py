"""What one record changes in a message: below the proved bound, near it where it can be, refused where none is."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed import Algorithm, Dataset, Federation, Public, chain
from securefed import _catalogue as catalogue
from securefed.algorithms import (
    FAPS,
    SSI,
    FedAvg,
    GraphFedAvg,
    GraphFedProx,
    LocalPower,
    SupportsBatches,
    clip_records,
    record_level,
)
from securefed.defenses import (
    PoissonSampling,
    clip,
    discrete_gaussian,
    epsilon_of,
    gaussian,
    records,
    secure_aggregation,
    sensitivity,
    skellam,
)
from securefed.defenses._fixed_point import Quantise
from securefed.errors import ConfigError, DataError, DivergenceError, MalformedError, PlanError
from tests.combinations import first_ones

LINEAR = [SSI(rank=2), SSI(rank=3, stop="kkt"), LocalPower(rank=2, local_steps=(1,))]
GRAPHS = [
    GraphFedAvg(local_steps=1),
    GraphFedProx(local_steps=1, mu=3.0, momentum=0.9),
    GraphFedAvg(local_steps=6, momentum=0.0, zeta=1.0, step_size=0.1),
]


def data(clients=4, rows=9, features=5, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return [Dataset(scale * rng.normal(size=(rows + i, features))) for i in range(clients)]


def message(algorithm, dataset, public, broadcast):
    client = algorithm.enroll(dataset, public, np.random.default_rng(0))
    return algorithm.contribute(client, broadcast, np.random.default_rng(0))[1]


def distance(one, other, names):
    return math.sqrt(sum(float(np.square(one[name] - other[name]).sum()) for name in names))


def broadcast_of(algorithm, public, rng):
    server = algorithm.start(public, rng)
    out = dict(algorithm.broadcast(server))
    if "consensus" in out:
        out["consensus"] = rng.uniform(0, 1, out["consensus"].shape)
    return out


@pytest.mark.parametrize("algorithm", [*LINEAR, *GRAPHS], ids=repr)
@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 40.0]), st.sampled_from([0.5, 2.0]))
def test_a_record_replaced_by_zeros_moves_no_tensor_by_more_than_declared(algorithm, seed, scale, norm):
    rng = np.random.default_rng(seed)
    datasets = data(seed=seed, scale=scale)
    public, private = Public.of(datasets), record_level(algorithm, norm)
    broadcast = broadcast_of(private, public, rng)
    which = int(rng.integers(datasets[-1].rows))
    without = datasets[-1].x.copy()
    without[which] = 0
    full = message(private, datasets[-1], public, broadcast)
    less = message(private, Dataset(without), public, broadcast)
    for spec in private.layout(public):
        assert distance(full, less, [spec.name]) <= spec.sensitivity
        assert np.abs(full[spec.name]).max() <= spec.bound
    assert distance(full, less, full) > 0


@pytest.mark.parametrize("algorithm", LINEAR, ids=repr)
def test_the_bound_of_the_linear_messages_is_met_by_a_record_in_the_subspace(algorithm):
    datasets, norm = data(), 1.5
    public, private = Public.of(datasets), record_level(algorithm, norm)
    broadcast = broadcast_of(private, public, np.random.default_rng(1))
    x = datasets[0].x.copy()
    x[3] = 100 * broadcast["basis"][:, 0]
    without = x.copy()
    without[3] = 0
    moved = [message(private, Dataset(rows), public, broadcast) for rows in (x, without)]
    for spec in private.layout(public):
        assert distance(*moved, [spec.name]) == pytest.approx(spec.sensitivity, rel=1e-6)
        assert spec.sensitivity == pytest.approx(norm**2, rel=1e-6)


def test_the_bound_of_the_graph_messages_is_met_on_two_vertices_and_several_steps_do_not_amplify():
    datasets = data(features=2)
    public, norm = Public.of(datasets), 1.0
    for algorithm, steps in ((GRAPHS[0], 1), (GRAPHS[2], 6)):
        private = record_level(algorithm, norm)
        broadcast = {"consensus": np.array([5.0])}
        x = np.zeros((12, 2))
        x[0] = (1, -1)
        moved = [message(private, Dataset(rows), public, broadcast) for rows in (x, np.zeros((12, 2)))]
        found, (spec,) = distance(*moved, ["graph"]), private.layout(public)
        assert found <= spec.sensitivity
        assert found > (0.999 if steps == 1 else 0.6) * spec.sensitivity  # strong convexity shrinks earlier steps
        assert spec.sensitivity == pytest.approx(steps * algorithm.step_size * 2 * norm**2 / 12, rel=1e-6)


@given(st.integers(0, 10**6), st.sampled_from([1e-300, 1e-3, 1.0, 1e300]), st.sampled_from([1e-200, 1.0, 1e200]))
def test_records_are_clipped_to_the_norm_and_short_ones_kept(seed, norm, scale):
    x = np.random.default_rng(seed).normal(size=(6, 4)) * scale
    out = clip_records(Dataset(x), norm).x
    for row, before in zip(out, x, strict=True):
        length = math.hypot(*before)
        assert math.hypot(*row) <= norm
        if length <= norm * (1 - 1e-12):
            np.testing.assert_array_equal(row, before)
        elif norm > 1e-290:
            assert math.hypot(*row) >= norm * (1 - 1e-13)
    zeros = Dataset(np.zeros((2, 3)))
    np.testing.assert_array_equal(clip_records(zeros, 1.0).x, zeros.x)


def test_algorithms_without_a_proof_are_refused_by_name():
    derived = {"pca/ssi", "pca/localpower", "graph/fedavg", "graph/fedprox"}
    assert derived < set(catalogue.algorithms.names)
    for name in set(catalogue.algorithms.names) - derived:
        algorithm = catalogue.algorithms.make(name, **({"rank": 2} if name.startswith("pca/") else {}))
        with pytest.raises(ConfigError, match=f"{type(algorithm).__name__} no bound on what one record changes"):
            record_level(algorithm, 1.0)
    with pytest.raises(ConfigError, match="not linear in a record"):
        record_level(LocalPower(rank=2), 1.0)
    with pytest.raises(ConfigError, match="momentum"):
        record_level(GraphFedAvg(local_steps=2), 1.0)
    with pytest.raises(ConfigError, match="no bound"):
        record_level(record_level(SSI(rank=2), 1.0), 1.0)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="norm"):
            record_level(SSI(rank=2), bad)


def test_several_graph_steps_beyond_the_contraction_are_refused_with_the_largest_that_are_not():
    public = Public.of(data())
    steep = record_level(GraphFedAvg(local_steps=3, momentum=0.0), 1.0)
    with pytest.raises(ConfigError, match="step_size must be at most"):
        steep.layout(public)
    problem = steep.algorithm.problem(public)
    within = replace(steep.algorithm, step_size=1.999 / problem.smoothness(0.0))
    assert record_level(within, 1.0).layout(public).specs[0].sensitivity > 0


def test_a_broadcast_that_would_stretch_a_record_is_refused():
    datasets = data()
    public, private = Public.of(datasets), record_level(SSI(rank=2), 1.0)
    honest = broadcast_of(private, public, np.random.default_rng(0))
    assert message(private, datasets[0], public, honest)
    for wrong in (2 * honest["basis"], honest["basis"] * np.nan, honest["basis"] + 1e-9):
        with pytest.raises(MalformedError, match="longer than orthonormal"):
            message(private, datasets[0], public, {"basis": wrong})
    graph = record_level(GRAPHS[0], 1.0)
    with pytest.raises(MalformedError, match="negative weights"):
        message(graph, datasets[0], public, {"consensus": np.full(10, -1e-9)})
    clients = [graph.enroll(d, public, np.random.default_rng(0)) for d in datasets]
    rngs = [np.random.default_rng(0)] * len(clients)
    refused = graph.contribute_together(clients, {"consensus": np.full(10, -1.0)}, rngs)
    assert [type(one) for one in refused] == [MalformedError] * 4


@pytest.mark.parametrize("algorithm", GRAPHS[:2], ids=repr)
def test_no_record_decides_whether_a_client_reports_divergence(algorithm):
    """A step from degrees near 0 goes far: without the wrapper it is refused with a record, and not without it."""
    rng, norm = np.random.default_rng(0), 3.0
    x = rng.normal(size=(10, 5))
    x *= norm / np.linalg.norm(x, axis=1, keepdims=True)
    without = x.copy()
    without[0] = 0
    sides = Dataset(x), Dataset(without)
    public, private = Public.of([sides[0]] * 3, feature_bound=norm), record_level(algorithm, norm)
    (spec,) = private.layout(public)
    diverged = set()
    for weight in np.geomspace(1e-4, 1e-3, 200):
        broadcast = {"consensus": np.full(10, weight)}
        for k, side in enumerate(sides):
            try:
                message(algorithm, side, public, broadcast)
            except DivergenceError:
                diverged.add((k, weight))
        one, other = (message(private, side, public, broadcast) for side in sides)
        assert distance(one, other, ["graph"]) <= spec.sensitivity
    assert any(((0, weight) in diverged) != ((1, weight) in diverged) for _, weight in diverged)
    clients = [private.enroll(side, public, rng) for side in sides]
    together = private.contribute_together(clients, {"consensus": np.full(10, 1e-4)}, [rng, rng])
    assert distance(together[0][1], together[1][1], ["graph"]) <= spec.sensitivity


def test_it_is_the_algorithm_otherwise():
    private = record_level(GRAPHS[0], 2.0)
    assert isinstance(private, Algorithm)
    assert isinstance(private, SupportsBatches)
    assert not isinstance(record_level(SSI(rank=2), 2.0), SupportsBatches)
    near = [Dataset(np.clip(d.x, -0.2, 0.2)) for d in data()]  # no record is longer than 2
    for algorithm in (SSI(rank=2, tolerance=0.0), GRAPHS[0]):
        plain, wrapped = (Federation(a, near, seed=1).run(5) for a in (algorithm, record_level(algorithm, 2.0)))
        for name, value in plain.output.items():
            np.testing.assert_array_equal(value, wrapped.output[name])


# With noise


@pytest.mark.parametrize(
    "links",
    [(), pytest.param((Quantise(32),), marks=pytest.mark.exhaustive), (secure_aggregation(),)],
    ids=["plain", "32 bits", "masked"],
)
def test_central_noise_is_sized_for_a_record_and_accounted_for(links):
    defense = chain(records(), gaussian(2.0), *links)
    datasets = data(features=50)
    federation = Federation(record_level(SSI(rank=2), 1.5), datasets, defense)
    plan = federation.plan
    assert plan.privacy.unit == "record"
    assert plan.privacy.clip == pytest.approx(math.sqrt(2) * 1.5**2, rel=1e-6)
    assert plan.epsilon == tuple((k, epsilon_of(2.0, k)) for k in (1, 10, 30, 100))
    assert plan.privacy.clip < sensitivity(plan) < plan.privacy.clip * 1.001
    words = " ".join(plan.assumptions)
    assert "replacing one record of one client by zeros" in words
    assert "one client's whole contribution" not in words
    result = federation.run(15)
    noise = [r.released["product"] - r.total["product"] for r in result.transcript.records]
    # 15 rounds of 100 entries: standard error 1.8 %
    assert np.std(noise) == pytest.approx(2.0 * sensitivity(plan), rel=0.09)
    assert np.std(noise) != pytest.approx(2.0 * 1.5 * sensitivity(plan), rel=0.09)
    # ... of whole contributions, which no clip touches
    exact = sum(
        (x := clip_records(d, 1.5).x).T @ (x @ result.transcript.records[0].broadcast["basis"]) for d in datasets
    )
    np.testing.assert_allclose(result.transcript.records[0].total["product"], exact, atol=1e-5)


@pytest.mark.parametrize(("ring", "make"), first_ones(product([32, 64], [skellam, discrete_gaussian])))
def test_distributed_noise_is_sized_for_a_record(make, ring):
    algorithm, datasets = record_level(SSI(rank=2, tolerance=0.0), 1.0), data()
    defense = chain(records(), make(3.0, ring=ring), secure_aggregation())
    federation = Federation(algorithm, datasets, defense, seed=2)
    plan = federation.plan
    sizes = defense.transforms[1].sizes(plan)
    assert sizes.honest * sizes.share >= 9.0 * sizes.squares
    moved = math.sqrt(sizes.squares) * sizes.step
    assert plan.privacy.clip < moved < plan.privacy.clip * 1.01  # rounding adds less than a percent
    assert sizes.norm_squared > 100 * sizes.squares  # while contributions may be far longer than what one record moves
    assert dict(plan.epsilon)[1] < dict(chain(clip(1.0), make(2.9), secure_aggregation()).plan(plan.own, 4).epsilon)[1]
    assert any("one record of one client replaced by zeros" in sentence for sentence in plan.assumptions)
    result = federation.run(150)
    errors = []
    for record in result.transcript.records:
        basis = record.broadcast["basis"]
        clipped = [clip_records(d, 1.0).x for d in datasets]
        errors.append(record.released["product"] - sum(x.T @ (x @ basis) for x in clipped))
    planned = math.sqrt(4 * sizes.share) * sizes.step
    assert np.std(errors) == pytest.approx(planned, rel=0.09)
    assert planned == pytest.approx(3.0 * moved * math.sqrt(4 / 3), rel=1e-6)


def test_rounding_by_the_same_uniforms_keeps_neighbours_within_the_sensitivity():
    """The coupling that the record's sensitivity rests on, and that every rounding is accepted, which it needs."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        x, d = rng.normal(0, 1000, 50), rng.normal(0, 3, 50)
        u = rng.uniform(size=50)
        moved = np.floor(x + d + u) - np.floor(x + u)
        assert moved @ moved <= (np.linalg.norm(d) + math.sqrt(50)) ** 2
    layout, noise = record_level(SSI(rank=2), 1.0).layout(Public.of(data())), skellam(1.0)
    plan = chain(records(), noise, secure_aggregation()).plan(layout, 4)
    sizes, longest = noise.sizes(plan), math.hypot(*(spec.bound * math.sqrt(spec.size) for spec in layout))
    assert sizes.norm_squared >= (longest / sizes.step + math.sqrt(plan.layout.size)) ** 2
    assert sizes.squares >= (plan.privacy.clip / sizes.step + math.sqrt(plan.layout.size)) ** 2 - 1


def test_what_is_not_declared_is_refused_and_named():
    for algorithm in (FedAvg(), FAPS(rank=2), SSI(rank=2)):
        with pytest.raises(PlanError, match=r"no bound on what one record changes in .*record_level"):
            clients = [Dataset(d.x, np.arange(d.rows) % 3) for d in data()]
            Federation(algorithm, clients, chain(records(), gaussian(1.0)))
    private = record_level(SSI(rank=2), 1.0)
    with pytest.raises(ConfigError, match="draws cohorts of a fixed size"):
        Federation(private, data(), chain(records(), gaussian(1.0, sampler=PoissonSampling(0.1))))
    with pytest.raises(ConfigError, match="of the same stage"):
        chain(clip(1.0), records())
    with pytest.raises(DataError, match="sensitivity must be positive"):
        replace(private.layout(Public.of(data())).specs[0], sensitivity=0.0)

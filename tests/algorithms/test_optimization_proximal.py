"""Proximal operators against their definition; LoSAC-Prox, SCAFFOLD-Prox and FedADMM on composite problems."""

import numpy as np
import pytest

from securefed import Dataset, Layout, Public, TensorSpec
from securefed.algorithms import L1, CompositeFedADMM, LoSACProx, NoRegulariser, Nuclear, ScaffoldProx
from securefed.errors import ConfigError
from securefed.problems import LogisticRegression
from tests.algorithms.gradients import PROBLEM, Loop, composite_optimum, make_clients, some_drop
from tests.combinations import first_ones

LAYOUT = Layout((TensorSpec("weight", (5, 4)), TensorSpec("bias", (3,))))
EVERY = [NoRegulariser(), L1(0.3), Nuclear(0.7)]


@pytest.mark.parametrize("regulariser", EVERY)
def test_prox_is_the_minimiser_of_its_definition(regulariser) -> None:
    """No point of many, near and far, has a lower Psi(z) + ||z - v||^2 / (2 step)."""
    rng, step = np.random.default_rng(0), 0.8
    v = rng.normal(size=LAYOUT.size)

    def objective(z):
        return regulariser.value(z, LAYOUT) + np.sum((z - v) ** 2, axis=-1) / (2 * step)

    best = regulariser.prox(v, step, LAYOUT)
    near = best + rng.normal(size=(4000, LAYOUT.size)) * 10.0 ** rng.uniform(-5, 0, (4000, 1))
    assert objective(near).min() > objective(best)
    assert (regulariser.weight == 0) == np.array_equal(best, v)


@pytest.mark.parametrize("regulariser", EVERY)
def test_prox_treats_leading_axes_by_themselves_and_is_nonexpansive(regulariser) -> None:
    v = np.random.default_rng(1).normal(size=(2, 3, LAYOUT.size))
    out = regulariser.prox(v, 0.5, LAYOUT)
    for index in np.ndindex(2, 3):
        np.testing.assert_allclose(out[index], regulariser.prox(v[index], 0.5, LAYOUT), atol=1e-14)
    assert np.linalg.norm(out[0, 0] - out[0, 1]) <= np.linalg.norm(v[0, 0] - v[0, 1]) + 1e-14
    assert np.abs(out - v).max() <= 0.5 * regulariser.weight + 1e-14, "an entry moves by at most step * weight"


def test_nuclear_prox_shrinks_singular_values_and_leaves_the_rest_alone() -> None:
    v = np.random.default_rng(2).normal(size=LAYOUT.size)
    out = Nuclear(2.0).prox(v, 0.5, LAYOUT)
    before, after = (np.linalg.svd(part[:20].reshape(5, 4), compute_uv=False) for part in (v, out))
    np.testing.assert_allclose(after, np.maximum(before - 1.0, 0), atol=1e-14)
    assert after[-1] < 1e-14 < after[0]
    np.testing.assert_array_equal(out[20:], v[20:])


def test_prox_keeps_the_precision_it_is_given() -> None:
    v = np.ones(LAYOUT.size, np.float32)
    assert all(regulariser.prox(v, 0.1, LAYOUT).dtype == np.float32 for regulariser in EVERY)


# -------------------------------------------------------------------------------------------- composite problems


@pytest.mark.parametrize(
    ("cohort", "regulariser"), first_ones([(3, L1(0.06)), (3, Nuclear(0.03)), (5, L1(0.06)), (5, Nuclear(0.03))])
)
def test_scaffold_prox_finds_the_composite_optimum_under_drops(cohort: int, regulariser) -> None:
    data = make_clients(5)
    method = ScaffoldProx(problem=PROBLEM, learning_rate=0.15, local_steps=3, regulariser=regulariser)
    loop = Loop(method, data, cohort=cohort, together=True)
    best = composite_optimum(PROBLEM, data, [0.2] * 5, PROBLEM.initial(loop.public, loop.rng), regulariser, step=0.4)
    loop.run(600, some_drop(4, 5))
    np.testing.assert_allclose(loop.x, best, atol=1e-8)
    assert regulariser.value(best, loop.server.model.layout) > 0
    np.testing.assert_allclose(loop.server.vectors["c"], loop.memories() / 5, atol=1e-12)


@pytest.mark.parametrize(
    ("sizes", "regulariser"),
    first_ones([((2, 3), L1(0.8)), ((2, 3), Nuclear(0.4)), ((1, 5), L1(0.8)), ((1, 5), Nuclear(0.4))]),
)
def test_losac_prox_finds_the_composite_optimum_under_drops(sizes, regulariser) -> None:
    """What it minimises is (M/S) sum_i n_i (mean loss) + Psi."""
    blocks, cohort = sizes
    data = [rows.take(np.arange(6)) for rows in make_clients(5)]
    method = LoSACProx(problem=PROBLEM, learning_rate=0.01, local_steps=3, blocks=blocks, regulariser=regulariser)
    loop = Loop(method, data, cohort=cohort, together=True)
    weights = [6.0 * blocks / cohort] * 5
    best = composite_optimum(PROBLEM, data, weights, PROBLEM.initial(loop.public, loop.rng), regulariser, step=0.02)
    loop.run(700, some_drop(3, 5))
    np.testing.assert_allclose(loop.x, best, atol=1e-7)
    assert regulariser.value(best, loop.server.model.layout) > 0
    expected = 5 / cohort * loop.memories()
    np.testing.assert_allclose(loop.server.vectors["phi"], expected, atol=1e-11 * (1 + np.abs(expected).max()))


@pytest.mark.parametrize("regulariser", first_ones([Nuclear(2.0), L1(1.0)]))
def test_fedadmm_finds_the_composite_optimum_and_every_broadcast_is_regular(regulariser) -> None:
    data = make_clients(5)
    method = CompositeFedADMM(
        problem=PROBLEM, learning_rate=0.05, rho=2.0, local_steps=5, dual_steps="last", regulariser=regulariser
    )
    loop = Loop(method, data, together=True)
    weights = [float(rows.rows) for rows in data]
    best = composite_optimum(PROBLEM, data, weights, PROBLEM.initial(loop.public, loop.rng), regulariser, step=0.02)
    loop.run(400)
    np.testing.assert_allclose(loop.x, best, atol=1e-8)


def test_the_optimum_is_sparse_or_of_low_rank_exactly() -> None:
    data = make_clients(5)
    settings = {"problem": PROBLEM, "learning_rate": 0.15, "local_steps": 3}
    sparse = Loop(ScaffoldProx(regulariser=L1(0.06), **settings), data, together=True).run(300).x
    assert 0 < np.sum(np.abs(sparse) < 1e-12) < sparse.size
    low = Loop(ScaffoldProx(regulariser=Nuclear(0.03), **settings), data, together=True).run(300).x
    values = np.linalg.svd(low[:12].reshape(3, 4), compute_uv=False)
    assert values[0] > 0.01
    assert values[-1] < 1e-12


@pytest.mark.parametrize("method", [LoSACProx, ScaffoldProx, CompositeFedADMM])
def test_a_nuclear_norm_without_a_matrix_is_refused(method) -> None:
    data = [Dataset(rows.x, rows.y % 2) for rows in make_clients(2)]
    with pytest.raises(ConfigError, match="needs a matrix among the parameters"):
        method(problem=LogisticRegression(), regulariser=Nuclear(1.0)).layout(Public.of(data))


@pytest.mark.parametrize("make", [L1, Nuclear])
@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_weights_outside_their_domain_are_refused(make, weight: float) -> None:
    with pytest.raises(ConfigError, match="weight must be a positive, finite number"):
        make(weight)

"""LoSAC: its equations, phi = (N/S) sum y under drops and rounding, convergence."""

import numpy as np
import pytest

from securefed import Aggregate, chain
from securefed.algorithms import LoSAC, RoundOutcome
from securefed.defenses._fixed_point import Quantise
from tests.algorithms.gradients import PROBLEM, Loop, make_clients, optimum, some_drop
from tests.combinations import first_ones


def test_losac_local_steps_are_equation_11() -> None:
    data = make_clients(3)
    method = LoSAC(problem=PROBLEM, learning_rate=0.01, local_steps=4, blocks=2)
    loop = Loop(method, data).run(3)
    client, x, phi = loop.clients[1], loop.x, loop.server.vectors["phi"]
    _, sent = method.contribute(client, method.broadcast(loop.server), np.random.default_rng(5))
    drawn = np.random.default_rng(5).integers(2, size=4)
    halves = np.array_split(np.arange(data[1].rows), 2)
    point, control, y = x, phi, list(client.memory)
    for j in drawn:
        g = data[1].rows * client.model.gradient(point, data[1], halves[j])
        point, control, y[j] = point - 0.01 * (control / 3 - y[j] + g), control + g - y[j], g
    np.testing.assert_allclose(client.model.vector("dx", sent), point - x, atol=1e-14)
    np.testing.assert_allclose(client.model.vector("dphi", sent), control - phi, atol=1e-13)


def test_losac_scales_agree_for_one_block() -> None:
    data = make_clients(3)
    one, two = (Loop(LoSAC(problem=PROBLEM, block_scale=scale), data).run(5) for scale in ("printed", "consistent"))
    np.testing.assert_array_equal(one.x, two.x)
    printed, consistent = (
        Loop(LoSAC(problem=PROBLEM, block_scale=scale, blocks=3), data).run(5) for scale in ("printed", "consistent")
    )
    assert np.abs(printed.x - consistent.x).max() > 1e-6


@pytest.mark.parametrize("cohort", [2, 5])
@pytest.mark.parametrize("blocks", [1, 3])
def test_losac_phi_is_the_sum_of_the_stored_gradients_after_every_drop(cohort: int, blocks: int) -> None:
    data = make_clients(5)
    loop = Loop(LoSAC(problem=PROBLEM, learning_rate=0.003, blocks=blocks), data, cohort=cohort)
    for number in range(25):
        loop.run(1, some_drop(number, 5))
        expected = len(data) / cohort * loop.memories()
        np.testing.assert_allclose(loop.server.vectors["phi"], expected, atol=1e-11 * (1 + np.abs(expected).max()))
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize(("cohort", "blocks"), first_ones([(3, 2), (3, 1), (6, 1), (6, 2)]))
def test_losac_converges_to_the_optimum_under_drops(cohort: int, blocks: int) -> None:
    data = make_clients(6, rows=6)
    data = [d.take(np.arange(6)) for d in data]  # equal blocks: `printed` then has the same optimum
    method = LoSAC(problem=PROBLEM, learning_rate=0.02, local_steps=4, blocks=blocks)
    loop = Loop(method, data, cohort=cohort, together=True)
    best, slope = optimum(PROBLEM, data, [6.0] * 6, PROBLEM.initial(loop.public, loop.rng))
    loop.run(1000, some_drop(3, 6))
    assert slope(loop.x) < 1e-9
    np.testing.assert_allclose(loop.x, best, atol=1e-8)


def test_without_roll_back_losac_ends_elsewhere() -> None:
    """The positive control of the convergence under drops: commit every tentative state, and the optimum is missed."""
    data = [d.take(np.arange(6)) for d in make_clients(6)]
    method = LoSAC(problem=PROBLEM, learning_rate=0.02, local_steps=4)

    class Careless(Loop):
        def round(self, survivors, lost=()):
            broadcast = self.method.broadcast(self.server)
            for k in lost:
                state, _ = self.method.contribute(self.clients[k], broadcast, self.rng)
                self.clients[k] = self.method.commit(state, RoundOutcome(True, None))
            super().round(survivors)

    loop = Careless(method, data)
    _, slope = optimum(PROBLEM, data, [6.0] * 6, PROBLEM.initial(loop.public, loop.rng))
    assert slope(loop.run(300, some_drop(3, 6)).x) > 1e-3


@pytest.mark.parametrize(("ring", "drift"), [(None, (0.0, 1e-12)), (32, (1e-9, 1.0))])
def test_fixed_point_does_not_make_phi_drift_from_the_stored_gradients(ring, drift) -> None:
    """`dphi` asks for 64 bits; forced into 32 (the positive control) it drifts by rounding."""
    data = make_clients(4)
    method = LoSAC(problem=PROBLEM, learning_rate=0.003)
    defence = chain(Quantise(ring))

    class Rounded(Loop):
        def __init__(self, *args):
            super().__init__(*args)
            self.plan = defence.plan(method.layout(self.public), 4)

        def round(self, survivors, lost=()):
            server, clients = self.server, []
            for k in survivors:
                state, sent = method.contribute(self.clients[k], method.broadcast(server), self.rng)
                clients.append(defence.decode(defence.encode(sent, self.plan), self.plan, 1))
                self.clients[k] = method.commit(state, RoundOutcome(True, None))
            total = {name: np.sum([sent[name] for sent in clients], axis=0) for name in clients[0]}
            self.server = method.combine(server, Aggregate(total, tuple(survivors)))

    loop = Rounded(method, data).run(200)
    gap = np.abs(loop.server.vectors["phi"] - loop.memories()).max()
    assert drift[0] <= gap <= drift[1]

"""The other readings, with which the ledger compares ours, do what the papers' words say."""

from __future__ import annotations

import numpy as np

from benchmarks.ledger.fedpca_readings import FedPEOwn, FedPGOwn
from benchmarks.ledger.losac_readings import AllClientsFedADMM, digits
from benchmarks.ledger.ppgl_degrees import PrintedDescent, PrintedPPGL, learned, normal
from securefed import Public
from securefed.algorithms import PPGL
from securefed.algorithms._graph.edges import Edges
from securefed.algorithms._graph.smooth import MomentumDescent, SmoothGraph
from tests.algorithms.gradients import PROBLEM, Loop, make_clients, some_drop
from tests.algorithms.rounds import centred


def test_every_client_of_the_other_fedpg_and_fedpe_starts_at_an_orthonormal_basis_of_its_own():
    clients = centred()
    for method in (FedPGOwn(rank=3), FedPEOwn(rank=3)):
        rng = np.random.default_rng(0)
        bases = [method.enroll(data, Public.of(clients), rng).basis for data in clients]
        for basis in bases:
            np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-12)
        assert np.abs(bases[0] - bases[1]).max() > 0.1
        moved, _ = method.contribute(method.enroll(clients[0], Public.of(clients), rng), {"basis": bases[0]}, None)
        assert moved.basis.shape == (64, 3)


def test_the_other_fedadmm_averages_over_all_clients_from_the_first_round():
    data, rho = make_clients(5), 2.0
    loop = Loop(AllClientsFedADMM(problem=PROBLEM, learning_rate=0.05, rho=rho, local_steps=1), data, cohort=2)
    for number in range(12):
        loop.run(1, some_drop(number, 5))
        everyone = np.sum([dual + rho * point for point, dual, _ in (client.memory for client in loop.clients)], axis=0)
        np.testing.assert_allclose(loop.server.vectors["sum"], everyone, atol=1e-12)
        np.testing.assert_allclose(loop.x, everyone / (rho * 5), atol=1e-12)
    assert np.abs(loop.x).max() > 1e-3


def test_the_digits_of_a_setting_are_all_the_digits_whoever_holds_them():
    for shuffled in (True, False):
        clients = digits(3, shuffled)
        assert (len(clients), sum(data.rows for data in clients)) == (100, 1797)


def test_a_run_that_ours_finishes_is_refused_with_the_printed_steps():
    assert learned(PPGL(), normal(8), 7) is not None
    assert learned(PrintedPPGL(), normal(8), 7) is None


def test_the_printed_steps_are_ours_but_from_negative_degrees():
    problem = SmoothGraph(Edges(3), alpha=1.0, beta=0.1, zeta=1e-3)
    distances, ours, printed = np.ones(3), MomentumDescent(0.01, 0.9, 1), PrintedDescent(0.01, 0.9, 1)
    for previous, alike in ((np.full(3, 0.4), True), (np.full(3, 2.0), False)):
        graph = np.full(3, 0.5)
        assert (problem.edges.degrees(graph + 0.9 * (graph - previous)) >= 0).all() == alike
        pair = [steps.run(problem, graph, previous, distances)[0] for steps in (ours, printed)]
        assert np.array_equal(*pair) == alike
    slope = problem.gradient(graph + 0.9 * (graph - previous), distances)
    np.testing.assert_allclose(pair[1], np.maximum(0, graph + 0.9 * (graph - previous) - 0.01 * slope))

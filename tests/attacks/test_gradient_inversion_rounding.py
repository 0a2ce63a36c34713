"""Fixed-point rounding: a fit stops at the residual that rounding leaves to the true rows."""

import numpy as np
import pytest

from securefed import chain
from securefed.algorithms import DSGD, FedAvg, LoSAC, Scaffold
from securefed.attacks import SampleFit, Target, views
from securefed.attacks._fitting.levenberg_marquardt import StallLimit
from securefed.attacks._gradient_inversion.gradient_rounds import read_rounds
from securefed.attacks._gradient_inversion.linear_model import LinearModel
from securefed.attacks._gradient_inversion.losac_two_steps import two_step_problem
from securefed.attacks._gradient_inversion.round_simulation import RoundSimulation
from securefed.attacks._gradient_inversion.sum_equations import SumEquations
from securefed.attacks.scores import sample_error
from securefed.defenses._fixed_point import Quantise
from tests.attacks.test_gradient_inversion import scene

METHODS = [DSGD(), FedAvg(), Scaffold(local_steps=1), LoSAC(learning_rate=0.05)]
CLIENTS = 6


def at_the_truth(method, defence, seed):
    """Return the norm of the residual of the true rows, and the norm expected from rounding."""
    federation, clients = scene(method, sizes=(1,) * CLIENTS, seed=seed, defence=defence)
    target = Target(method, federation.public)
    seen = read_rounds(views.sum_only(federation.transcript, None), target)
    simulation = RoundSimulation(method, LinearModel.of(target), federation.public, seen, tuple(range(CLIENTS)))
    system = SumEquations.in_row_space(simulation)
    rows, labels = np.vstack([c.x for c in clients]), np.concatenate([c.y for c in clients])
    residual = system.residual(rows @ system.basis.T, labels)
    return float(np.linalg.norm(residual)), system.floor


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_the_floor_is_the_residual_of_the_true_rows(method):
    """Within 30 %: a unit of half or twice the size would be told apart."""
    defence = chain(Quantise())
    ratios = [np.divide(*at_the_truth(method, defence, seed)) for seed in range(4)]
    assert 0.7 < float(np.mean(ratios)) < 1.4, ratios


def test_in_the_clear_nothing_is_rounded():
    assert at_the_truth(FedAvg(), None, 0)[1] == 0.0


@pytest.mark.exhaustive
def test_a_fit_of_rounded_sums_stops_at_the_floor():
    """Few Jacobians, and no worse an answer than a search that goes on to the end."""
    method, defence = FedAvg(), chain(Quantise())
    federation, clients = scene(method, sizes=(1,) * CLIENTS, seed=1, defence=defence)
    target, observed = Target(method, federation.public), views.sum_only(federation.transcript, None)
    blind = type(observed)(observed.view, None, tuple(_untold(o) for o in observed.rounds), observed.output)
    known, patient = (SampleFit().run(view, target, np.random.default_rng(0)) for view in (observed, blind))
    rows = np.vstack([client.x for client in clients])
    assert sample_error(known.value, rows) < 1.5 * sample_error(patient.value, rows) < 1e-3
    assert known.diagnostics["steps"] < 0.5 * patient.diagnostics["steps"]


def _untold(observation):
    return type(observation)(
        observation.round, observation.broadcast, observation.message, observation.members, observation.survivors
    )


def test_patience_is_short_at_the_floor():
    patience = StallLimit(1.0, far=12, close=40, floor=1e-3)
    assert patience.reached(1e-4, 4)
    assert not patience.reached(1e-4, 3)
    assert not patience.reached(1e-2, 39)
    assert patience.reached(2.0, 12)


def test_the_two_gradients_of_losac_state_what_rounding_leaves_so_that_one_start_is_enough():
    """Without it the search went on to the end of its budget, 89 starts, at the same rows."""
    method = LoSAC(learning_rate=0.1, local_steps=2, blocks=1)
    federation, clients = scene(method, sizes=(2, 2), seed=1, defence=chain(Quantise()))
    target, observed = Target(method, federation.public), views.server(federation.transcript, 0)
    found = SampleFit().run(observed, target, np.random.default_rng(0))
    assert found.diagnostics["starts"] == 1 and sample_error(found.value, clients[0].x) < 1e-4
    known = two_step_problem(method, LinearModel.of(target), target.public, read_rounds(observed, target), rounds=4)
    rows = clients[0].x @ known.equations.basis.T
    share = float(np.linalg.norm(known.equations.residual(rows, clients[0].y))) / known.equations.floor
    assert 0.5 < share < 2.0

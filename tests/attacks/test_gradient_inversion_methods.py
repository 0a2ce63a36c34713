"""Gradient inversion of the methods that LoSAC is compared with: exact if they can be simulated, else refused."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from securefed import Dataset, Federation, Layout, Public, TensorSpec, chain
from securefed.algorithms import (
    FLAME,
    L1,
    CompositeFedADMM,
    Ditto,
    FedAvg,
    FedCM,
    FedProx,
    FedSaga,
    LoSAC,
    LoSACProx,
    MimeSVRG,
    NoRegulariser,
    Nuclear,
    PFedMe,
    ScaffoldProx,
)
from securefed.algorithms import _personalized as personalized
from securefed.attacks import NaiveDescent, RoundView, SampleFit, Target, View, views
from securefed.attacks._engine import DualArray
from securefed.attacks._gradient_inversion import DLG, TelescopingFit
from securefed.attacks._gradient_inversion.gradient_rounds import method_of, read_rounds
from securefed.attacks._gradient_inversion.linear_model import LinearModel
from securefed.attacks._gradient_inversion.losac_two_steps import two_step_problem
from securefed.attacks._gradient_inversion.proximal_derivatives import DifferentiableNuclear
from securefed.attacks._gradient_inversion.round_simulation import RoundSimulation
from securefed.attacks._gradient_inversion.row_fit_problem import problem_from_view
from securefed.attacks._gradient_inversion.sum_equations import SumEquations
from securefed.attacks.scores import sample_error
from securefed.defenses import Plain
from securefed.defenses._fixed_point import Quantise
from securefed.problems import LogisticRegression, SoftmaxRegression
from tests.combinations import each_value, first_ones

DIGITS = load_digits()


class Ridge(NoRegulariser):
    """A regulariser that no attack knows."""

    def __init__(self, weight: float) -> None:
        self.factor = 1 / (1 + weight)

    def prox(self, vector, step, layout):
        return self.factor * vector


SIMULATED = [
    FedAvg(local_epochs=3),
    FedProx(mu=0.5),
    FedCM(alpha=0.3),
    FedSaga(learning_rate=0.02),
    CompositeFedADMM(learning_rate=0.05, local_steps=3, dual_steps="last", regulariser=L1(0.01)),
    MimeSVRG(local_steps=3),
    FLAME(learning_rate=0.02),
    FLAME(learning_rate=0.02, anchor="global"),
    PFedMe(learning_rate=0.02, local_steps=2, inner_steps=3),
    personalized.FedADMM(learning_rate=0.02, penalty=0.5),
    personalized.FedADMM(learning_rate=0.02, penalty=0.5, begin="local"),
    Ditto(learning_rate=0.02),
    LoSACProx(learning_rate=0.05, local_steps=2, regulariser=L1(0.01)),
    LoSACProx(learning_rate=0.05, local_steps=1, regulariser=L1(0.01)),
    ScaffoldProx(local_steps=2, regulariser=Nuclear(0.01)),
]
LOGISTIC = FedAvg(problem=LogisticRegression(l2=0.1))


def name(method):
    return type(method).__name__


def scene(method, seed=0, sizes=(1, 2, 1), rounds=6):
    """(what the server sees of client 0 and of all, target, rows) after a run on rows of the digits in [0, 1]."""
    order = np.random.default_rng(seed).permutation(len(DIGITS.data))[: sum(sizes)]
    labels = DIGITS.target // 5 if method is LOGISTIC else DIGITS.target
    clients = [Dataset(DIGITS.data[k] / 16, labels[k]) for k in np.split(order, np.cumsum(sizes)[:-1])]
    public = Public(len(sizes), len(sizes), 64, tuple(sizes), 2 if method is LOGISTIC else 10, 1.0)
    federation = Federation(method, clients, seed=seed, public=public)
    federation.run(rounds)
    transcript = federation.transcript
    return views.server(transcript, 0), views.sum_only(transcript, None), Target(method, public), clients


@pytest.mark.parametrize("method", SIMULATED, ids=name)
def test_the_simulation_of_the_true_rows_sends_what_was_sent(method) -> None:
    _, observed, target, clients = scene(method)
    seen, model = read_rounds(observed, target), LinearModel.of(target)
    x, targets = np.zeros((3, 2, 64)), np.zeros((3, 2, 10))
    for k, rows in enumerate(clients):
        x[k, : rows.rows], targets[k, : rows.rows] = rows.x, model.targets(rows.y)
    simulation = RoundSimulation(method_of(target), model, target.public, seen, (0, 1, 2))
    for sent, item in zip(simulation.totals(x, targets), seen, strict=True):
        for part, value in item.total.items():
            np.testing.assert_allclose(sent[part].sum(axis=0), value, atol=1e-12)
            assert np.abs(value).max() > 1e-6


@pytest.mark.parametrize(("pooled", "method"), each_value([False, True], [*SIMULATED, LOGISTIC]))
def test_slopes_are_those_of_the_residual(method, pooled) -> None:
    """Along a random direction, against central differences; clients of two, three and one rows."""
    first, both, target, _ = scene(method, sizes=(2, 3, 1), rounds=3)
    seen, model = read_rounds(both if pooled else first, target), LinearModel.of(target)
    system = SumEquations.in_row_space(RoundSimulation(method_of(target), model, target.public, seen, seen[0].members))
    rng = np.random.default_rng(0)
    x, along = rng.normal(size=(2, *system.shape))
    labels = rng.integers(0, 2, len(x))
    residual, jacobian = system.linearised(x, labels)
    ahead, behind = (system.residual(x + s * along, labels) for s in (1e-6, -1e-6))
    np.testing.assert_allclose(residual, system.residual(x, labels), atol=1e-12)
    np.testing.assert_allclose(jacobian @ along.ravel(), (ahead - behind) / 2e-6, atol=1e-7 * np.abs(jacobian).max())


ONE_ROW = first_ones([(method, attack) for attack in (SampleFit(), DLG()) for method in SIMULATED], 6)


@pytest.mark.parametrize(("method", "attack"), ONE_ROW, ids=name)
def test_one_row_in_the_clear_is_recovered_exactly(method, attack) -> None:
    for seed in range(3):
        observed, _, target, clients = scene(method, seed)
        assert attack.applies(target, observed) is None
        found = attack.run(observed, target, np.random.default_rng(seed))
        assert sample_error(found.value, clients[0].x) < 1e-9, seed


def test_of_mimesvrg_the_gradient_phase_is_read() -> None:
    observed, _, target, _ = scene(MimeSVRG(), rounds=5)
    assert len(observed.rounds) == 5 and len(read_rounds(observed, target)) == 3


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (ScaffoldProx(regulariser=Ridge(0.1)), "proximal operator"),
        (FedAvg(local_epochs=2, batch_size=1), "more the more rows they have"),
    ],
    ids=["foreign regulariser", "epochs"],
)
def test_what_cannot_be_simulated_is_refused_in_a_sentence(method, says: str) -> None:
    observed, _, target, _ = scene(method)
    for attack in (SampleFit(), DLG(), NaiveDescent()):
        assert says in attack.applies(target, observed)
    assert TelescopingFit().applies(target, observed) is not None


def test_proximal_methods_that_store_gradients_at_the_broadcast_model_are_telescoped_to_row_space() -> None:
    """One local step, or option I: the operator drops out, and three rows have nine coordinates instead of 192."""
    for method in (
        LoSACProx(learning_rate=0.05, local_steps=1, regulariser=L1(0.01)),
        ScaffoldProx(option="I", regulariser=L1(0.01)),
    ):
        observed, _, target, clients = scene(method, sizes=(3, 2))
        found = TelescopingFit().run(observed, target, np.random.default_rng(0))
        assert found.diagnostics["known points"] and found.unknowns == 9
        assert sample_error(found.value, clients[0].x) < 1e-9


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
@pytest.mark.parametrize("regulariser", [L1(0.3), DifferentiableNuclear(0.3)], ids=name)
def test_derivatives_pass_through_proximal_operators(regulariser, shape) -> None:
    rng = np.random.default_rng(0)
    layout = Layout((TensorSpec("weight", shape), TensorSpec("bias", (2,))))
    point, along = rng.normal(size=(2, 6, layout.size))
    several = regulariser.prox(DualArray(point, np.stack([along, 2 * along], axis=-1)), 1.0, layout)
    ahead, behind = (regulariser.prox(point + s * along, 1.0, layout) for s in (1e-6, -1e-6))
    for times, slopes in zip((1, 2), np.moveaxis(several.slopes, -1, 0), strict=True):
        np.testing.assert_allclose(slopes, times * (ahead - behind) / 2e-6, atol=1e-7)
    plain = {"L1": L1, "DifferentiableNuclear": Nuclear}[name(regulariser)](0.3)
    np.testing.assert_allclose(several.value, plain.prox(point, 1.0, layout), atol=1e-14)


@pytest.mark.parametrize("rate", [0.02, 1.0])
def test_gradients_of_two_local_steps_of_losac_follow_from_the_messages(rate: float) -> None:
    """The true rows have these gradients and others do not; at the larger rate local steps overshoot."""
    method = LoSAC(learning_rate=rate, local_steps=2, blocks=1)
    observed, _, target, clients = scene(method, sizes=(4, 2))
    known = two_step_problem(method, LinearModel.of(target), target.public, read_rounds(observed, target), rounds=4)
    samples = clients[0].x @ known.equations.basis.T
    assert known.equations.relative_residual(samples, clients[0].y) < 1e-9
    assert known.equations.relative_residual(samples + 0.1, clients[0].y) > 1e-3
    found = SampleFit().run(observed, target, np.random.default_rng(0))
    assert sample_error(found.value, clients[0].x) < 1e-9


def test_gradients_of_other_methods_and_sums_do_not_follow_from_the_messages() -> None:
    def known(method, pooled=False):
        one, both, target, _ = scene(method, sizes=(2, 2))
        seen = read_rounds(both if pooled else one, target)
        return two_step_problem(method, LinearModel.of(target), target.public, seen, rounds=4)

    for method in (LoSAC(local_steps=3, blocks=1), LoSAC(local_steps=2, blocks=2), FedAvg(local_steps=2)):
        assert known(method) is None
    method = LoSAC(local_steps=2, blocks=1)
    assert known(method, pooled=True) is None
    assert known(method) is not None


def found_in_fixed_point(method, seed, told):
    """Whether the true counts of labels are among those tried on one message in a ring of 10 bits."""
    rng, public, one = np.random.default_rng(seed), Public(2, 2, 64, (8, 8), 10, 1.0), frozenset({0})
    drawn = rng.permutation(len(DIGITS.data))[:8]
    client = Dataset(DIGITS.data[drawn] / 16, DIGITS.target[drawn])
    zeros = method.broadcast(method.start(public, rng))
    point = {name: rng.uniform(-2, 2, value.shape) for name, value in zeros.items()}
    _, message = method.contribute(method.enroll(client, public, rng), point, rng)
    defence = chain(Quantise(10), Plain())
    plan = defence.plan(method.layout(public), 2)
    message, step = defence.decode(defence.encode(message, plan), plan, 1), plan.steps if told else {}
    observed = View("server", 0, (RoundView(0, point, message, one, one, step=step),), point)
    tried = problem_from_view(observed, Target(method, public), rounds=1).starts.label_counts
    return any((counts == np.bincount(client.y, minlength=10)).all() for counts in tried)


def test_counts_behind_a_confident_gradient_are_among_those_tried_though_it_was_rounded() -> None:
    """One client's step in fixed point, of a model that leaves next to nothing above -n_c in the bias."""
    method = FedAvg(problem=SoftmaxRegression(), local_steps=1)
    told, untold = (sum(found_in_fixed_point(method, seed, known) for seed in range(12)) for known in (True, False))
    assert told >= 11
    assert untold <= told - 3


def test_a_view_without_messages_is_refused() -> None:
    observed, _, target, _ = scene(FedCM(problem=SoftmaxRegression()), rounds=0)
    assert SampleFit().applies(target, observed) == "The view holds no messages."

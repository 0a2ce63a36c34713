"""FAPS' messages with rounding errors or noise: S comes out as far as they allow, and the attack knows how far."""

from dataclasses import replace

import numpy as np
import pytest

from securefed.algorithms._pca import FAPS
from securefed.attacks._gram import ConsensusGram
from securefed.attacks._gram.faps.near_consensus import near_consensus
from securefed.attacks._gram.faps.noise_weighted_fit import least_error, most_likely
from securefed.attacks._gram.faps.received_messages import ReceivedMessages, is_single_precision
from securefed.attacks._gram.faps.simulated_client import rule_counts
from securefed.attacks.scores import relative_error
from tests.attacks.subspaces import digits, gram, observe
from tests.combinations import first_ones

ALGORITHM = FAPS(2, adaptive=False, inner_steps=2)


def changed(observed, change):
    products = [change(o.message["product"]) for o in observed.rounds]
    pairs = zip(observed.rounds, products, strict=True)
    return replace(observed, rounds=tuple(replace(o, message={**o.message, "product": Y}) for o, Y in pairs))


def disturbed(kind, size=0.0, features=12):
    """A client's messages with errors, and its S."""
    clients = digits(features, "random")
    observed, target = observe(ALGORITHM, clients, 12)
    rng = np.random.default_rng(3)
    changes = {
        "float32": lambda Y: Y.astype(np.float32),
        "even": lambda Y: Y + size * np.linalg.norm(Y) / np.sqrt(Y.size) * rng.normal(size=Y.shape),
        "own": lambda Y: Y * (1 + size * rng.normal(size=Y.shape)),
    }
    return changed(observed, changes[kind]), target, clients[0]


@pytest.mark.parametrize("inner_steps", [None, 2])
@pytest.mark.parametrize("rows", [0, 3])
def test_the_equations_are_differentiated_correctly(inner_steps, rows):
    algorithm, clients = FAPS(2, inner_steps=inner_steps), digits(8, "random")
    observed, _ = observe(algorithm, clients, 5)
    S = gram(clients[0])
    scale = np.linalg.eigvalsh(S)[-1]
    seen = ReceivedMessages.of(observed.rounds, algorithm, rows, scale)
    counts = np.zeros(0) if inner_steps else rule_counts(S / scale, seen.equations.received(5), algorithm)
    truth = np.concatenate([seen.coordinates.coordinates(S / scale), counts, np.ones(1)])
    if not rows:
        assert np.abs(seen.residual(truth)).max() < 1e-11
    rng = np.random.default_rng(0)
    point = truth + 1e-2 * rng.normal(size=len(truth))
    point[len(truth) - 1 - len(counts) : -1] = counts + 0.4
    direction = rng.normal(size=len(point))
    residual, jacobian = seen.linearised(point)
    np.testing.assert_allclose(residual, seen.residual(point), atol=1e-14)
    slope = (seen.residual(point + 1e-6 * direction) - seen.residual(point - 1e-6 * direction)) / 2e-6
    np.testing.assert_allclose(jacobian @ direction, slope, atol=1e-7 * max(1.0, np.abs(slope).max()))


@pytest.mark.parametrize(("kind", "size"), first_ones([("own", 1e-6), ("even", 1e-6), ("float32", 2.4e-8)]))
def test_the_fit_weighs_every_entry_by_its_own_error(kind, size):
    view, target, client = disturbed(kind, size)
    got = ConsensusGram(starts=1).run(view, target, np.random.default_rng(0))
    bound = least_error(view.rounds, ALGORITHM, client.rows, gram(client))
    error = relative_error(got.value, gram(client))
    assert got.diagnostics["method"] == ("exact fit" if kind == "float32" else "fit to noise, not proven")
    assert error < 2 * bound and bound < 1e-2
    assert 0.4 < got.diagnostics["hidden error"] / bound < 1.5
    if kind != "float32":
        assert 0.8 * size < got.diagnostics["noise"] < 1.2 * size


def test_what_noise_hides_stays_at_the_estimate():
    view, target, client = disturbed("even", 1e-4)
    got = ConsensusGram(starts=1).run(view, target, np.random.default_rng(0))
    estimate = near_consensus(view.rounds, ALGORITHM.beta_scale, client.rows).gram
    assert least_error(view.rounds, ALGORITHM, client.rows, gram(client)) > 0.1
    assert relative_error(got.value, gram(client)) < relative_error(estimate, gram(client))


def test_errors_that_are_none_are_uneven():
    """The client of another S: no noise makes its messages."""
    view, _, client = disturbed("even", 1e-6)
    other = replace(view.rounds[5], message=disturbed("own", 1e-4)[0].rounds[5].message)
    rounds = (*view.rounds[:5], other, *view.rounds[6:])
    estimate = near_consensus(view.rounds, ALGORITHM.beta_scale, client.rows).gram
    for messages, even in ((view.rounds, True), (rounds, False)):
        found = most_likely(messages, ALGORITHM, client.rows, gram(client), np.zeros(0), estimate)
        assert (found.unevenness < 4) == even


def test_numbers_of_float32_are_known():
    Y = np.random.default_rng(0).normal(size=(4, 2))
    assert (
        is_single_precision(Y.astype(np.float32))
        and is_single_precision(Y.astype(np.float32).astype(float))
        and not is_single_precision(Y)
    )

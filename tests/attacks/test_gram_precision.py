"""Messages of few digits, or with noise: what they hide of a Gram matrix is left out, and nothing else is."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from securefed.attacks import RoundView, View
from securefed.attacks._diagnosis import resolution
from securefed.attacks._gram.linear import ProbeSpan, _assemble, solve
from securefed.attacks._gram.observed_rounds import rounding_of_products, stacked_products
from securefed.attacks._precision import rounding
from securefed.attacks._repeatability import perturbed
from securefed.attacks.scores import relative_error

DIGITS = load_digits().data / 16
ROWS, RANK, ROUNDS = 200, 5, 10


def seen(seed, sent):
    """S of a client whose rows outnumber the features, and its rounds of subspace iteration, as `sent` leaves them."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(DIGITS))
    mine, pooled = DIGITS[order[:ROWS]], DIGITS[order[: 8 * ROWS]]
    S, basis, rounds = mine.T @ mine, np.linalg.qr(rng.normal(size=(64, RANK)))[0], []
    for k in range(ROUNDS):
        message = {"product": sent(S @ basis, rng)}
        rounds.append(RoundView(k, {"basis": basis}, message, frozenset({0}), frozenset({0})))
        basis = np.linalg.qr(pooled.T @ (pooled @ basis))[0]
    return S, rounds


def rounded(kind):
    return lambda Y, rng: Y.astype(kind).astype(float)


def noisy(scale):
    return lambda Y, rng: Y + scale * rng.normal(size=Y.shape)


def oracle(S, probes, products, sizes):
    """The least error of all truncations, for one who knows S and the size of the noise."""
    U, s, Vt = np.linalg.svd(probes / sizes, full_matrices=False)
    image = (products / sizes @ Vt.T) / s
    whole = ProbeSpan(U, image, 1 / s, s, 1.0)
    return min(relative_error(_assemble(whole.first(count), "psd", 0), S) for count in range(1, len(s) + 1))


@pytest.mark.parametrize(
    "sent",
    [rounded(np.float32), rounded(np.float16), noisy(1e-6), noisy(1e-3), noisy(0.3)],
    ids=["float32", "float16", "noise 1e-6", "noise 1e-3", "noise .3"],
)
def test_directions_are_kept_as_an_oracle_would_keep_them(sent):
    for seed in range(4):
        S, rounds = seen(seed, sent)
        probes, products = stacked_products(rounds)
        truth = np.sqrt(np.mean((products - S @ probes) ** 2, axis=0))
        found = solve(probes, products, errors=rounding_of_products(rounds))
        assert relative_error(found.gram, S) < 1.2 * oracle(S, probes, products, truth), seed
        assert found.lost > 5
        # the control: with all directions nothing is left
        U, s, Vt = np.linalg.svd(probes, full_matrices=False)
        naive = (products @ Vt.T / s) @ U.T
        assert relative_error(naive, S) > 100 * relative_error(found.gram, S)


@pytest.mark.parametrize("sent", [rounded(np.float32), noisy(1e-3)], ids=["float32", "noise 1e-3"])
def test_the_noise_is_known_to_a_quarter(sent):
    for seed in range(4):
        S, rounds = seen(seed, sent)
        probes, products = stacked_products(rounds)
        level = np.sqrt(np.mean((products - S @ probes) ** 2))
        found = solve(probes, products, errors=rounding_of_products(rounds))
        assert 0.8 < found.noise / level < 1.25


def test_noise_of_unequal_size_is_no_signal():
    """Of no stated precision, and far from the same in all columns: a direction is judged by its own asymmetry."""
    for seed in range(4):
        S, rounds = seen(seed, rounded(np.float16))
        found = solve(*stacked_products(rounds))
        stated = solve(*stacked_products(rounds), errors=rounding_of_products(rounds))
        assert relative_error(stated.gram, S) < relative_error(found.gram, S) < 0.05


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_the_numbers_tell_how_they_were_rounded(kind, scale):
    values = scale * np.random.default_rng(0).normal(size=(64, 50))
    sent = values.astype(kind).astype(float)
    ratio = (sent - values) / rounding(sent)
    assert 0.9 < np.sqrt(np.mean(ratio**2)) < 1.1  # the wrong format would be off by 2^8
    assert np.median(rounding(values) / rounding(sent)) < 1e-8


def test_fixed_point_is_told_from_its_grid_or_its_public_unit():
    values = np.random.default_rng(0).normal(size=(64, 50))
    grid = 2.0**-12
    np.testing.assert_allclose(rounding(np.rint(values / grid) * grid), grid / np.sqrt(12))
    np.testing.assert_allclose(rounding(np.rint(values / 1e-3) * 1e-3, 1e-3), 1e-3 / np.sqrt(12))
    assert not rounding(np.zeros((3, 2))).any()
    assert rounding(np.zeros(2), 0.5) == pytest.approx(0.5 / np.sqrt(12))


@pytest.mark.parametrize("name", ["weight", "0.weight", "block.0.weight"])
def test_changes_of_parameters_of_any_name_were_rounded_at_the_size_of_the_parameters(name):
    """Modules of torch call their parameters so; the change has a thousandth of the parameters' size."""
    before = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)
    change = np.float32(1e-3) * before
    item = RoundView(0, {name: before}, {f"delta.{name}": change}, frozenset({0}), frozenset({0}))
    seen = View("server", 0, (item,), {})
    assert resolution(seen) == pytest.approx(1e3 * np.finfo(np.float32).eps, rel=1e-3)
    moved = perturbed(seen, np.random.default_rng(1)).rounds[0].message[f"delta.{name}"]
    assert relative_error(moved, change) > 100 * np.finfo(np.float32).eps

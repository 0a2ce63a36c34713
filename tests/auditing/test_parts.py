"""Columns and rows that are known among others that are not."""

from __future__ import annotations

import numpy as np
import pytest

from securefed import audit_algorithm
from securefed._auditing.own.single_row_or_column import best_part
from securefed.testing import assert_leakage_below

START = {"round": np.zeros(1)}
RNG = np.random.default_rng(0)
POOL = RNG.uniform(size=(20, 4))
TRUTH = POOL[:5]
GUESS = np.broadcast_to(POOL.mean(0), TRUTH.shape)


@pytest.mark.parametrize(("place", "name"), [(np.s_[:, 2], "column 2"), (np.s_[3], "row 3")])
def test_the_part_that_is_known_is_named_with_its_leakage(place, name) -> None:
    estimate = GUESS.copy()
    estimate[place] = TRUTH[place] + 1e-4 * (GUESS[place] - TRUTH[place])
    assert best_part(estimate, TRUTH, GUESS, POOL) == (pytest.approx(1 - 1e-4), name)
    assert best_part(GUESS, TRUTH, GUESS, POOL)[0] == pytest.approx(0)


def test_what_luck_may_know_does_not_count() -> None:
    bits = (POOL > 0.5).astype(float)
    assert best_part(bits[:5], bits[:5], GUESS, bits) == (-np.inf, "")
    assert best_part(TRUTH[:2, :2], TRUTH[:2, :2], GUESS[:2, :2], POOL[:, :2]) == (-np.inf, "")  # two numbers
    mixed = np.column_stack([bits[:, :3], POOL[:, 3]])
    assert best_part(mixed[:5], mixed[:5], GUESS, mixed) == (1.0, "column 3")


def clients(seed):
    return list(np.random.default_rng(seed).uniform(0, 1, (4, 10, 4)))


@pytest.mark.parametrize(
    ("function", "part"),
    [(lambda rows, b: {"u": rows[:, 1]}, "column 1"), (lambda rows, b: {"u": rows[:1]}, "row 0")],
    ids=["one column", "one row"],
)
def test_one_attribute_or_one_record_in_the_clear_fails_a_gate_that_the_mean_passes(function, part) -> None:
    found = audit_algorithm(function, clients, start=START, rounds=1, seeds=4, view="server")
    cells = [cell for cell in found.cells if cell.secret == "samples" and cell.read.part.startswith(part)]
    assert cells and not any(cell.read.whole for cell in cells)
    assert all(cell.verdict.word == "partial" for cell in cells)
    with pytest.raises(AssertionError, match=f"{part} of client . was reconstructed"):
        assert_leakage_below(0.9, found, secrets=["samples"])


def test_a_constant_message_gives_nobody_away() -> None:
    """Rows of two values, and a message that holds every row there can be: rows that took no part fit it as well."""
    every = np.array(np.meshgrid(*[[0.0, 1.0]] * 4)).reshape(4, -1).T

    def binary(seed):  # no client has a row twice
        rng = np.random.default_rng(seed)
        return [every[rng.permutation(16)[:5]] for _ in range(4)]

    found = audit_algorithm(lambda rows, b: {"book": every}, binary, start=START, rounds=1, seeds=4, view="server")
    clear = next(cell for cell in found.cells if cell.attack == "generic/clear")
    assert clear.leakage.mean == 0
    assert not clear.given_away and clear.verdict.word not in ("exposed", "partial")

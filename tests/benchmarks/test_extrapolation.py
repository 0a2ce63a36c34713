"""The end of a sequence is found from its terms, where it changes by a fixed matrix."""

from __future__ import annotations

import numpy as np

from benchmarks.pages.references.extrapolation import limit


def test_the_limit_of_few_modes_is_found_and_the_last_term_is_not_it() -> None:
    rng = np.random.default_rng(0)
    end, modes = rng.normal(size=40), rng.normal(size=(3, 40))
    terms = end + np.array([0.9, 0.7, -0.5]) ** np.arange(8)[:, None] @ modes
    assert np.abs(limit(terms) - end).max() < 1e-9
    assert np.abs(limit(terms[:5]) - end).max() < 1e-9
    assert np.abs(terms[-1] - end).max() > 0.1
    assert np.abs(limit(terms[:4]) - end).max() > 1e-3  # three differences do not tell three modes from the limit


def test_terms_that_have_arrived_stay_where_they_are() -> None:
    """Differences of round-off are no modes."""
    rng = np.random.default_rng(1)
    end = rng.normal(size=30)
    terms = end + 1e-16 * rng.normal(size=(16, 30)) + 0.1 ** np.arange(16)[:, None] * rng.normal(size=30)
    assert np.abs(limit(terms) - end).max() < 1e-12

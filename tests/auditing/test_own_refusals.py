"""A step of one's own that cannot be audited is refused by name, with what, where and the remedy."""

from __future__ import annotations

import numpy as np
import pytest

from securefed import Aggregate, Dataset, audit_algorithm
from securefed._auditing.own.function_algorithm import as_algorithm
from securefed.algorithms import SSI
from securefed.errors import ConfigError, DataError
from tests.auditing.test_own import ROUNDS, START, audit, clients, count, noise, product

OWN = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"algorithm": product}, ConfigError, "start"),
        ({"algorithm": SSI(rank=2), "start": START}, ConfigError, "belong to a function"),
        ({"algorithm": product, "start": START, "seeds": 0}, ConfigError, "at least one"),
        ({"algorithm": product, "start": START, "view": ["eavesdropper"]}, ConfigError, "views are"),
        ({"algorithm": product, "start": START, "view": []}, ConfigError, "views are"),
        ({"algorithm": product, "start": START, "backend": "jax"}, ConfigError, "backend"),
        ({"algorithm": noise, "start": START, "backend": "torch"}, ConfigError, "rng"),
        ({"algorithm": lambda rows, b: rows, "start": START}, DataError, "tensors by name"),
        ({"algorithm": lambda rows, b: {"a": np.log(-1 * rows**2 - np.inf)}, "start": START}, DataError, "NaN"),
        ({"algorithm": lambda rows, b: {"a": rows[:0]}, "start": START}, DataError, "no number at all"),
        ({"algorithm": product, "start": START, "combine": lambda b, t, n: {}}, DataError, "combine must return"),
        ({"algorithm": product, "start": START, "clients": [np.ones((2, 4))]}, ConfigError, "at least 2 clients"),
    ],
)
def test_bad_input_is_refused(arguments, error, words) -> None:
    with np.errstate(all="ignore"), pytest.raises(error, match=words):
        audit_algorithm(**{"clients": clients, "rounds": 1, **arguments})


def total_of(memory=[]):  # noqa: B006 - a step that keeps something, on purpose
    def step(rows, broadcast):
        memory.append(rows.sum(0))
        return {"y": np.sum(memory, axis=0)}

    return step


def once_nan(rows, broadcast):
    return {"y": np.tanh(rows).sum(0) * (np.nan if broadcast["k"] == 1 else 1.0)}


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda rows, b: {"y": rows @ b["weights"]}, DataError, "raised KeyError"),
        (lambda rows, b: {"y": "text"}, DataError, "type <U4"),
        (lambda rows, b: {"y": rows + 1j}, DataError, "complex"),
        (lambda rows, b: {"y": [[1, 2], [3]]}, DataError, "no array of numbers"),
        (lambda rows: {"y": rows}, ConfigError, r"contribute\(rows, broadcast\)"),
        (lambda: {"y": np.ones(3)}, ConfigError, r"contribute\(rows, broadcast\)"),
        (lambda rows, b, rate: {"y": rows}, ConfigError, "functools.partial"),
        (lambda rows, b, labels: {"y": labels}, ConfigError, r"Dataset\(x, y\)"),
        (total_of(), DataError, "keeps something"),
        (lambda rows, b: {"y": OWN.normal(size=3)}, DataError, "parameter `rng`"),
        (lambda rows, b: {"y": np.ones(int((rows > 0).sum()))}, DataError, r"client \d, round 0.*gives them away"),
        (type("Mine", (), {}), ConfigError, "give an instance"),
        (object(), ConfigError, "lacks broadcast, combine"),
    ],
)
def test_a_step_that_cannot_be_audited_is_refused_with_what_where_and_the_remedy(function, error, words) -> None:
    with pytest.raises(error, match=words):
        audit(function)


def test_what_fails_in_a_later_round_names_client_and_round() -> None:
    with pytest.raises(DataError, match=r"client 0, round 1 \(seed 0\).*NaN.*'y'"):
        audit(once_nan, start=ROUNDS, combine=count)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([("x", "y")] * 2, "tuple"),
        ([np.array([["a"]])] * 2, "must hold real numbers"),
        ([np.ones(4)] * 2, "client 0"),
        ([Dataset(np.ones((2, 4)), np.zeros(2, int)), np.ones((2, 4))], "differ in having labels"),
    ],
)
def test_clients_that_are_no_rows_are_named(given, words) -> None:
    with pytest.raises((ConfigError, DataError), match=words):
        audit(product, given)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"start": {}}, "round"),
        ({"start": np.ones(3)}, "by name"),
        ({"combine": lambda b, t, n: {"z": np.ones(3)}}, r"combine returned 'z' of shape \(3,\)"),
        ({"combine": lambda b, t, n: {"z": t["x"]}}, "combine raised KeyError"),
        ({"combine": lambda b, t, n: {"z": b["z"] * np.nan}}, "combine returned NaN or infinity in 'z'"),
        ({"combine": lambda b, t, n: {"z": b["z"] + 1j}}, "'z' of type complex128"),
        ({"combine": lambda b, t, n: {"z": [[1, 2], [3]]}}, "'z', which is no array of numbers"),
        ({"seconds": 0}, "seconds"),
    ],
)
def test_broadcasts_of_another_kind_are_named(arguments, words) -> None:
    with pytest.raises((ConfigError, DataError), match=words):
        audit(product, **arguments)


def test_fractions_are_not_cut_from_a_broadcast_that_starts_as_integers() -> None:
    start, total = {"z": np.zeros(4, int)}, Aggregate({"y": np.full(4, 1.5)}, (0, 1))

    def combined(follow):
        made = as_algorithm(lambda rows, b: {"y": rows.sum(0)}, Dataset(np.ones((2, 4))), start, follow, "numpy")
        return made.combine(made.first, total)

    for wrong in (lambda b, t, n: {"z": t["y"] / n}, lambda b, t, n: {"z": b["z"] + 1e300}):
        with pytest.raises(DataError, match=r"'z' with numbers that int64 does not hold.*floating-point"):
            combined(wrong)
    assert combined(lambda b, t, n: {"z": t["y"] * n})["z"].tolist() == [3] * 4

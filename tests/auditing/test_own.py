"""One's own algorithm, audited without attack code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from securefed import audit_algorithm
from securefed.algorithms.optimization.dsgd import DSGD
from securefed.algorithms.pca import SSI
from securefed.attacks.generic import FitRows
from securefed.auditing.selfcheck import PLANTED, check, failures
from securefed.auditing.statistics import EXPOSED
from securefed.catalogue import algorithms
from securefed.cli import app
from securefed.datasets.base import Dataset
from securefed.errors import ConfigError, DataError
from securefed.testing import assert_leakage_below


def clients(seed, count=3):
    return list(np.random.default_rng(seed).uniform(-1, 1, (count, 4, 4)))


def product(rows, broadcast):
    return {"y": rows.T @ (rows @ broadcast["z"])}


def noise(rows, broadcast, rng):
    return {"y": rng.normal(size=3)}


START = {"z": np.eye(4, 2)}
QUICK = {"fit": FitRows(starts=1, steps=8), "rounds": 3, "seeds": 4}


def follow(broadcast, total, count):
    return {"z": np.linalg.qr(total["y"])[0]}


def test_every_planted_leak_is_found_and_planted_safety_passes() -> None:
    done = CliRunner().invoke(app, ["audit", "--self-check"])
    assert done.exit_code == 0, done.output
    assert done.output.count("right  planted") == len(PLANTED) == 5


def test_the_self_check_fails_where_the_audit_would_be_wrong() -> None:
    clear, safe = PLANTED[0], PLANTED[3]
    swapped = (check(replace(safe, secret="samples", words=(EXPOSED,)), 3), check(replace(clear, secret=None), 3))
    assert len(failures(swapped)) == 2


def test_a_class_that_satisfies_the_protocol_is_audited() -> None:
    found = audit_algorithm(SSI(rank=2), clients, rounds=4, seeds=3, view=["server"])
    gram = next(cell for cell in found.cells if cell.secret == "gram")
    assert gram.verdict.word == EXPOSED
    assert gram.error < 1e-4
    assert found.worst is gram


def test_labelled_clients_of_a_registered_method_are_fitted() -> None:
    def labelled(seed):
        rng = np.random.default_rng(seed)
        return [Dataset(rng.uniform(0.2, 1, (1, 4)), rng.integers(0, 2, 1)) for _ in range(3)]

    method = algorithms.make("optimization/dsgd", problem="logistic", learning_rate=0.5)
    assert isinstance(method, DSGD)
    found = audit_algorithm(method, labelled, rounds=3, seeds=4, view=["server"])
    best = max((cell for cell in found.cells if cell.secret == "samples"), key=lambda cell: cell.leakage.mean)
    assert best.leakage.mean > 0.99
    assert "labels are known to the attacker" in found.assumptions


def test_the_gate_passes_safety_and_fails_leaks_and_weak_audits() -> None:
    arguments = {"start": START, "combine": follow, **QUICK}
    found = assert_leakage_below(0.95, noise, clients, start=START, **QUICK)
    assert assert_leakage_below(0.95, found) is found
    with pytest.raises(AssertionError, match=r"not below 0\.9"):
        assert_leakage_below(0.9, product, clients, **arguments)
    power = max(cell.verdict.detectable for cell in found.cells if cell.secret != "confirmation")
    tops = max(cell.leakage.high for cell in found.cells if cell.secret != "confirmation")
    assert tops < power  # so there are limits that the leakage stays below, but that the audit could not see
    with pytest.raises(AssertionError, match="too weak"):
        assert_leakage_below((max(tops, 0.0) + power) / 2, found)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"algorithm": product}, ConfigError, "start"),
        ({"algorithm": SSI(rank=2), "start": START}, ConfigError, "belong to a function"),
        ({"algorithm": product, "start": START, "seeds": 0}, ConfigError, "at least one"),
        ({"algorithm": product, "start": START, "view": ["eavesdropper"]}, ConfigError, "views are"),
        ({"algorithm": product, "start": START, "backend": "jax"}, ConfigError, "backend"),
        ({"algorithm": noise, "start": START, "backend": "torch"}, ConfigError, "rng"),
        ({"algorithm": lambda rows, b: rows, "start": START}, DataError, "tensors by name"),
        ({"algorithm": lambda rows, b: {"a": np.log(-1 * rows**2 - np.inf)}, "start": START}, DataError, "NaN"),
        ({"algorithm": product, "start": START, "combine": lambda b, t, n: {}}, DataError, "combine must return"),
        ({"algorithm": product, "start": START, "clients": [np.ones((2, 4))]}, ConfigError, "at least 2 clients"),
    ],
)
def test_bad_input_is_refused(arguments, error, words) -> None:
    with np.errstate(all="ignore"), pytest.raises(error, match=words):
        audit_algorithm(**{"clients": clients, "rounds": 1, **arguments})


def test_a_gate_refuses_what_it_cannot_judge() -> None:
    with pytest.raises(ConfigError, match="limit"):
        assert_leakage_below(1.5, noise, clients, start=START)
    with pytest.raises(ConfigError, match="clients"):
        assert_leakage_below(0.5, noise)
    with pytest.raises(ConfigError, match="no attack"):
        assert_leakage_below(0.5, noise, clients, start=START, secrets=["gram"], **QUICK)

"""A result that `securefed party` left in a folder of messages is read in Python, where statistics follow from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed.defenses import chain, gaussian, records, secure_aggregation
from securefed.errors import ConfigError, DataError, StorageError
from securefed.parties import SumResult, SumTerms
from securefed.statistics import LinearRegression
from tests.test_party import SERVER, party, server

RNG = np.random.default_rng(0)
SITES = [(x := RNG.uniform(-1, 1, (40 + site, 2)), x @ [1.0, -2.0] + 0.5) for site in range(3)]
STATISTIC = LinearRegression(features=2, bound=4.0, target_bound=16.0, rows=100, outliers="omit")


def summed(defense: Any) -> SumTerms:
    """Sum the sites' parts of the regression through the folder `exchange`."""
    Path("exchange").mkdir()
    party("identity", "server.key")
    terms = STATISTIC.terms(clients=3, defense=defense)
    Path("terms.json").write_bytes(terms.to_bytes())
    for site, rows in enumerate(SITES):
        np.savez(f"update-{site}.npz", **STATISTIC.summand(*rows))
    while "Round 1 is complete" not in server():
        for site in range(3):
            given = ("--party", site, "--update", f"update-{site}.npz", *SERVER)
            party("contribute", "exchange", "--terms", "terms.json", *given)
    return terms


def test_a_regression_goes_through_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = STATISTIC.estimate(SumResult.from_folder("exchange", summed(secure_aggregation())))
    beside = STATISTIC.simulate(SITES, secure_aggregation())
    assert (found.count, found.survivors, dict(found.noise)) == (123, (0, 1, 2), {})
    np.testing.assert_allclose(found.value, beside.value, atol=1e-12)
    np.testing.assert_allclose(found.error, beside.error, rtol=1e-6)


def test_noise_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    defense = chain(records(), gaussian(0.1), secure_aggregation())
    found = STATISTIC.estimate(SumResult.from_folder("exchange", summed(defense)))
    assert found.noise == STATISTIC.simulate(SITES, defense).noise
    assert found.count != 123


def test_what_is_no_result_of_the_terms_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    terms = summed(None)
    SumResult.from_folder("exchange", terms)  # the control
    with pytest.raises(StorageError, match="is the round complete"):
        SumResult.from_folder("exchange", terms, round=2)
    with pytest.raises(DataError, match="of other terms"):
        SumResult.from_folder("exchange", STATISTIC.terms(clients=4, defense=None))
    with pytest.raises(ConfigError, match="no total of integers"):
        SumResult.from_folder("exchange", SumTerms.like({"b": 0}, clients=3, defense=None))
    file = Path("exchange/round-1-result.json")
    facts = json.loads(file.read_text())
    for text in (*(json.dumps(facts | {key: "many"}) for key in ("weight", "survivors", "noise")), "{}", "[1]", "half"):
        file.write_text(text)
        with pytest.raises(DataError, match="hold no result of these terms"):
            SumResult.from_folder("exchange", terms)
    for text in (json.dumps(facts | {"round": float("inf")}), "[" * 100_000):
        file.write_text(text)
        with pytest.raises(DataError, match="hold no result of these terms"):
            SumResult.from_folder("exchange", terms)
    file.write_bytes(b"\xff{}")
    with pytest.raises(DataError, match="hold no result of these terms"):
        SumResult.from_folder("exchange", terms)
    file.write_text(json.dumps(facts))
    with np.load("exchange/round-1-mean.npz") as archive:
        mean = dict(archive)
    np.savez("exchange/round-1-mean.npz", **{name: np.ones((7, 7)) for name in mean})
    with pytest.raises(DataError, match=r"hold no result of these terms.*has shape \(7, 7\)"):
        SumResult.from_folder("exchange", terms)
    Path("exchange/round-1-mean.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="hold no result of these terms"):
        SumResult.from_folder("exchange", terms)

"""Tables made for the tests: three to five sites, with missing values, heavy tails and rare levels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

Table = Mapping[str, Any]
AGE, DOSE, PLATELETS = (0, 120), 4000, (0, 1500)
BOUNDS = {"age": AGE, "dose": DOSE, "platelets": PLATELETS}
WARDS, SEXES = ("icu", "surgery", "burns"), ("f", "m")
SEEDS = range(5)


def site(rng: np.random.Generator, rows: int) -> dict[str, Any]:
    """One site's rows: dose has a heavy tail, platelets lack values, one row in thirty is of the ward "burns"."""
    age = rng.normal(55, 15, rows).clip(0, 120)
    dose = rng.pareto(1.5, rows).clip(0, 4000)
    platelets = rng.normal(250, 80, rows).clip(0, 1500)
    ward = rng.choice(WARDS, rows, p=(0.3, 0.67, 0.03))
    sex = rng.choice(SEXES, rows)
    risk = 0.03 * (age - 55) - 0.004 * (platelets - 250) + 0.8 * (ward == "icu")
    out: dict[str, Any] = {
        "age": age, "dose": dose, "platelets": platelets, "ward": ward.astype(object), "sex": sex.astype(object),
        "group": np.where(ward == "burns", "surgery", ward).astype(object),
        "cost": 100 + 2 * age - 0.1 * platelets + rng.normal(0, 10 + age / 10, rows),
        "readmitted": (rng.random(rows) < 1 / (1 + np.exp(-risk))).astype(float),
        "visits": rng.poisson(np.exp(0.3 + 0.3 * risk)).clip(0, 60).astype(float),
        "time": np.ceil(rng.exponential(20 * np.exp(-0.5 * risk), rows)).clip(1, 60),
        "died": (rng.random(rows) < 0.7).astype(float),
        "weight": rng.uniform(0.5, 3.0, rows),
    }  # fmt: skip
    return out


def with_gaps(table: Table, rng: np.random.Generator) -> dict[str, Any]:
    """The table with one number in twenty missing, of age, dose and platelets."""
    out = dict(table)
    for name in BOUNDS:
        gone = rng.random(len(table[name])) < 0.05
        out[name] = np.where(gone, np.nan, table[name])
    return out


def sites(seed: int, *, gaps: bool) -> list[dict[str, Any]]:
    """The tables of three to five sites."""
    rng = np.random.default_rng(seed)
    made = [site(rng, int(rng.integers(60, 200))) for _ in range(3 + seed % 3)]
    return [with_gaps(table, rng) for table in made] if gaps else made


def pooled(tables: list[dict[str, Any]]) -> pd.DataFrame:
    """All rows in one frame."""
    return pd.concat([pd.DataFrame(table) for table in tables], ignore_index=True)

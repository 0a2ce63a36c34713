"""What the audit runs for each algorithm: hyper-parameters, how the data is split, the secret, and the clip.

The settings are those in which the reference attacks were measured; every number is printed in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from securefed.algorithms.base import Algorithm, Public
from securefed.catalogue import algorithms
from securefed.datasets import partition
from securefed.datasets.base import Dataset
from securefed.datasets.loaders import Source
from securefed.errors import ConfigError
from securefed.registry import Registry
from securefed.tensors import Array, Tensors

SMALL_CLIENT = 8
"""Rows of the target of the subspace methods: fewer than features, so its Gram matrix has low rank."""
HELD_OUT = 0.2
STANDARDISED_FEATURES = 20

Setting = Mapping[str, Any]


@dataclass(frozen=True)
class Prepared:
    """One seed's federation.

    Attributes:
        clients: one data set each; client 0 is the target.      test: held-out rows, on which utility is measured.
        public: declared facts.      image_shape: of rows that are images.
    """

    clients: tuple[Dataset, ...]
    test: Dataset
    public: Public
    image_shape: tuple[int, int] | None


Preparation = Callable[[Source, int, int], Prepared]
"""(source, clients, seed) -> the data of one run."""


@dataclass(frozen=True)
class WideCase:
    """The same algorithm on all of the data's width.

    Attributes:
        prepare: as in `Case`.      rounds: prefix lengths at which the attack is tried.
    """

    prepare: Preparation
    rounds: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """How the audit runs one algorithm.

    Attributes:
        name: the algorithm's registry name.      setting: its hyper-parameters.
        secret: what its clients want kept: their `gram` matrix, or their `samples`.
        prepare: (source, clients, seed) -> data of one run.
        rounds: training rounds.      clip: L2 norm of one contribution under differential privacy.
        utility: (final broadcast, held-out rows) -> score, higher is better.      utility_name: what it measures.
        data: the split, in words.
        wide: a harder setting, traced over rounds beside the default one.
        absences: the data of the view in which the target stays away now and then; `None` without that view.
    """

    name: str
    setting: Setting
    secret: Literal["gram", "samples"]
    prepare: Preparation
    rounds: int
    clip: float
    utility: Callable[[Tensors, Dataset], float]
    utility_name: str
    data: str
    wide: WideCase | None = None
    absences: Preparation | None = None

    def build(self) -> Algorithm[Any, Any]:
        """The algorithm with this case's hyper-parameters."""
        return algorithms.make(self.name, **self.setting)

    def describe(self) -> dict[str, Any]:
        """For the report."""
        setting = {
            name: value if isinstance(value, int | float | str | bool) else str(value)
            for name, value in self.setting.items()
        }
        return {
            "hyper-parameters": setting,
            "data": self.data,
            "rounds": self.rounds,
            "secret": self.secret,
            "clip": self.clip,
            "utility": self.utility_name,
        }


def even_shares(source: Source, clients: int, seed: int) -> Prepared:
    """Raw rows, the same number for every client."""
    rng = _rng(seed)
    rest, test = partition.split(source.data, HELD_OUT, rng)
    return _prepared(partition.iid(rest, clients, rng), test, source.feature_bound, source.image_shape)


def one_small_client(source: Source, clients: int, seed: int) -> Prepared:
    """Raw rows; the target holds `SMALL_CLIENT` of them, the others share the rest."""
    rng = _rng(seed)
    rest, test = partition.split(source.data, HELD_OUT, rng)
    parts = partition.one_small(rest, clients, SMALL_CLIENT, rng)
    return _prepared(parts, test, source.feature_bound, source.image_shape)


def standardised(features: int | None) -> Preparation:
    """Columns of highest variance (all that vary for `None`), split evenly; every client z-scores its own rows.

    A column that is constant at a client becomes zero there.
    """

    def prepare(source: Source, clients: int, seed: int) -> Prepared:
        rng = _rng(seed)
        spread = source.data.x.std(axis=0)
        order = np.argsort(-spread, kind="stable")
        chosen = np.sort(order[: min(features or len(order), int((spread > 0).sum()))])
        rest, test = partition.split(Dataset(source.data.x[:, chosen], source.data.y), HELD_OUT, rng)
        parts = [_z_scored(part) for part in partition.iid(rest, clients, rng)]
        bound = max(float(np.abs(part.x).max()) for part in parts)
        return _prepared(parts, _z_scored(test), bound, None)

    return prepare


def _z_scored(data: Dataset) -> Dataset:
    spread = data.x.std(axis=0)
    return Dataset((data.x - data.x.mean(axis=0)) / np.where(spread > 0, spread, 1.0), data.y)


def one_sample_each(source: Source, clients: int, seed: int) -> Prepared:
    """One row for every client."""
    rng = _rng(seed)
    rest, test = partition.split(source.data, HELD_OUT, rng)
    classes = int(source.data.labels().max()) + 1
    prepared = _prepared(partition.sized(rest, [1] * clients, rng), test, source.feature_bound, source.image_shape)
    public = prepared.public
    facts = Public(public.clients, public.cohort, public.features, public.rows, classes, public.feature_bound)
    return Prepared(prepared.clients, test, facts, source.image_shape)


def _prepared(parts: list[Dataset], test: Dataset, bound: float, image_shape: tuple[int, int] | None) -> Prepared:
    return Prepared(tuple(parts), test, Public.of(parts, feature_bound=bound), image_shape)


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 0xDA7A])


def captured_variance(output: Tensors, test: Dataset) -> float:
    """Share of the held-out rows' energy in the span of `basis`, over the best share of that rank (1 is optimal)."""
    basis, _ = np.linalg.qr(output["basis"])
    best = np.linalg.svd(test.x, compute_uv=False)[: basis.shape[1]]
    return float(np.sum((test.x @ basis) ** 2) / np.sum(best**2))


def pooled_gram(clients: tuple[Dataset, ...]) -> Array:
    """Sum of the clients' Gram matrices, (features, features)."""
    rows = np.concatenate([data.x for data in clients])
    return np.asarray(rows.T @ rows)


def _accuracy(algorithm: str, setting: Setting) -> Callable[[Tensors, Dataset], float]:
    def utility(output: Tensors, test: Dataset) -> float:
        built: Any = algorithms.make(algorithm, **setting)
        return float(built.utility(output, test))

    return utility


cases: Registry[Case] = Registry("algorithm")


def _register(case: Case) -> None:
    entry = algorithms[case.name]
    cases.register(case.name, lambda: case, summary=entry.summary, source=entry.source)


def case(name: str) -> Case:
    """The case of an algorithm. Raises `UnknownNameError` for a name that has none."""
    return cases[name].make()


def require_clients(clients: int) -> None:
    """The audit's smallest federation: secure aggregation needs 3, a collusion of all others leaves one."""
    if clients < 3:
        raise ConfigError(f"the audit needs at least 3 clients (secure aggregation refuses fewer), not {clients}")


_RANK = 5
_SUBSPACE_DATA = (
    f"raw rows; client 0 (the target) holds {SMALL_CLIENT}, the others share the rest evenly "
    "(changing survivors: even shares)"
)
_SAMPLES_DATA = "one row for every client; utility on held-out rows"

for _name in ("pca/ssi", "pca/localpower", "pca/faps"):
    _register(
        Case(
            name=_name,
            setting={"rank": _RANK},
            secret="gram",
            prepare=one_small_client,
            rounds=10,
            clip=300.0,
            utility=captured_variance,
            utility_name="captured variance",
            data=_SUBSPACE_DATA,
            absences=even_shares if _name == "pca/ssi" else None,
        )
    )
_register(
    Case(
        name="pca/fedpg",
        setting={"rank": 3, "rho": 1.0, "step_size": 0.01, "local_steps": 1, "normalise": True},
        secret="gram",
        prepare=standardised(STANDARDISED_FEATURES),
        rounds=13,
        clip=2.0,
        utility=captured_variance,
        utility_name="captured variance",
        data=f"the {STANDARDISED_FEATURES} columns of highest variance, even shares, z-scored by each client",
        wide=WideCase(standardised(None), (13, 25, 40, 60)),
    )
)
_GRADIENT_SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("optimization/dsgd", {"problem": "softmax", "learning_rate": 0.1}),
    ("optimization/fedavg", {"problem": "softmax", "learning_rate": 0.05, "local_steps": 5}),
    # Two local steps, as in the comparison of these two in LoSAC's table 2.
    ("optimization/scaffold", {"problem": "softmax", "learning_rate": 0.1, "local_steps": 2}),
    ("optimization/losac", {"problem": "softmax", "learning_rate": 0.1, "local_steps": 2, "blocks": 1}),
)
for _name, _setting in _GRADIENT_SETTINGS:
    _register(
        Case(
            name=_name,
            setting=_setting,
            secret="samples",
            prepare=one_sample_each,
            rounds=6,
            clip=1.0,
            utility=_accuracy(_name, _setting),
            utility_name="accuracy",
            data=_SAMPLES_DATA,
        )
    )

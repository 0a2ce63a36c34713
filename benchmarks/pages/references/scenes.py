"""Federations of digits as the references describe them: five clients, the pixels of highest variance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from securefed._auditing.cases.data_splits import most_varied
from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed._runtime.server import Result
from securefed._tensors import Array
from securefed.attacks import views
from securefed.attacks._base import Target, View
from securefed.datasets._base import Dataset
from securefed.defenses._base import Defense

CLIENTS = 5


def digits(features: int, seed: int, *, by_label: bool = False, standardised: bool = False) -> list[Dataset]:
    """Even shares of the 1797 digits, pixels in [0, 1]; by label, or shuffled."""
    source = load_digits()
    data = most_varied(Dataset(source.data / 16, source.target), features)
    order = np.random.default_rng(seed).permutation(data.rows)
    if by_label:
        order = np.argsort(source.target, kind="stable")
    parts = [data.x[part] for part in np.array_split(order, CLIENTS)]
    return [Dataset(_z_scored(part) if standardised else part) for part in parts]


def gram(*clients: Dataset) -> Array:
    """The pooled Gram matrix."""
    return np.asarray(sum(data.x.T @ data.x for data in clients))


@dataclass(frozen=True)
class Scene:
    """A finished run.

    Attributes:
        client: the one that is attacked.
    """

    target: Target
    result: Result
    federation: Federation
    clients: Sequence[Dataset]
    client: int

    @property
    def view(self) -> View:
        """That client's messages in the clear."""
        return views.server(self.result.transcript, self.client)

    @property
    def truth(self) -> Array:
        """Its Gram matrix."""
        return gram(self.clients[self.client])


def scene(
    algorithm: Any,
    clients: Sequence[Dataset],
    rounds: int,
    seed: int,
    *,
    client: int | None = None,
    defense: Defense | None = None,
    schedule: Callable[[int], Sequence[int]] | None = None,
) -> Scene:
    """Run it; the client attacked is `seed` modulo their number unless it is named."""
    public = Public.of(clients)
    federation = Federation(
        algorithm, clients, defense, seed=seed, public=public, options=RunOptions(schedule=schedule)
    )
    result = federation.run(rounds)
    return Scene(
        Target(algorithm, federation.public),
        result,
        federation,
        clients,
        seed % len(clients) if client is None else client,
    )


def _z_scored(x: Array) -> Array:
    spread = x.std(axis=0)
    return np.asarray((x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0))

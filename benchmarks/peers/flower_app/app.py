"""A Flower app: principal components of breast-cancer records that lie at several hospitals.

The server sees masked uploads and their sum, and no Gram product of any one hospital. docs/flower.md says how to start
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from sklearn.datasets import load_breast_cancer

from securefed import Dataset, Public, Terms, chain
from securefed._catalogue import algorithms
from securefed._runtime.run_options import RunOptions
from securefed._tensors import encode
from securefed.defenses._secure_aggregation import secure_aggregation
from securefed.flower import client_app, serve

RECORDS, MEASURES = 569, 30
LARGEST = 12.1
"""Every standardised measure lies within this many standard deviations: the declared range."""


def terms(config: dict[str, Any]) -> Terms:
    """What all parties agree on, from the app's config alone."""
    clients = int(config["clients"])
    rows = tuple(len(range(client, RECORDS, clients)) for client in range(clients))
    public = Public(clients, clients, MEASURES, rows, classes=2, feature_bound=LARGEST)
    defense = chain(secure_aggregation(pipelined=True))
    return Terms.of(algorithms.make("pca/ssi", rank=3), public, defense, seed=int(config["seed"]))


def rows(client: int, clients: int) -> Dataset:
    """One hospital's records; a real app reads a file of its own here."""
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return Dataset(np.ascontiguousarray(x[client::clients]), y[client::clients].astype(np.int64))


def _own(context: Context) -> Dataset:
    return rows(int(context.node_config["partition-id"]), int(context.run_config["clients"]))


client = client_app(lambda context: terms(context.run_config), _own)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run, and keep the components beside what each round took."""
    result = serve(
        grid,
        terms(context.run_config),
        int(context.run_config["rounds"]),
        wait=300.0,
        options=RunOptions(timeout=120.0),
    )
    history = [entry.to_json() for entry in result.history]
    Path(str(context.run_config["out"])).write_bytes(encode(result.output, {"history": history}))

"""Federated ridge regression, written from extension_templates/algorithm.py: each client sends X^T X and X^T y."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed import Array, Layout, TensorSpec
from securefed.algorithms import Algorithm, AuditCase, ClientData, algorithms


@dataclass(frozen=True)
class RidgeServer:
    weights: Array


@algorithms.register("statistics/ridge", summary="Ridge regression", source="textbook", transmits="X^T X, X^T y")
@dataclass(frozen=True)
class Ridge(Algorithm[RidgeServer, ClientData]):
    penalty: float = 1.0
    largest_response: float = 10.0
    test_settings: ClassVar = {"penalty": 0.5}
    audit_case: ClassVar = AuditCase(settings={"penalty": 1.0}, secret="gram", rounds=2)

    def layout(self, public):
        d, x = public.features, public.feature_bound
        gram = TensorSpec("gram", (d, d), max(public.rows) * x**2 * 1.001, ring=64)
        return Layout((gram, TensorSpec("moment", (d,), max(public.rows) * x * self.largest_response, ring=64)))

    def start(self, public, rng):
        return RidgeServer(np.zeros(public.features))

    def enroll(self, data, public, rng):
        return ClientData(data)

    def broadcast(self, server):
        return {"weights": server.weights}

    def contribute(self, client, broadcast, rng):
        x = client.data.x
        return client, {"gram": x.T @ x, "moment": x.T @ client.data.y}

    def combine(self, server, aggregate):
        gram = aggregate.total["gram"] + self.penalty * np.eye(len(server.weights))
        return RidgeServer(np.linalg.solve(gram, aggregate.total["moment"]))

    def utility(self, output, test):
        return -float(np.mean((test.x @ output["weights"] - test.y) ** 2))

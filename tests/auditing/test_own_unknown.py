"""The audit of a step that uses the rows only through their Gram matrix, or their columns' distances, reads that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.datasets import load_digits

from securefed import Algorithm, Layout, TensorSpec, audit_algorithm
from securefed.errors import ConfigError
from tests.combinations import first_ones


def digits(columns: int, rows: int, clients: int = 4, standardised: bool = False) -> list[Any]:
    x = load_digits().data / 16
    x = x[:, np.argsort(-x.var(axis=0))[:columns]][np.random.default_rng(0).permutation(len(x))]
    parts = [x[i * rows : (i + 1) * rows] for i in range(clients)]
    return [(part - part.mean(axis=0)) / part.std(axis=0) if standardised else part for part in parts]


@dataclass(frozen=True)
class Manifold(Algorithm):
    """FedPG as a stranger writes it: one step on the Grassmann manifold, and a dual variable kept by the client."""

    needs_outcome: ClassVar[bool] = True

    rank: int = 3
    rho: float = 1.0
    rate: float = 0.01

    def layout(self, public):
        return Layout((TensorSpec("sent", (public.features, self.rank), 100.0),))

    def start(self, public, rng):
        return np.linalg.qr(rng.normal(size=(public.features, self.rank)))[0]

    def enroll(self, data, public, rng):
        return {"gram": data.x.T @ data.x / len(data.x), "U": None, "Y": np.zeros((public.features, self.rank))}

    def broadcast(self, server):
        return {"Z": server}

    def contribute(self, client, broadcast, rng):
        Z, Y = broadcast["Z"], client["Y"]
        U = np.linalg.qr(Z)[0] if client["U"] is None else client["U"]
        slope = -2 * client["gram"] @ U + Y - self.rho * Z
        Q, R = np.linalg.qr(U - self.rate * (slope - U @ (U.T @ slope)))
        U = Q * np.sign(np.diag(R))
        return {**client, "U": U, "M": U + Y / self.rho}, {"sent": U + Y / self.rho}

    def commit(self, client, outcome):
        return {**client, "Y": self.rho * (client["M"] - outcome.broadcast["Z"])}

    def combine(self, server, aggregate):
        return aggregate.total["sent"] / aggregate.count


@dataclass(frozen=True)
class Graphs(Algorithm):
    """PPGL's client as a stranger writes it: one projected step on the weights of all pairs of columns."""

    rate: float = 0.005

    def layout(self, public):
        return Layout((TensorSpec("graph", (public.features * (public.features - 1) // 2,), 100.0),))

    def start(self, public, rng):
        return np.full(public.features * (public.features - 1) // 2, 0.1)

    def enroll(self, data, public, rng):
        heads, tails = np.triu_indices(public.features, 1)
        z = ((data.x[:, heads] - data.x[:, tails]) ** 2).mean(axis=0)
        ends = np.eye(public.features)[heads] + np.eye(public.features)[tails]
        return {"z": z, "ends": ends, "w": np.full(len(heads), 0.1)}

    def broadcast(self, server):
        return {"consensus": server}

    def contribute(self, client, broadcast, rng):
        w, ends = client["w"], client["ends"]
        slope = client["z"] - ends @ (1 / (ends.T @ w + 1e-3)) + 0.04 * w + 0.9 * (w - broadcast["consensus"])
        w = np.maximum(0.0, w - self.rate * slope)
        return {**client, "w": w}, {"graph": w}

    def combine(self, server, aggregate):
        return aggregate.total["graph"] / aggregate.count


def found(report: Any, secret: str, attack: str) -> Any:
    cells = [c for c in report.cells if c.secret == secret and c.attack == attack and c.view == "server"]
    assert len(cells) == 1, [(c.secret, c.attack) for c in report.cells]
    return cells[0]


@pytest.mark.parametrize("standardised", first_ones([True, False]), ids=["z-scored", "few rows"])
def test_a_strangers_fedpg_gives_the_gram_matrix(standardised):
    clients = digits(8, 30 if standardised else 5, standardised=standardised)
    report = audit_algorithm(Manifold(), clients, rounds=8, seeds=1, view="server", unknown="gram")
    cell = found(report, "gram", "generic/gram")
    assert cell.leakage.mean > 1 - 1e-4 and cell.verdict.word == "exposed"


def test_a_strangers_graph_learning_gives_the_distances():
    clients = digits(8, 6)
    report = audit_algorithm(Graphs(), clients, rounds=2, seeds=1, view="server", unknown="distances")
    cell = found(report, "distances", "generic/distances")
    assert cell.leakage.mean > 1 - 1e-6 and cell.verdict.word == "exposed"


class Asarray(Manifold):
    """Converts its arrays, so that no derivatives pass."""

    def contribute(self, client, broadcast, rng):
        return super().contribute({**client, "gram": np.asarray(client["gram"])}, broadcast, rng)


def test_a_step_without_derivatives_is_fitted_by_differences():
    clients = digits(5, 8, standardised=True)
    report = audit_algorithm(replace(Asarray(), rank=2), clients, rounds=6, seeds=1, view="server", unknown="gram")
    assert found(report, "gram", "generic/gram").leakage.mean > 1 - 1e-4


def test_a_step_that_depends_on_more_is_named():
    def sums(rows, broadcast):
        return {"sum": np.tanh(rows).sum(axis=0)}

    start = {"w": np.zeros(1)}
    report = audit_algorithm(sums, digits(4, 5), rounds=1, seeds=1, view="server", start=start, unknown="gram")
    assert any('audit with unknown="rows"' in reason for reason in report.skipped)


def test_unknowns_without_a_name_are_refused():
    with pytest.raises(ConfigError, match='"rows", "gram" or "distances"'):
        audit_algorithm(Manifold(), digits(4, 5), unknown="covariance")

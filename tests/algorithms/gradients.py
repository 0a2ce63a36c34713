"""Data, a round loop without a message layer, and reference optima for the tests of the gradient methods."""

import numpy as np
from scipy.optimize import minimize

from securefed import Aggregate, Dataset, Layout, Public
from securefed._tensors import add
from securefed.algorithms import RoundOutcome
from securefed.problems import SoftmaxRegression

PROBLEM = SoftmaxRegression(l2=0.1)


def make_clients(count: int, rows: int = 6, classes: int = 3, seed: int = 0, features: int = 4) -> list[Dataset]:
    rng = np.random.default_rng(seed)
    sizes = [rows + k % 3 for k in range(count)]
    return [
        Dataset(rng.uniform(-1, 1, (n, features)), np.append(rng.integers(classes, size=n - 1), classes - 1))
        for n in sizes
    ]


class Loop:
    """The round loop without a message layer: `drop(round) -> ids` whose contribution does not count.

    `together` computes a round's contributions as one cohort: the same draws, several times as fast.
    """

    def __init__(self, method, data, *, cohort=None, seed=0, public=None, together=False):
        self.method, self.rng, self.together = method, np.random.default_rng(seed), together
        self.public = public or Public.of(data, cohort=cohort)
        self.server = method.start(self.public, self.rng)
        self.clients = [method.enroll(rows, self.public, self.rng) for rows in data]

    def run(self, rounds, drop=lambda _: ()):
        for number in range(rounds):
            invited = sorted(self.rng.choice(len(self.clients), self.public.cohort, replace=False))
            lost = set(drop(number))
            self.round([k for k in invited if k not in lost], [k for k in invited if k in lost])
        return self

    def round(self, survivors, lost=()):
        broadcast = self.method.broadcast(self.server)
        total, everyone = None, [*survivors, *lost]
        if self.together and everyone:
            clients = [self.clients[k] for k in everyone]
            results = self.method.contribute_together(clients, broadcast, [self.rng] * len(clients))
        else:
            results = [self.method.contribute(self.clients[k], broadcast, self.rng) for k in everyone]
        for k, (tentative, sent) in zip(everyone, results, strict=True):
            state = tentative
            self.method.layout(self.public).check(sent)
            if k in survivors:
                total = sent if total is None else add(total, sent)
            elif k % 2:
                state = self.clients[k]  # never heard: the tentative state is forgotten
            self.clients[k] = self.method.commit(state, RoundOutcome(k in survivors, None))
        if total is not None:
            self.server = self.method.combine(self.server, Aggregate(total, tuple(survivors)))

    @property
    def x(self):
        return self.server.vectors["x"]

    def memories(self):
        return np.sum([np.sum(client.memory, axis=0) for client in self.clients], axis=0)


def some_drop(seed, count, share=0.3):
    rng = np.random.default_rng(seed)
    return lambda _: np.flatnonzero(rng.random(count) < share)


def optimum(problem, data, weights, initial):
    """Minimiser of sum_i weights[i] * (mean loss of client i), and the norm of its gradient at a point.

    BFGS compares values of the loss, in which a distance below about 1e-8, the root of the rounding error, does not
    show; where it stops hangs on the last bits. Newton's steps on the gradient go on from there to about 1e-14.
    """
    layout = Layout.of(initial)

    def value(vector):
        parameters = layout.unflatten(vector)
        losses = [w * problem.loss(parameters, d.x, d.y) for w, d in zip(weights, data, strict=True)]
        parts = [w * layout.flatten(problem.gradient(parameters, d.x, d.y)) for w, d in zip(weights, data, strict=True)]
        return sum(losses), np.sum(parts, axis=0)

    x = minimize(value, layout.flatten(initial), jac=True, method="BFGS", options={"gtol": 1e-10}).x
    for _ in range(3):
        shifts = 1e-5 * np.eye(len(x))  # central differences: the Hessian to about 1e-10
        hessian = np.stack([(value(x + shift)[1] - value(x - shift)[1]) / 2e-5 for shift in shifts])
        x = x - np.linalg.lstsq(hessian, value(x)[1], rcond=1e-8)[0]  # a common shift of the biases changes nothing
    return x, lambda vector: np.linalg.norm(value(vector)[1])


def composite_optimum(problem, data, weights, initial, regulariser, step=0.05, steps=2000):
    """Minimiser of sum_i weights[i] * (mean loss of client i) + Psi, by plain proximal gradient descent."""
    layout = Layout.of(initial)
    x = layout.flatten(initial)
    for _ in range(steps):
        parts = [
            w * layout.flatten(problem.gradient(layout.unflatten(x), d.x, d.y))
            for w, d in zip(weights, data, strict=True)
        ]
        x = regulariser.prox(x - step * np.sum(parts, axis=0), step, layout)
    return x

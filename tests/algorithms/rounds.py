"""Data and a hand-fed round loop for the tests of the algorithms."""

import numpy as np
from sklearn.datasets import load_digits

from securefed import Aggregate, Dataset, Public
from securefed._tensors import add
from securefed.algorithms import RoundOutcome
from securefed.algorithms._pca.operators import off, orth


def digits(parts=4, features=64):
    x = load_digits().data / 16
    top = np.sort(np.argsort(x.var(axis=0))[::-1][:features])
    order = np.random.default_rng(1).permutation(len(x))
    return [Dataset(part) for part in np.array_split(x[order][:, top], parts)]


def centred(parts=4):
    x = load_digits().data / 16
    x = (x - x.mean(axis=0))[np.random.default_rng(2).permutation(len(x))]
    return [Dataset(part) for part in np.array_split(x, parts)]


def spectrum(features, rows, xi, parts, seed):
    """Rows whose pooled singular values are xi^(1-i)  (faps 23-24)."""
    rng = np.random.default_rng(seed)
    u, v = (orth(rng.uniform(-1, 1, (size, features))) for size in (features, rows))
    return [Dataset(part) for part in np.array_split(v * xi ** -np.arange(features) @ u.T, parts)]


def subspace_error(basis, x, rank):
    truth = np.linalg.svd(x, full_matrices=False)[2][:rank].T
    return np.linalg.norm(off(truth, orth(basis)))


class Loop:
    """The round loop by hand: tentative states are committed only for the survivors of a round."""

    def __init__(self, algorithm, clients, seed=0):
        self.algorithm, self.public = algorithm, Public.of(clients)
        rng = np.random.default_rng(seed)
        self.server = algorithm.start(self.public, rng)
        self.clients = [algorithm.enroll(data, self.public, rng) for data in clients]
        self.sent = {}

    def round(self, survivors=None, dropped=()):
        ids = tuple(range(len(self.clients))) if survivors is None else survivors
        broadcast = self.algorithm.broadcast(self.server)
        steps = {i: self.algorithm.contribute(self.clients[i], broadcast, None) for i in (*ids, *dropped)}
        self.sent = {i: steps[i][1] for i in ids}
        total = self.sent[ids[0]]
        for i in ids[1:]:
            total = add(total, self.sent[i])
        self.server = self.algorithm.combine(self.server, Aggregate(total, ids))
        followed = self.algorithm.broadcast(self.server) if self.algorithm.needs_outcome else None
        for i in ids:
            self.clients[i] = self.algorithm.commit(steps[i][0], RoundOutcome(True, followed))
        return broadcast

    def run(self, rounds):
        for _ in range(rounds):
            if self.algorithm.finished(self.server):
                break
            self.round()
        return self

"""Runs of consensus PCA on digits, as an attacker sees each client, beside the clients' true states."""

import numpy as np
from sklearn.datasets import load_digits

from securefed import Aggregate, Dataset, Public
from securefed._tensors import add
from securefed.algorithms import RoundOutcome
from securefed.attacks import RoundView, Target, View


def digits(features, seed, parts=5, standardised=True):
    x = load_digits().data / 16
    x = x[:, np.argsort(x.var(axis=0))[::-1][:features]][np.random.default_rng(seed).permutation(len(x))]
    out = []
    for part in np.array_split(x, parts):
        spread = part.std(axis=0)
        scaled = (part - part.mean(axis=0)) / np.where(spread > 0, spread, 1)
        out.append(Dataset(scaled if standardised else part))
    return out


def observe(algorithm, clients, rounds, seed=0, schedule=None):
    """One view for each client: its own messages, and the broadcasts that followed; and the clients' true states."""
    rng = np.random.default_rng(seed)
    public = Public.of(clients)
    server, states = algorithm.start(public, rng), [algorithm.enroll(data, public, rng) for data in clients]
    seen, truth = {i: [] for i in range(len(clients))}, {i: [] for i in range(len(clients))}
    for k in range(rounds):
        survivors = schedule(k) if schedule else tuple(range(len(clients)))
        broadcast = algorithm.broadcast(server)
        steps = {i: algorithm.contribute(states[i], broadcast, rng) for i in survivors}
        first, *rest = (sent for _, sent in steps.values())
        for other in rest:
            first = add(first, other)
        server = algorithm.combine(server, Aggregate(first, survivors))
        followed = algorithm.broadcast(server)
        for i, (tentative, sent) in steps.items():
            seen[i].append(RoundView(k, broadcast, sent, frozenset({i}), frozenset(survivors), followed))
            truth[i].append((states[i], tentative))
            states[i] = algorithm.commit(tentative, RoundOutcome(True, followed))
    output = algorithm.broadcast(server)
    return {i: View("server", i, tuple(o), output) for i, o in seen.items()}, Target(algorithm, public), truth


def gram(data):
    return data.x.T @ data.x

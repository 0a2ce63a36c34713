"""Runs of the subspace methods on digits, as an attacker sees one client or a sum of several."""

import numpy as np
from sklearn.datasets import load_digits

from securefed import Aggregate, Dataset, Public
from securefed.algorithms import RoundOutcome
from securefed.attacks import RoundView, Target, View


def digits(features, kind="sorted", parts=5, seed=0):
    data = load_digits()
    columns = np.sort(np.argsort(data.data.var(axis=0))[::-1][:features])
    order = (
        np.argsort(data.target, kind="stable") if kind == "sorted" else np.random.default_rng(seed).permutation(1797)
    )
    return [Dataset(data.data[rows][:, columns] / 16) for rows in np.array_split(order, parts)]


def observe(algorithm, clients, rounds, members=(0,), *, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    public = Public.of(clients)
    server, states = algorithm.start(public, rng), [algorithm.enroll(data, public, rng) for data in clients]
    seen, everybody = [], tuple(range(len(clients)))
    for k in range(rounds):
        broadcast = algorithm.broadcast(server)
        steps = [algorithm.contribute(state, broadcast, rng) for state in states]
        states = [algorithm.commit(tentative, RoundOutcome(True, None)) for tentative, _ in steps]
        total = {name: sum(sent[name] for _, sent in steps) for name in steps[0][1]}
        shown = {name: sum(steps[i][1][name] for i in members) for name in total}
        spread = noise * np.abs(shown["product"]).max()
        shown["product"] = shown["product"] + spread * rng.normal(size=shown["product"].shape)
        seen.append(RoundView(k, broadcast, shown, frozenset(members), frozenset(everybody)))
        server = algorithm.combine(server, Aggregate(total, everybody))
    target = members[0] if len(members) == 1 else None
    return View("test", target, tuple(seen), algorithm.broadcast(server)), Target(algorithm, public)


def gram(*clients):
    return sum(data.x.T @ data.x for data in clients)

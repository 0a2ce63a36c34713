"""Record runs whose broadcasts and messages are rounded to a type, as deployments in float32 have them."""

from __future__ import annotations

import numpy as np

from securefed import Aggregate, Public, Transcript
from securefed.algorithms import RoundOutcome
from securefed.recording import Recording


def typed_run(algorithm, clients, rounds: int, kind=np.float32) -> Transcript:
    """Run an algorithm by its own steps, every number on the wire rounded."""
    public = Public.of(clients)
    server = algorithm.start(public, np.random.default_rng(0))
    states = [algorithm.enroll(data, public, np.random.default_rng([0, i])) for i, data in enumerate(clients)]
    recording = Recording(
        rows=public.rows, features=public.features, classes=public.classes, feature_bound=public.feature_bound
    )
    broadcast = _rounded(algorithm.broadcast(server), kind)
    for k in range(rounds):
        tentative, messages = [], {}
        for i, state in enumerate(states):
            after, sent = algorithm.contribute(state, broadcast, np.random.default_rng([0, i, k]))
            tentative.append(after)
            messages[i] = _rounded(sent, kind)
        total = {name: sum(np.asarray(m[name], np.float64) for m in messages.values()) for name in messages[0]}
        server = algorithm.combine(server, Aggregate(total, tuple(range(len(clients)))))
        recording.round(broadcast, messages)
        broadcast = _rounded(algorithm.broadcast(server), kind)
        states = [algorithm.commit(after, RoundOutcome(True, broadcast)) for after in tentative]
    return recording.finish(broadcast)


def _rounded(tensors, kind) -> dict:
    return {name: np.asarray(value).astype(kind) for name, value in tensors.items()}

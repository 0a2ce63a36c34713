"""Let a method with a publicly known first model begin at the model that a recorded run began with.

Personalised methods count on the first model w^0, which every party draws from a seed: a client's first state is made
of it. A run of another framework begins elsewhere, for instance at a pretrained model; its first broadcast says where.
`transcript_audit` calls `begun_as` before it attacks such a run, since attacks simulate clients from their first state.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from securefed._messages import Transcript
from securefed._public import Public
from securefed._tensors import Array
from securefed.algorithms._base import Algorithm
from securefed.algorithms._optimization.method import ModelServer
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._personalized.method import KnownStart
from securefed.errors import SecureFedError


def begun_as(transcript: Transcript, algorithm: Algorithm[Any, Any], public: Public) -> Algorithm[Any, Any]:
    """Return the algorithm with w^0 from the first training broadcast.

    It is the algorithm itself where w^0 is no hyper-parameter, where the broadcast is unknown or of other tensors, and
    where it holds the algorithm's own w^0. The attacks that it is given to then follow the run from its true start. Any
    other hyper-parameter that is wrong still makes the simulated messages disagree with the recorded ones.

    Args:
        transcript: the transcript of the recorded run.
        algorithm: the algorithm with the hyper-parameters that the attacker believes.
        public: public facts of the run.
    """
    first = next((record for record in transcript.records if record.kind == "train"), None)
    if not isinstance(algorithm, KnownStart) or first is None or not first.broadcast:
        return algorithm
    try:
        model = Model(algorithm.problem, public)
        begun = np.asarray(model.vector("", first.broadcast), np.float64)  # "": in a broadcast w has no prefix
        own = algorithm.initial(model)
    except (KeyError, ValueError, SecureFedError):
        return algorithm
    return algorithm if begun.shape != own.shape or np.array_equal(begun, own) else beginning_at(algorithm, begun)


def beginning_at(algorithm: KnownStart, begun: Array) -> KnownStart:
    """Return the algorithm with another w^0.

    Args:
        algorithm: the algorithm of whose class a subclass is made; the copy has its hyper-parameters, name and printed
            form.
        begun: (parameters,) the first model as one vector.
    """
    kind: Any = type(algorithm)

    class Begun(kind):  # type: ignore[misc]
        """The same method with another w^0."""

        def initial(self, model: Model) -> Array:
            return begun

        def start(self, public: Public, rng: np.random.Generator) -> ModelServer:
            server: ModelServer = super().start(public, rng)  # its x, which is w, comes from the problem by default
            return replace(server, vectors={**server.vectors, "x": begun.copy()})

    Begun.__name__, Begun.__qualname__ = kind.__name__, kind.__qualname__
    names = [field.name for field in fields(algorithm)]
    return Begun(**{name: getattr(algorithm, name) for name in names})

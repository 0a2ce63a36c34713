"""The algorithm behind `SumClient` and `SumServer`: the contribution comes from outside, and the sum is the result.

The runtime sums contributions of an `Algorithm`: it broadcasts, clients compute from the broadcast, the server combines
the sum. Here the broadcast is only a digest of the model that the updates are computed from: what clients upload is
bound to it, so that clients which were given different models are not summed. `SumServer` sets the digest when it
opens a round, to that of the model or, where rounds have none, to `no_model`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from securefed._messages import Aggregate
from securefed._public import Public
from securefed._tensors import Array, Layout, Tensors, TensorSpec
from securefed.algorithms._base import Algorithm
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError

BASE: Final = "base"
DIGEST_BYTES: Final = 32


def no_model(round: int) -> bytes:
    """Return what stands for the model's digest in a round that no model is bound to.

    It binds an upload to its round, and says nothing of what is summed: statistics of round 0 have it in common, and
    equal contributions of two rounds do not. So no client recognises a contribution by it. Without a model all
    contributions of the same rows count as equal (`SumRule.sources`, rule B in `sum_memory`).
    """
    return hashlib.sha256(f"securefed no model\0{round}".encode()).digest()


def base_array(digest: bytes) -> Array:
    """Return the digest of a model as the tensor that requests hold."""
    return np.frombuffer(digest, np.uint8).copy()


@dataclass(frozen=True)
class ExternalServer:
    """State of the server.

    Attributes:
        base: digest of the model that the next updates are computed from, uint8 (32,).
    """

    base: Array = field(default_factory=lambda: base_array(no_model(0)))


@dataclass(frozen=True)
class ExternalClient:
    """State of a client: empty, as the training loop keeps everything outside."""


@dataclass(frozen=True)
class ExternalSum(Algorithm[ExternalServer, ExternalClient]):
    """Sums contributions that the caller's own code computes.

    Attributes:
        specs: the tensors of one contribution.
    """

    specs: tuple[TensorSpec, ...]

    def layout(self, public: Public) -> Layout:
        """Return the layout of the terms."""
        return Layout(self.specs)

    def start(self, public: Public, rng: np.random.Generator) -> ExternalServer:
        """Return a state without a model."""
        return ExternalServer()

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> ExternalClient:
        """Return the empty state."""
        return ExternalClient()

    def broadcast(self, server: ExternalServer) -> dict[str, Array]:
        """Return the digest of the model; the model itself travels as the caller likes."""
        return {BASE: server.base}

    def contribute(
        self, client: ExternalClient, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[ExternalClient, Tensors]:
        """Raise `ConfigError`: contributions come from outside (`SumClient.receive`)."""
        raise ConfigError("the contribution of an ExternalSum comes from SumClient.receive(request, update)")

    def combine(self, server: ExternalServer, aggregate: Aggregate) -> ExternalServer:
        """Return the state without a model: each round names its own.

        No client computes from this state: before it sends anything, `SumServer.open` replaces it by the next round's.
        """
        return ExternalServer()

"""Define attacks by a server that chooses its broadcasts: dialogues of a broadcast out and the round's message in.

The server deviates from the protocol: it sends models of its choice, and attacks from what the clients answer. An
active attack is a generator, so that it needs no network: it yields the broadcast of the next round, is sent what the
server then observes, and returns its estimate. The engine that runs a federation with such a server is
`securefed._auditing.active`; tests feed messages by hand.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from securefed._messages import ClientId
from securefed._registry import Registry
from securefed._tensors import Tensors
from securefed.attacks._base import Reconstruction, RoundView, Target


@dataclass(frozen=True)
class ChosenBroadcast:
    """The broadcast of one round, sent instead of the algorithm's.

    Attributes:
        to_all: the broadcast that every client receives.
        to_some: broadcasts of single clients that receive another one. A message layer that binds each upload to the
            broadcast it answers (secure aggregation here) refuses to sum clients that received different ones.
        counted: whether the server afterwards tells the clients that this round's sum counted them. A client that hears
            that it was not counted drops the state that it made in the round, as after a lost connection. A server that
            lies about it finds every client's memory as it was, round after round.
        doublings: how often the server says that the declared bounds were doubled, at most `Situation.doublings`; sums
            get coarser by as many bits.
    """

    to_all: Tensors
    to_some: Mapping[ClientId, Tensors] = field(default_factory=dict)
    counted: bool = True
    doublings: int = 0


@dataclass(frozen=True)
class Situation:
    """Facts that the server has before its first broadcast.

    Attributes:
        target: the algorithm and the public facts.
        honest: the broadcast with which an honest server would begin.
        victim: the client that is attacked.
        members: clients whose sum each message will be.
        doublings: how often clients accept that the declared bounds of messages are doubled.
    """

    target: Target
    honest: Tensors
    victim: ClientId
    members: frozenset[ClientId]
    doublings: int = 0

    @property
    def rows(self) -> int:
        """Number of the members' rows, which is public."""
        return sum(self.target.public.rows[client] for client in self.members)


Dialogue = Generator[ChosenBroadcast, RoundView, Reconstruction]
"""Yields the broadcast of each round, is sent the round as the server observes it, and returns the estimate."""


@runtime_checkable
class ActiveAttack(Protocol):
    """Reconstruct a secret by choosing broadcasts; an attack is a frozen dataclass of settings.

    Attributes:
        name: its name in the registry.
        secret: what it reconstructs, such as `gram` or `samples`.
    """

    name: ClassVar[str]
    secret: ClassVar[str]

    def applies(self, situation: Situation) -> str | None:
        """Return `None` where the attack can run, else the reason why not, in a sentence."""
        ...

    def play(self, situation: Situation, rng: np.random.Generator) -> Dialogue:
        """Begin the dialogue; it ends after a number of rounds that the attack's settings bound."""
        ...


active_attacks: Registry[ActiveAttack] = Registry("active attack", built_in="securefed.attacks._active")
"""All registered attacks by a server that chooses its broadcasts, by name."""

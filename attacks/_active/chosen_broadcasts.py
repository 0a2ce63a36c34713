"""Define attacks by a server that chooses its broadcasts: dialogues of a broadcast out and the round's message in.

The server deviates from the protocol: it sends models of its choice, and attacks from what the clients answer. An
active attack needs no network: `Dialogue.ask` sends a broadcast and returns what the server then observes. The
federation with such a server is `securefed._auditing.active.DeviatingServer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from securefed._messages import ClientId
from securefed._registry import Registry
from securefed._tensors import Tensors
from securefed.attacks._base import AttackOn, RoundView


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
        doublings: how often the server says that the declared bounds were doubled, at most `Dialogue.doublings`; sums
            get coarser by as many bits.
    """

    to_all: Tensors
    to_some: Mapping[ClientId, Tensors] = field(default_factory=dict)
    counted: bool = True
    doublings: int = 0


@dataclass(frozen=True)
class Dialogue:
    """A server's exchange with its clients, round by round, and the facts that it has before its first broadcast.

    Attributes:
        honest: the broadcast with which an honest server would begin.
        victim: the client that is attacked.
        members: clients whose sum each message will be.
        ask: sends the broadcast of the next round, and returns that round as the server observes it. It raises where
            clients or protocol refuse; an attack lets that pass.
        doublings: how often clients accept that the declared bounds of messages are doubled.
    """

    honest: Tensors
    victim: ClientId
    members: frozenset[ClientId]
    ask: Callable[[ChosenBroadcast], RoundView]
    doublings: int = 0


@runtime_checkable
class ActiveAttack(AttackOn[Dialogue], Protocol):
    """An attack by choosing broadcasts; it ends after a number of rounds that its settings bound."""


active_attacks: Registry[ActiveAttack] = Registry("active attack", built_in="securefed.attacks._active")
"""All registered attacks by a server that chooses its broadcasts, by name."""

"""Protocol of attacks, and the views that they work on.

An attack never sees a client, only observations: at each round the broadcast, and the message of the SMALLEST
known set of clients that holds its target: one client in the clear, all survivors under secure aggregation,
the survivors less the colluders under collusion. So every attack runs on every view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from securefed.algorithms.base import Algorithm
from securefed.messages import ClientId
from securefed.public import Public
from securefed.registry import Registry
from securefed.tensors import Array, Tensors


@dataclass(frozen=True)
class Observation:
    """One round, as an attacker sees it.

    Attributes:
        round: the exchange's number.
        broadcast: what the contributions were computed from.
        message: the sum of the contributions of `members`, decoded to real units.
        members: the clients whose sum `message` is.
        survivors: all clients in that round's sum.
        followed: the broadcast that followed from this round's sum; empty where the view does not know it.
        step: unit of the fixed-point numbers each member rounded to, by tensor; empty where nothing was rounded.
        clips: names of tensors that each member's contribution was clipped by, together, and their L2 norm.
        noise: standard deviation of the noise that a defence added to an entry of `message`, by tensor.
    """

    round: int
    broadcast: Tensors
    message: Tensors
    members: frozenset[ClientId]
    survivors: frozenset[ClientId]
    followed: Tensors = field(default_factory=dict)
    step: Mapping[str, float] = field(default_factory=dict)
    clips: tuple[tuple[tuple[str, ...], float], ...] = ()
    noise: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Observed:
    """A view, seen from one target.

    Attributes:
        view: the view's name.
        target: the client attacked, or `None` for the federation as a whole.
        rounds: in order; may be empty (output only).
        output: the final broadcast.
    """

    view: str
    target: ClientId | None
    rounds: tuple[Observation, ...]
    output: Tensors

    @property
    def members(self) -> frozenset[ClientId]:
        """The clients behind the messages, all rounds together."""
        return frozenset().union(*(observation.members for observation in self.rounds))


@dataclass(frozen=True)
class Target:
    """An attacker's knowledge beside the view: the algorithm with its hyper-parameters, and public facts."""

    algorithm: Algorithm[Any, Any]
    public: Public


@dataclass(frozen=True)
class Reconstruction:
    """Result of an attack.

    Attributes:
        secret: `gram` (features x features matrix X^T X of the members' rows) or `samples`.
        value: the estimate: a Gram matrix, or (rows, features) samples in any order.
        labels: estimated labels of the samples, if any.
        residual: relative misfit of the observations under the estimate; an attack that fits nothing says NaN.
        rank: rank of the linear system or Jacobian.
        unknowns: number of unknowns.
        condition: its condition number over the kept directions.
        diagnostics: anything else worth reporting.
        members: the clients whose secret `value` is; `None` means `Observed.members`.
        guess: what the view tells of the secret without its messages, where that is more than a score assumes anyway.
    """

    secret: str
    value: Array
    labels: Array | None = None
    residual: float = float("nan")
    rank: int = 0
    unknowns: int = 0
    condition: float = float("nan")
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    members: frozenset[ClientId] | None = None
    guess: Array | None = None


@runtime_checkable
class Attack(Protocol):
    """An attack is a frozen dataclass of settings with one verb."""

    name: ClassVar[str]
    secret: ClassVar[str]

    def applies(self, target: Target, observed: Observed) -> str | None:
        """`None` where the attack can run, else why not, in a sentence."""
        ...

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the secret of `observed.members`.

        Raises:
            TranscriptError: the view lacks what the attack needs; the message says what.
        """
        ...


attacks: Registry[Attack] = Registry("attack")

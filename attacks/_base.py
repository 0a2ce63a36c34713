"""Define what an attack is, and the views of a run that attacks work on.

A federated run is recorded as a transcript of all messages. A view is what one kind of attacker, such as the server or
some colluding clients, observes of it; `views` derives it from the transcript. An attack estimates a secret of the
clients from a view, and never reads a client's data. The audit runs attacks and scores their estimates.

In each round of a view the attacker knows the broadcast and one message: the sum over the SMALLEST set of clients that
includes the attacked one and whose sum this attacker knows. In the clear this set is the attacked client alone; under
secure aggregation it is all survivors (the clients whose uploads were summed); if some clients collude with the server,
it is the survivors without the colluders. So every attack runs on every view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np

from securefed._messages import ClientId
from securefed._public import Public
from securefed._registry import Registry
from securefed._shape_repr import ShapeRepr
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import Algorithm


@dataclass(frozen=True, repr=False)
class RoundView(ShapeRepr):
    """One round in an attacker's view.

    Attributes:
        round: the exchange's number.
        broadcast: the tensors from which the contributions were computed.
        message: the sum of the contributions of `members`, decoded to real units.
        members: the clients whose sum `message` is.
        survivors: all clients in that round's sum.
        followed: the broadcast that followed from this round's sum; empty where the view does not know it.
        step: unit of the fixed-point numbers to which each member rounded, by tensor; empty where nothing was rounded.
        clips: names of the tensors that each member clipped together, and the L2 norm that it clipped to.
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


@dataclass(frozen=True, repr=False)
class View(ShapeRepr):
    """An attacker's view of a run, for one target.

    Attributes:
        view: the view's name.
        target: the client attacked, or `None` for the federation as a whole.
        rounds: in order; may be empty (output only).
        output: the final broadcast.
    """

    view: str
    target: ClientId | None
    rounds: tuple[RoundView, ...]
    output: Tensors

    @property
    def members(self) -> frozenset[ClientId]:
        """Clients whose contributions the messages hold, over all rounds."""
        return frozenset().union(*(observation.members for observation in self.rounds))


@dataclass(frozen=True)
class Target:
    """Facts that an attacker knows in addition to the view (`View.target`, by contrast, is the attacked client).

    Attributes:
        algorithm: the algorithm with its hyper-parameters.
        public: the public facts of the federation: the numbers of clients, features and classes, each client's number
            of rows, and the declared range of their entries.
    """

    algorithm: Algorithm[Any, Any]
    public: Public


@dataclass(frozen=True, repr=False)
class Reconstruction(ShapeRepr):
    """Result of an attack.

    Attributes:
        secret: what is estimated: `gram` (the Gram matrix X^T X of the members' rows X), `samples` (their rows),
            `labels` (their counts of each class), `distances` (between columns), `personal` (a client's own model),
            `statistics` (of batch normalisation), `tokens` or `categories` (which of them occur).
        value: the estimate: (features, features) for `gram`, (rows, features) in any order for `samples`.
        labels: estimated labels of the samples, if any; -1 for a sample whose label is not known.
        residual: relative residual of the observations under the estimate; NaN where the attack computes none.
        rank: rank of the linear system or Jacobian.
        unknowns: number of unknowns.
        condition: condition number of that system over the directions that count for `rank`.
        diagnostics: anything else worth reporting.
        members: the clients whose secret `value` estimates; `None` means `View.members`.
        guess: the attack's own guess of the secret without the messages; `None` where it makes none. The score compares
            the estimate with this guess or with its usual baseline, whichever is better.
        open: in sentences, what the algorithm's messages cannot determine even if they are exact (a sign, a shift), and
            what the estimate assumes for it.
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
    open: tuple[str, ...] = ()


Observed_contra = TypeVar("Observed_contra", contravariant=True)
"""The input of an attack: a `View` of a recorded run, or the `Dialogue` of a server that chooses its broadcasts."""


@runtime_checkable
class AttackOn(Protocol[Observed_contra]):
    """Reconstruct a secret from what an attacker observes; an attack is a frozen dataclass of settings.

    Attributes:
        name: its name in the registry.
        secret: what it reconstructs, as in `Reconstruction.secret`.
    """

    name: ClassVar[str]
    secret: ClassVar[str]

    def applies(self, target: Target, observed: Observed_contra) -> str | None:
        """Return `None` where the attack can run, else the reason why not, in a sentence."""
        ...

    def run(self, observed: Observed_contra, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the secret of `observed.members`.

        Args:
            observed: the view or the dialogue.
            target: the algorithm and the public facts.
            rng: draws the attack's random starts.

        Raises:
            TranscriptError: the view lacks something that the attack needs; the message names it.
        """
        ...


@runtime_checkable
class Attack(AttackOn[View], Protocol):
    """An attack on the view of a recorded run."""


attacks: Registry[Attack] = Registry("attack", built_in="securefed._catalogue")
"""All registered attacks by name."""

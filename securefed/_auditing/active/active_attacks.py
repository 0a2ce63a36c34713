"""Attack one seed of an algorithm with a server that chooses its broadcasts.

Such a server does not follow the algorithm: an active attack picks what the clients receive so that their answers give
more away. Audits of registered algorithms and of a user's own call `attack_actively` for each seed and defence, where
active attacks are asked for. The null of an active attack is the same attack on messages whose entries are permuted
before the attack sees them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

from securefed._auditing.active.deviating_server import DeviatingServer
from securefed._auditing.engine.runner import AttackedView
from securefed._messages import ClientId
from securefed._public import Public
from securefed.algorithms._base import Algorithm
from securefed.attacks._active.chosen_broadcasts import ActiveAttack, active_attacks
from securefed.attacks._base import Reconstruction
from securefed.datasets._base import Dataset
from securefed.defenses._chain import Link
from securefed.errors import TranscriptError

_CLIENT_LOG: Final = logging.getLogger("securefed.client")
"""Where clients log what they refuse."""


@dataclass(eq=False)
class Deceived:
    """The clients that a server which chooses its broadcasts attacks; each attack's server runs once.

    Attributes:
        algorithm: what the clients run.
        clients: their rows.
        public: facts that every party knows.
        defense: protects the contributions.
        victim: the client that is attacked.
        alone: whether the server reads the victim's own messages; otherwise it sees sums only.
        seed: the seed of the run and of the attacks.
        shuffled: whether the entries of the messages are permuted before the attack sees them, for the null.
    """

    algorithm: Algorithm[Any, Any]
    clients: Sequence[Dataset]
    public: Public
    defense: Link | None
    victim: ClientId
    alone: bool
    seed: int
    shuffled: bool = False
    _found: dict[str, Reconstruction | TranscriptError] = field(default_factory=dict, init=False)

    def attack(self, attack: ActiveAttack) -> Reconstruction:
        """Run an attack's server.

        Raises:
            TranscriptError: the attack does not apply, or clients or protocol refuse to go on.
        """
        if attack.name not in self._found:
            try:
                self._found[attack.name] = self._deceive(attack)
            except TranscriptError as refusal:
                self._found[attack.name] = refusal
        found = self._found[attack.name]
        if isinstance(found, TranscriptError):
            raise found
        return found

    @cached_property
    def null(self) -> Deceived:
        """The same with messages that say nothing."""
        return replace(self, shuffled=True)

    def _deceive(self, attack: ActiveAttack) -> Reconstruction:
        server = DeviatingServer(
            self.algorithm, self.clients, self.defense, attack, victim=self.victim, alone=self.alone, seed=self.seed,
            public=self.public, shuffled=self.shuffled,
        )  # fmt: skip
        with _expected_refusals():
            run = server.deceive()
        if run.estimate is None:
            raise TranscriptError(f"clients or protocol refused: {run.refused}")
        members = run.estimate.members
        return replace(run.estimate, members=run.observed.members if members is None else members)


def attack_actively(
    *views: AttackedView[Deceived],
    secrets: Collection[str] | None = None,
    derive: Callable[[Reconstruction], Sequence[Reconstruction]] = lambda estimate: [estimate],
) -> None:
    """Run every active attack that applies on some clients, and its null.

    Args:
        *views: views of the same clients, one for each owner of secrets: the victim first, then all together. An attack
            that is refused is noted once, for the first.
        secrets: kinds of secrets that are attacked, such as `gram` or `samples`; all by default.
        derive: computes from an estimate what follows from it, the estimate first.
    """
    for attack in (entry.make() for entry in active_attacks):
        for view in views if secrets is None or attack.secret in secrets else ():
            if not view.attack(attack.name, partial(_estimates, attack, derive), [partial(_null, view.seen)]):
                break


def _null(clients: Deceived) -> Deceived:
    return clients.null


def _estimates(
    attack: ActiveAttack, derive: Callable[[Reconstruction], Sequence[Reconstruction]], clients: Deceived
) -> Sequence[Reconstruction]:
    return derive(clients.attack(attack))


@contextmanager
def _expected_refusals() -> Iterator[None]:
    """Keep clients from logging warnings: broadcasts that an attacker chose are refused as a matter of course."""
    before = _CLIENT_LOG.level
    _CLIENT_LOG.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _CLIENT_LOG.setLevel(before)

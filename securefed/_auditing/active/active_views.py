"""Attack one seed of a registered algorithm with a server that chooses its broadcasts, under every defence.

Such a server does not follow the algorithm: an active attack picks what the clients receive so that their answers give
more away. `registered.seed_run` makes an `ActiveAudit` for each seed and defence of an audit with `active=True`. The
null of an active attack is the same attack on messages whose entries are permuted before the attack sees them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from securefed._auditing.active.deviating_server import ActiveRun, DeviatingServer
from securefed._auditing.cases import Prepared
from securefed._auditing.engine.results import Artifact
from securefed._auditing.engine.seed_result import Judgement, Place, SeedResult
from securefed._auditing.registered.scoring import RunOutput, assess
from securefed._messages import ClientId
from securefed.algorithms._base import Algorithm
from securefed.attacks._active.chosen_broadcasts import ActiveAttack, active_attacks
from securefed.attacks._base import Reconstruction
from securefed.attacks.views import ACTIVE_SERVER
from securefed.defenses._base import Defense
from securefed.errors import TranscriptError

_CLIENT_LOG: Final = logging.getLogger("securefed.client")
"""Where clients log what they refuse."""


@dataclass(frozen=True)
class ActiveAudit:
    """The active attacks on one seed of one algorithm.

    Attributes:
        name: the name of the algorithm.
        algorithm: the algorithm with the hyper-parameters of its audit case (the setting in which it is audited).
        prepared: the clients' data.
        secrets: kinds of secrets that are attacked, such as `gram` or `samples`.
        victim: the client that is attacked.
        seed: the seed of the run and of the attacks.
        pictures: whether secrets and estimates are kept for pictures.
    """

    name: str
    algorithm: Algorithm[Any, Any]
    prepared: Prepared
    secrets: tuple[str, ...]
    victim: ClientId
    seed: int
    pictures: bool

    def attack(self, label: str, defense: Defense, honest: RunOutput, result: SeedResult, *, alone: bool) -> None:
        """Run every active attack that applies under a defence, and its null, and score them.

        Args:
            label: name of the defence in the report.
            defense: the defence that runs.
            honest: final models of a run whose server followed the algorithm. The guesses that estimates are compared
                with follow from them, without the messages.
            result: receives the attempts, and by attack that did not apply or was refused the reason.
            alone: whether the server reads the victim's own messages; otherwise it sees sums only.
        """
        place = Place(self.name, label, ACTIVE_SERVER, self.seed, self.victim)
        for attack in self._chosen():
            try:
                run = self._run(attack, defense, alone, shuffled=False)
            except TranscriptError as reason:
                result.leave_out(place, attack.name, str(reason))
                continue
            if run.estimate is None:
                result.leave_out(place, attack.name, f"clients or protocol refused: {run.refused}")
                continue
            chance = self._chance(attack, defense, alone)
            judged = result.record(
                place,
                attack.name,
                [run.estimate],
                [None if chance is None else [chance]],  # one null, or none
                partial(self._judge, run, honest),
                _cannot_tell,
            )
            for item in judged if self.pictures else ():
                pair = item.truth, item.estimate
                shown = (self.name, label, ACTIVE_SERVER, attack.name, item.secret, *pair, self.prepared.image_shape)
                result.artifacts.append(Artifact(*shown))

    def _chance(self, attack: ActiveAttack, defense: Defense, alone: bool) -> Reconstruction | None:
        """Run an attack on permuted messages; `None` if clients refuse that run, or nothing can be read from it."""
        try:
            return self._run(attack, defense, alone, shuffled=True).estimate
        except TranscriptError:
            return None

    def _judge(self, run: ActiveRun, honest: RunOutput, estimate: Reconstruction) -> list[Judgement]:
        return assess(self.prepared, run.observed, estimate, honest, self.victim)

    def _chosen(self) -> Iterator[ActiveAttack]:
        return (attack for attack in (entry.make() for entry in active_attacks) if attack.secret in self.secrets)

    def _run(self, attack: ActiveAttack, defense: Defense, alone: bool, *, shuffled: bool) -> ActiveRun:
        server = DeviatingServer(
            self.algorithm, self.prepared.clients, defense, attack, victim=self.victim, alone=alone, seed=self.seed,
            public=self.prepared.public, shuffled=shuffled,
        )  # fmt: skip
        with _expected_refusals():
            return server.deceive()


@contextmanager
def _expected_refusals() -> Iterator[None]:
    """Keep clients from logging warnings: broadcasts that an attacker chose are refused as a matter of course."""
    before = _CLIENT_LOG.level
    _CLIENT_LOG.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _CLIENT_LOG.setLevel(before)


def _cannot_tell(estimate: Reconstruction) -> None:
    """Return `None` for "not known whether the estimate explains the messages": no active attack checks that."""

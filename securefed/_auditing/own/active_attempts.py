"""Attack one seed of a user's own algorithm with a server that chooses its broadcasts.

Such a server does not follow the algorithm: an active attack picks what the clients receive so that their answers give
more away. `own_audit` calls `attack_actively` once a seed, where it was asked for active attacks; results and reasons
go to the seed's `SeedResult`. Each attack is scored beside its null, the same attack where the entries of the messages
that the server reads are permuted, so that they say nothing: it measures chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from securefed._auditing.active.deviating_server import ActiveRun, DeviatingServer
from securefed._auditing.engine.seed_result import Place
from securefed._auditing.own.client_secrets import SecretData
from securefed._auditing.own.own_seed_run import DEFENSES, OwnSeedRun
from securefed.attacks import views
from securefed.attacks._active.chosen_broadcasts import ActiveAttack, active_attacks
from securefed.attacks._base import Reconstruction
from securefed.defenses._chain import chain
from securefed.defenses._fixed_point import Quantise
from securefed.errors import TranscriptError


def attack_actively(run: OwnSeedRun, chosen: Sequence[str]) -> None:
    """Run every active attack that applies; what does not apply, or is refused, is noted with its reason.

    Args:
        run: the seed's data, and where results go.
        chosen: views that are audited; the server reads the target's own messages for `server`, sums for `sum only`.
    """
    for view in chosen:
        for attack in (entry.make() for entry in active_attacks):
            # DEFENSES: `server` stands for plain messages in the report, `sum only` for secure aggregation
            place = Place(run.name, DEFENSES[view], views.ACTIVE_SERVER, run.seed, run.target)
            try:
                found = _deceive(run, attack, view, shuffled=False)
            except TranscriptError as reason:
                run.result.leave_out(place, attack.name, str(reason))
                continue
            if found.estimate is None:
                run.result.leave_out(place, attack.name, f"clients or protocol refused: {found.refused}")
                continue
            _score(run, attack, view, found.estimate)


def _score(run: OwnSeedRun, attack: ActiveAttack, view: str, estimate: Reconstruction) -> None:
    """Score an estimate of rows, and the Gram matrix that follows from it, beside the same from the null.

    Secrets are the target's data; of sums also all clients' data together (target `None`).
    """
    chance = None
    with suppress(TranscriptError):  # nothing can be read from the permuted messages: chance is the guess
        chance = _deceive(run, attack, view, shuffled=True).estimate
    for target in (None, run.target) if view == views.SUM_ONLY else (run.target,):
        secret = SecretData(run.data, run.public, target, run.seed)
        place = Place(run.name, DEFENSES[view], views.ACTIVE_SERVER, run.seed, target)
        if (reason := secret.nothing_to_leak(estimate.members or frozenset())) is not None:
            run.result.leave_out(place, secret.named(attack.name), reason)
            continue
        # active attacks are scored for rows and Gram matrices, not for counts of labels
        derived = secret.derive(estimate, labels=False)
        nulls = [None if chance is None else secret.derive(chance, labels=False)]
        run.result.record(place, attack.name, derived, nulls, secret.judge)


def _deceive(run: OwnSeedRun, attack: ActiveAttack, view: str, *, shuffled: bool) -> ActiveRun:
    """Run the attack's server; `shuffled` permutes the entries of the messages that it sees, for the null."""
    alone = view == views.SERVER_VIEW
    # plain uploads that the server reads one by one, or sums in the fixed point of secure aggregation
    server = DeviatingServer(
        run.method, run.data, chain() if alone else chain(Quantise()), attack, victim=run.target, alone=alone,
        seed=run.seed, public=run.public, shuffled=shuffled,
    )  # fmt: skip
    return server.deceive()

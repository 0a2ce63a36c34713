"""Run one seed of an audit of a user's own algorithm in the clear, and let every attack loose on its views.

`own_audit.OwnSubject` makes an `OwnSeedRun` for each seed and calls `attack` for each view (`clear_runs`).

An attack knows the algorithm, and simulates clients with it: a `Replay` maps hypothetical rows of a view's members (the
clients whose sum each message is) to the messages that they would have sent. Each attack also has a null, the same
attack where nothing can be found, which measures chance: on shuffled rounds, on messages of other rows, or, for
membership, with the scores of members and other records permuted (`SeedResult`). Each attack has random numbers of its
own, from [seed, stream], so that its draws do not depend on which attacks ran before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from securefed._auditing.active.active_attacks import Deceived, attack_actively
from securefed._auditing.engine.clear_runs import DEFENSES, SHOWN
from securefed._auditing.engine.results import RunFacts, Secret
from securefed._auditing.engine.runner import AttackedView, Source
from securefed._auditing.engine.seed_result import Place, SeedResult, run_costs
from securefed._auditing.implied.implications import implied_attempts
from securefed._auditing.implied.truth import Truth
from securefed._auditing.own.attack_settings import AttackSettings
from securefed._auditing.own.client_secrets import SecretData
from securefed._auditing.own.function_algorithm import FunctionAlgorithm
from securefed._auditing.own.generic_attacks import GenericAttacks
from securefed._auditing.own.instance_checks import locate_failure
from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed._runtime.history import Result
from securefed._tensors import Array
from securefed.algorithms._base import Algorithm
from securefed.attacks import views
from securefed.attacks._base import Target, View
from securefed.attacks._generic import RawBits, Replay, TimeBudget
from securefed.attacks._membership import ConfirmationAttack, ShadowMembership
from securefed.attacks._membership.likelihood_ratio import CandidateRecord, MembershipAttack
from securefed.attacks.scores import rows_not_held
from securefed.datasets._base import Dataset
from securefed.defenses._chain import chain
from securefed.defenses._fixed_point import Quantise
from securefed.errors import DataError, RoundVoid, SecureFedError

_CANDIDATES: Final = 20
"""Most records whose membership is scored in one run, half of them members; each costs simulated clients."""
_MEMBERSHIP_STREAM, _RECORDS_STREAM, _RAW_BITS_STREAM = 4, 6, 16
"""Streams of random numbers; `generic_attacks` and `client_secrets` use others."""


class OwnSeedRun:
    """One run in the clear, and the attacks on it; the target is client `seed` modulo the number of clients.

    Args:
        method: the algorithm.
        data: each client's rows.
        rounds: number of rounds.
        seed: the seed of the run and of the attacks.
        options: the options of the attacks.

    Raises:
        DataError: the algorithm fails on a client's own rows; the message names client, round and seed.
    """

    def __init__(
        self, method: Algorithm[Any, Any], data: list[Dataset], rounds: int, seed: int, options: AttackSettings
    ) -> None:
        self.method, self.data, self.seed, self.options = method, data, seed, options
        self.public = Public.of(data, feature_bound=options.feature_bound)
        self.target = seed % len(data)  # the targets take turns, so that a single client's rows do not decide
        self.name = getattr(method, "name", type(method).__name__)
        self.result = SeedResult()
        self.run = self._recorded(rounds)
        self._note_costs()

    @property
    def has_label_counts(self) -> bool:
        """Whether counts of the target's labels are a secret."""
        return SecretData(self.data, self.public, self.target, self.seed).has_label_counts

    def attack(self, view: str, budget: TimeBudget) -> None:
        """Attack one view, in as many seconds as the budget has left.

        Sums are attacked twice: for the data of all clients together, then for the target's.

        Args:
            view: `server` or `sum only`.
            budget: time for all attacks on it.
        """
        see = views.server if view == views.SERVER_VIEW else views.sum_only
        observed = see(self.run.transcript, self.target)
        for target in (None, self.target) if view == views.SUM_ONLY else (self.target,):
            self._attack(SecretData(self.data, self.public, target, self.seed), observed, budget)

    def attack_actively(self, view: str) -> None:
        """Attack with a server that chooses its broadcasts: it reads the target's own messages, or sums of all.

        Args:
            view: `server`, which stands for plain messages, or `sum only`, for secure aggregation.
        """
        alone = view == views.SERVER_VIEW
        defense = chain() if alone else chain(Quantise())  # sums are in the fixed point of secure aggregation
        clients = Deceived(self.method, self.data, self.public, defense, self.target, alone, self.seed)
        attacked = []
        for target in (self.target,) if alone else (self.target, None):
            secret = SecretData(self.data, self.public, target, self.seed)
            place = Place(self.name, DEFENSES[view], views.ACTIVE_SERVER, self.seed, target)
            seen = AttackedView(place, clients, secret.judge, self.result)
            members = {self.target} if alone else range(len(self.data))
            if (reason := secret.nothing_to_leak(frozenset(members))) is None:
                attacked.append(seen)
            else:
                seen.leave_out("every attack", reason)
        # active attacks are scored for rows and Gram matrices, not for counts of labels
        read = SecretData(self.data, self.public, self.target if alone else None, self.seed)
        attack_actively(*attacked, derive=partial(read.derive, labels=False))

    def _recorded(self, rounds: int) -> Result:
        """Run the algorithm, and note the clients that refused a round.

        Raises:
            DataError: the algorithm failed on a client's own rows.
        """
        try:
            run = Federation(self.method, self.data, seed=self.seed, public=self.public).run(rounds)
        except RoundVoid:
            self._raise_first_fault()
            raise
        except SecureFedError:
            raise
        except Exception as error:
            raise locate_failure(self.method, error, self.seed) from error
        self._raise_first_fault()
        refused = {i for record in run.transcript.records for i in set(record.cohort) - set(record.survivors)}
        if refused:
            reason = f"clients {sorted(refused)} refused some rounds; the others' are attacked"
            self.result.skipped.append(f"seed {self.seed}: {reason}")
        return run

    def _raise_first_fault(self) -> None:
        """Raise `DataError` if the function failed on a client's own rows, since a run without them is another run."""
        if not isinstance(self.method, FunctionAlgorithm) or not self.method.faults:
            return
        fault = self.method.faults[0]
        clients = [str(index) for index, data in enumerate(self.data) if data is fault.data]
        where = f"client {', '.join(clients) or '?'}, round {fault.rounds} (seed {self.seed})"
        raise DataError(f"{where}: {fault.what}")

    def _note_costs(self) -> None:
        """Record the costs of the run under both defences; `real` tells that secure aggregation did not run itself."""
        costs = run_costs(self.run.history, len(self.data))
        for view, defense in DEFENSES.items():
            real = view == views.SERVER_VIEW
            self.result.facts.append(RunFacts(self.name, defense, self.seed, math.nan, real=real, **costs))

    def _attack(self, secret: SecretData, observed: View, budget: TimeBudget) -> None:
        """Attack one view for the data of one client, or of all together.

        `GenericAttacks` tries rows, Gram matrix and labels: `search` probes and fits, `read` takes rows that stand in
        the messages, `regress` learns them from simulated clients. Membership is tried for one client only.

        Args:
            secret: the data to recover, and the score of estimates.
            observed: the view.
            budget: time that is left.
        """
        place = Place(self.name, DEFENSES[observed.view], observed.view, self.seed, secret.target)
        replay_of = partial(self._replay, secret, budget)
        shown = SHOWN if self.seed == 0 else ()
        view = AttackedView(place, replay_of(observed), secret.judge, self.result, shown=shown)
        if (reason := secret.nothing_to_leak(observed.members)) is not None:
            view.leave_out("every attack", reason)
            return
        attacks = GenericAttacks(view, secret, self.options.fitting, replay_of)
        try:
            attacks.search()
            attacks.add_null_of_other_rows()
            attacks.read()
            for scorer in (ShadowMembership(), ConfirmationAttack()) if secret.target is not None else ():
                self._membership(scorer, view)
            if secret.target is not None:
                self._raw_bits(view)
            attacks.regress()
        except SecureFedError as refusal:
            view.leave_out("what is left", refusal)
        self._implied(secret.target, observed, view.sources, place)

    def _implied(self, target: int | None, observed: View, sources: Sequence[Source], place: Place) -> None:
        """Record what follows from the attacks' estimates: membership and statistics of one client, people of all."""
        population, members = self.options.population, observed.members
        others = [data.x for client, data in enumerate(self.data) if client not in members]
        given = others if population is None else [np.asarray(population, np.float64)]
        outside = np.concatenate([self.data[0].x[:0], *given])
        held = [self.data[client].x for client in members]
        truth = Truth(self.data, target, rows_not_held(outside, held), self.public, self.seed)
        found = implied_attempts(place, sources, observed, Target(self.method, self.public), truth)
        # the people of a sum are all clients'; membership is asked of one client
        self.result.attempts += [item for item in found if (item.secret == "people") == (target is None)]

    def _replay(self, secret: SecretData, budget: TimeBudget, observed: View) -> Replay:
        """Make the map from hypothetical rows of the members to the observed messages; attackers know the labels."""
        labels = [self.data[client].y for client in sorted(observed.members)]
        known = [y for y in labels if y is not None]
        return Replay(
            observed,
            Target(self.method, self.public),
            np.concatenate(known) if len(known) == len(labels) else None,
            prior=secret.prior,
            budget=budget,
        )

    def _membership(self, scorer: MembershipAttack, view: AttackedView[Replay]) -> None:
        """Score records that are members and records that are not, and record how well the scores tell them apart.

        Args:
            scorer: `ConfirmationAttack` knows all members' rows, `ShadowMembership` rows like theirs.
            view: the replay of the observed rounds, and where the attempt goes.
        """
        secret: Secret = "confirmation" if isinstance(scorer, ConfirmationAttack) else "membership"
        replay, rng = view.seen, np.random.default_rng([self.seed, _MEMBERSHIP_STREAM])
        inside, outside, known = self._records(replay, informed=secret == "confirmation")
        if min(len(inside), len(outside)) < 1:
            view.leave_out(scorer.name, "no record is left that is no member; give `population`")
            return
        if secret == "membership" and len(known) < replay.rows:
            reason = f"{replay.rows} population rows are needed, there are {len(known)}; give `population`"
            view.leave_out(scorer.name, reason)
            return

        def scores() -> tuple[Array, Array]:
            scored = scorer.score(replay, [*inside, *outside], known, rng)
            return scored[: len(inside)], scored[len(inside) :]

        view.score(scorer.name, secret, scores, rng)

    def _raw_bits(self, view: AttackedView[Replay]) -> None:
        """Score the membership of one row by raw bits, order and sizes of messages (`RawBits`).

        Simulated messages of the members' true rows are told from those in which a row of another client takes the
        place of the target's first row.
        """
        replay = view.seen
        members = [self.data[client] for client in sorted(replay.members)]
        own = np.concatenate([data.x for data in members])
        other = self.data[(self.target + 1) % len(self.data)].x[0]
        replaced = own.copy()
        replaced[sum(replay.sizes[: replay.members.index(self.target)])] = other  # the target's first row
        rng = np.random.default_rng([self.seed, _RAW_BITS_STREAM])
        # seeds from 2^32 (seed + 1) on: other simulations use small ones, and each audited run others
        first = 2**32 * (self.seed + 1)
        view.score(RawBits.name, "membership", lambda: RawBits().score(replay, np.stack([own, replaced]), first), rng)

    def _records(self, replay: Replay, *, informed: bool) -> tuple[list[CandidateRecord], list[CandidateRecord], Array]:
        """Choose members and as many non-members, each at a place among the target's rows.

        Args:
            replay: the replay of the observed rounds.
            informed: whether the adversary knows all members' rows, or only the population (rows like theirs).

        Returns:
            Members, non-members, and (rows, features) the rows that the adversary knows.
        """
        rng = np.random.default_rng([self.seed, _RECORDS_STREAM])
        own = self.data[self.target]
        first = sum(replay.sizes[: replay.members.index(self.target)])  # of the target's rows among all members'
        places = rng.permutation(own.rows)[: _CANDIDATES // 2]
        others = np.concatenate([data.x for i, data in enumerate(self.data) if i != self.target])
        population = self.options.population
        pool = others if population is None else np.asarray(population, np.float64)
        none_absent = population is None and len(replay.members) > 1  # the other clients' rows are members of the sum
        drawn = pool[rng.permutation(len(pool))]
        absent = own.x[:0] if none_absent else drawn[: len(places)]
        inside = [CandidateRecord(own.x[k], first + int(k)) for k in places]
        outside = [CandidateRecord(row, first + int(k)) for row, k in zip(absent, places, strict=False)]
        if informed:
            return inside, outside, np.concatenate([self.data[client].x for client in replay.members])
        return inside, outside, drawn[len(absent) :]

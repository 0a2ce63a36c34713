"""Attack the views of one seed's runs, score what the attacks find, and note what was not attacked and why.

`SeedRun` makes the runs and the views; it inherits from `AttackedViews`, whose attributes are its own. A view holds the
messages that one kind of attacker sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Final

from securefed._auditing.active.active_attacks import Deceived, attack_actively
from securefed._auditing.cases import Case, Prepared
from securefed._auditing.cases.audit_settings import Settings
from securefed._auditing.engine.allowed_views import default_threshold
from securefed._auditing.engine.defense_names import PLAIN
from securefed._auditing.engine.explained_messages import explains, precision
from securefed._auditing.engine.incomplete_results import NOT_ATTACKED, NOT_READ
from securefed._auditing.engine.results import CLIENT, FEDERATION, Attempt
from securefed._auditing.engine.runner import AttackedView, Seen, Source
from securefed._auditing.engine.seed_result import Judge, Place, SeedResult
from securefed._auditing.implied.implications import gradient_attempts, implied_attempts
from securefed._auditing.implied.truth import Truth
from securefed._auditing.registered.attacker import DIFFERENCE, Attacker, is_changing, named_in
from securefed._auditing.registered.scoring import assess
from securefed._auditing.registered.sum_views import one_client, sums_seen
from securefed._runtime.history import Result
from securefed.attacks._base import Attack, Reconstruction, View
from securefed.attacks.views import ACTIVE_SERVER
from securefed.defenses._base import Defense

TARGET: Final = 0
"""The client that is attacked."""
JOINING: Final = "joining, "
"""Beginning of the name of an attack on a run in which the target joins after the first round."""


class AttackedViews:
    """Attacks views of one seed's runs.

    Attributes:
        name: the algorithm's name in the report.
        case: its audit case.
        settings: the settings of the whole audit.
        prepared: the data of the run: each client's rows, held-out rows and public facts.
        seed: the seed of the data split, the run and the attacks.
        first: whether pictures are kept, and sentences on what was not attacked.
        attacker: all attacks, on the usual data.
        result: what was found so far.
        implied: by identity of estimates, these and what follows from them.
    """

    name: str
    case: Case
    settings: Settings
    prepared: Prepared
    seed: int
    first: bool
    attacker: Attacker
    result: SeedResult
    implied: dict[tuple[int, ...], tuple[list[Source], list[Attempt]]]

    def _attack_sums(self, defense: str, result: Result) -> None:
        """Attack every view of a server that sees the sums of a run over the same clients."""
        threshold = default_threshold(self.settings.clients)
        sizes = self.settings.clients, threshold, self.settings.colluders
        for observed in sums_seen(result.transcript, TARGET, *sizes):
            self._attack(defense, result, observed)

    def _attack(self, defense: str, result: Result, observed: View, attacker: Attacker | None = None) -> None:
        """Run every attack that applies to this view, and its null, and score them.

        Attacks on one client's messages also read those that can be estimated from changing sums.
        """
        attacker = attacker or self.attacker
        found, refused = self._attack_part(defense, result, observed, attacker, ())
        if is_changing(observed) and DIFFERENCE not in found:
            alone = one_client(observed)
            if isinstance(alone, str):
                refused = (*refused, "disaggregation")
            else:
                more, reasons = self._attack_part(defense, result, alone, attacker, found)
                found, refused = (*found, *more), (*refused, *reasons)
        if not found and self.first:
            where = f"{self.name}, {defense}, {observed.view}"
            self.result.skipped.append(f"{where}: {NOT_ATTACKED}: {NOT_READ if refused else 'no attack was chosen'}")

    def _attack_joining(self, defense: str, observed: View) -> None:
        """Read what a client that stores a gradient shows where it joins, in a run whose first round is without it."""
        place = Place(self.name, defense, observed.view, self.seed, TARGET)
        truth = self._truth()
        found = gradient_attempts(place, observed, self.attacker.target, truth)
        # people are of all clients together, whom the usual run has in its first sum
        own = (one for one in found if one.secret != "people")
        self.result.attempts += [replace(one, attack=f"{JOINING}{one.attack}") for one in own]

    def _active(self, name: str, defense: Defense, honest: Result) -> None:
        """Attack with a server that chooses its broadcasts, where the audit asks for it.

        Args:
            name: the defence's name in the report.
            defense: the defence that runs.
            honest: a run whose server followed the algorithm; guesses follow from its final models.
        """
        if not self.settings.active:
            return
        given = self.case.build(), self.prepared.clients, self.prepared.public
        # on plain messages the server reads the target's own, and no sum over other clients
        clients = Deceived(*given, defense, TARGET, name == PLAIN, self.seed)
        place = Place(self.name, name, ACTIVE_SERVER, self.seed, TARGET)
        view = self._view(place, clients, self._judge(None, honest), _cannot_tell)
        attack_actively(view, secrets=self.case.secrets)

    def _view(
        self, place: Place, seen: Seen, judge: Judge, fits: Callable[[Reconstruction], bool | None]
    ) -> AttackedView[Seen]:
        """Make what the attacks on a view read, and where their results go; pictures are kept of the first seed."""
        shown, shape = (CLIENT, FEDERATION) if self.first else (), self.prepared.image_shape
        return AttackedView(place, seen, judge, self.result, explains=fits, shown=shown, image_shape=shape)

    def _truth(self) -> Truth:
        few = self.settings.own.fewest
        return Truth.of(self.prepared, TARGET, self.seed, self.result.names, few)

    def _attack_part(
        self, defense: str, result: Result, observed: View, attacker: Attacker, before: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Attack one view, and score what was found; what follows from it is computed once a view.

        Args:
            defense: the defence's name in the report.
            result: the run.
            observed: the view.
            attacker: all attacks.
            before: attacks that found something in this view already.

        Returns:
            The names of the attacks that ran, and of those that did not.
        """
        place = Place(self.name, defense, observed.view, self.seed, TARGET)
        fits = partial(explains, level=precision(observed))
        view = self._view(place, observed, self._judge(observed, result), fits)
        view.nulls.append(partial(attacker.null, observed))
        for attack in attacker.looking_at(observed):
            view.attack(named_in(observed, attack.name), partial(_estimates, attacker, attack))
        if not before:
            self.result.attempts += self._implied(view)
        return tuple(source.attack for source in view.sources), tuple(view.refused)

    def _implied(self, view: AttackedView[View]) -> list[Attempt]:
        """Compute what follows from the findings on a view; of views with the same messages once.

        `Attacker` gives equal views the same estimates.
        """
        key = tuple(id(source.estimate) for source in view.sources)
        if key not in self.implied:
            made = implied_attempts(view.place, view.sources, view.seen, self.attacker.target, self._truth())
            self.implied[key] = view.sources, made  # estimates are kept, so that no other gets their identity
        return [replace(one, **asdict(view.place)) for one in self.implied[key][1]]

    def _judge(self, observed: View | None, result: Result) -> Judge:
        """Make the scorer of estimates from one view of one run; without a view, of those that name their members."""
        return lambda estimate: assess(self.prepared, observed, estimate, result, TARGET)


def _cannot_tell(estimate: Reconstruction) -> None:
    """Return `None` for "not known whether the estimate explains the messages": no active attack checks that."""


def _estimates(attacker: Attacker, attack: Attack, observed: View) -> list[Reconstruction]:
    """Return the one estimate of an attack on a view."""
    return [attacker.run(attack, observed)]

"""Run the settings of an advice: what each leaks to the server, its utility, bytes and seconds.

An advice tells a user under which defence, parameters and sizes of the federation an algorithm leaks no more than is
acceptable. `search` makes one `Trials` for the algorithm, and runs every setting with it, on several seeds, the
repetitions of a run. A setting (`Candidate`) is a defence (none, secure aggregation, or clipping and distributed noise
under it), with the numbers of clients, rows and rounds. Where a run serves for leakage and utility alone, the clients
send in the clear what secure aggregation would mask: its sums are the same, or under noise equally distributed, and the
attacks are given the sums only.

Leakage is 1 - error / error of the best guess without messages: 1 for an exact estimate, 0 for one no better than the
guess, negative for a worse one. An estimate explains the messages if those that it predicts differ from the observed
ones by rounding and noise only; where it does not, the search failed, and that it found nothing means nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from scipy.special import stdtrit

from securefed import _catalogue as catalogue
from securefed._auditing.advice.candidates import Candidate
from securefed._auditing.cases import Case, Prepared
from securefed._auditing.cases.own_setup import OwnSetup
from securefed._auditing.cases.utility_floors import floors, for_these_classes
from securefed._auditing.engine.defense_names import PLAIN
from securefed._auditing.engine.explained_messages import explains, precision
from securefed._auditing.engine.results import CLIENT, FEDERATION, SUMMARIES
from securefed._auditing.engine.runner import Source
from securefed._auditing.engine.seed_result import Place
from securefed._auditing.engine.statistics import PARTIAL_FROM, POWER, RECONSTRUCTED, SIGHTED
from securefed._auditing.implied.implications import implied_attempts
from securefed._auditing.implied.truth import Truth
from securefed._auditing.registered.attacker import WEAKER_FITS, Attacker
from securefed._auditing.registered.audited_defenses import clipping_norm, distributed
from securefed._auditing.registered.scoring import assess
from securefed._auditing.registered.smallest_client import smallest_client
from securefed._messages import ClientId
from securefed._runtime.federation import Federation
from securefed._runtime.history import Result
from securefed.attacks import views
from securefed.attacks._base import Target, View
from securefed.attacks.scores import leakage
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.defenses._base import Defense
from securefed.defenses._chain import chain
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._plain import Plain
from securefed.defenses._secure_aggregation import secure_aggregation
from securefed.errors import SecureFedError

TARGET: Final = 0
"""The client that is attacked."""
LEVEL: Final = 0.05
"""Probability that any of the upper bounds of a search lies below the true mean leakage that it bounds."""
_HOPELESS: Final = 2
"""Seeds after which a setting that leaks more than is acceptable in every one of them is not tried again."""


@dataclass
class Pooled:
    """Leakages of what the server's sums tell of all members together, over the seeds of a setting.

    Attributes:
        leaks: by secret (`federation`, `people`, `membership`) and attack, one leakage for each seed that has it.
        people: the people who were read best in any seed, in words; empty where there are none.
    """

    leaks: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    people: str = ""
    _best: float = -math.inf

    def add(self, secret: str, attack: str, leak: float, part: str = "") -> None:
        """Add an attack's leakage in one seed, and the words for the people of `part`."""
        self.leaks.setdefault(secret, {}).setdefault(attack, []).append(leak if math.isfinite(leak) else 0.0)
        if part and leak > self._best:
            self.people, self._best = part, leak

    def mean(self, secret: str) -> float:
        """Return the mean leakage of the strongest attack; NaN where none applied."""
        return max((_mean(values) for values in self.leaks.get(secret, {}).values()), default=math.nan)


@dataclass(frozen=True)
class Trial:
    """Leakage and utility of a setting over seeds.

    Attributes:
        leaks: by attack and seed, leakage of one client's secret; 0 for an estimate too large for a float. In the mean
            over seeds a leak below 0 counts as 0, since the attacker may keep to the guess. In standard deviations it
            counts as it is: an attack that scatters below 0 in these few runs may scatter above 0 in others.
        explained: by attack, the share of seeds whose messages the estimate explains; an attack that cannot tell is
            missing.
        utilities: the utilities of the final models, one a seed.
        failure: why the setting could not run; empty if it ran.
        asked: number of seeds that were to run.
        smallest: by attack and seed, leakage of the client with fewest rows, attacked in every run; empty where all
            clients have about as many.
        smallest_explained: as `explained`, of these attacks.
        pooled: what the same views tell of all members together.
    """

    leaks: dict[str, tuple[float, ...]]
    explained: dict[str, float]
    utilities: tuple[float, ...]
    failure: str = ""
    asked: int = 0
    smallest: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    smallest_explained: Mapping[str, float] = field(default_factory=dict)
    pooled: Pooled = field(default_factory=Pooled)

    @property
    def of_smallest(self) -> Trial:
        """The same trial of the smallest client."""
        return replace(self, leaks=dict(self.smallest), explained=dict(self.smallest_explained))

    @property
    def mean(self) -> float:
        """Mean leakage of the strongest attack; NaN if none applied."""
        return max(map(_mean, self.leaks.values()), default=math.nan)

    def upper(self, settings: int) -> float:
        """Return an upper bound on the mean leakage of the worst attack; 95 % for `settings` such bounds together.

        It is mean + t s / sqrt(n), at most 1, with the one-sided quantile t of Student's distribution at 5 % over the
        number of settings (Bonferroni), and s the standard deviation over the n seeds. It is 1 where a single run
        leaked .999 or more (`RECONSTRUCTED`), since a mean over few seeds does not bound rare successes; and NaN where
        no attack applied. Leakages are taken as roughly normal: of one that is .7 in one run of ten and else 0, the
        bound of ten seeds lies below the mean in 35 % of the cases, and of an exponential one in 12 %, where 5 % are
        meant.
        """
        return max((_upper(values, settings) for values in self.leaks.values()), default=math.nan)

    def detectable(self, settings: int) -> float:
        """Return the smallest mean leak that would have been called partial in 8 of 10 repetitions.

        This is .05 + (t + .84) s / sqrt(n), with t, s and n as in `upper`, of the attack for which it is smallest: a
        leak is partial from .05 on (`PARTIAL_FROM`), and .84 is the normal quantile of 8 in 10. It is NaN where no
        attack's silence means anything: none was scored on two seeds, or each explained the messages of fewer than 8 in
        10 seeds (`SIGHTED`).
        """
        applied = [name for name, values in self.leaks.items() if len(values) > 1]  # one value has no spread
        sighted = [name for name in applied if not self.explained.get(name, math.nan) < SIGHTED]
        if not sighted:
            return math.nan
        return min(PARTIAL_FROM + _width(self.leaks[n], settings) + _noise(self.leaks[n]) for n in sighted)


def _mean(values: Sequence[float]) -> float:
    """Average leakages; those below 0 count as 0."""
    return float(np.mean(np.maximum(values, 0.0)))


def _upper(values: Sequence[float], settings: int) -> float:
    if max(values) >= RECONSTRUCTED:
        return 1.0
    return min(_mean(values) + _width(values, settings), 1.0)


def _width(values: Sequence[float], settings: int) -> float:
    """Return the distance from the mean to the upper end of Student's interval; infinite for one value."""
    if len(values) < 2:
        return math.inf
    quantile = float(stdtrit(len(values) - 1, 1 - LEVEL / max(settings, 1)))
    return quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def _noise(values: Sequence[float]) -> float:
    """Return the scatter of a mean that its power has to allow for: .84 standard errors."""
    return POWER * float(np.std(values, ddof=1)) / math.sqrt(len(values))


_Scored = tuple[str, float, bool | None]
"""An attack, the leakage that it reached, and whether its estimate explains the messages; `None` if it cannot tell."""


@dataclass
class _Leaks:
    """Leakages of one client, collected run by run.

    Attributes:
        leaks: by attack, one a run; 0 for an estimate too large for a float.
        explained: by attack, whether it explained the messages, one a run where it can tell.
    """

    leaks: dict[str, list[float]] = field(default_factory=dict)
    explained: dict[str, list[float]] = field(default_factory=dict)

    def add(self, scored: Sequence[_Scored]) -> None:
        """Add the attacks of one run."""
        for name, leak, fits in scored:
            self.leaks.setdefault(name, []).append(leak if math.isfinite(leak) else 0.0)
            if fits is not None:
                self.explained.setdefault(name, []).append(float(fits))

    def by_attack(self) -> tuple[dict[str, tuple[float, ...]], dict[str, float]]:
        """Return leakages, and shares of explained runs."""
        complete = {name: tuple(values) for name, values in self.leaks.items()}
        return complete, {name: float(np.mean(values)) for name, values in self.explained.items()}


class Trials:
    """Runs settings of one algorithm on one data set, and remembers runs in the clear, which several of them share.

    Args:
        case: the algorithm's audit case (hyper-parameters, split of the data, rounds, secret, utility), with what the
            user changes of it.
        own: what the user changes.
        source: the data.
        delta: the delta of (epsilon, delta)-differential privacy, for every epsilon that is tried.
    """

    def __init__(self, case: Case, own: OwnSetup, source: LoadedDataset, delta: float) -> None:
        self.case, self.own, self.source, self.delta = for_these_classes(case, source.data), own, source, delta
        # left out: attacks that pose the same problem as another one, and solve it less often
        self._attacks = [name for name in catalogue.attacks.names if name not in WEAKER_FITS]
        self._clear: dict[tuple[int, int | None, int, int], Result] = {}
        self._floors: dict[tuple[int, int | None, int], Mapping[str, float]] = {}

    def of(self, case: Case) -> Trials:
        """Return trials of another algorithm on the same data."""
        return Trials(case, self.own, self.source, self.delta)

    def utility(self, candidate: Candidate, seed: int) -> float:
        """Run a setting once, and score the final model."""
        return self._utility(self._result(candidate, seed), candidate, seed)

    def sized(self, rows: int | None) -> Case:
        """Return the case with so many rows a client."""
        if rows is None:
            return self.case
        return replace(self.own, rows=rows, settings=()).apply(self.case)  # the case has the user's settings already

    def prepare(self, candidate: Candidate, seed: int) -> Prepared:
        """Split the rows for a setting and a seed."""
        return self.sized(candidate.rows).prepare(self.source, candidate.clients, seed)

    def norm(self, candidate: Candidate) -> float:
        """Return the clipping norm: `candidate.clip` times the norm that an audit clips to, in three digits."""
        if self.own.published(self.source.name):
            return candidate.clip * self.case.clip
        transcript = self._in_the_clear(candidate, 0).transcript
        return float(f"{candidate.clip * clipping_norm(transcript):.3g}")

    def defense(self, candidate: Candidate, prepared: Prepared, *, real: bool) -> Defense:
        """Make the defence of a setting.

        Args:
            candidate: the setting.
            prepared: its data, on whose sizes the noise depends.
            real: whether the defence itself is made, or a cheap one whose sums are the same or equally distributed.
        """
        if candidate.defense == PLAIN:
            return chain()
        if candidate.epsilon is not None:
            return distributed(
                self.norm(candidate),
                candidate.epsilon,
                self.delta,
                candidate.rounds,
                self.case.build().layout(prepared.public),
                candidate.clients,
                threshold=candidate.threshold,
                colluding=candidate.colluding,
                real=real,
            )
        # fixed point of `ring` bits a number; `None`: the algorithm's own, to which secure aggregation rounds too
        rounding = Quantise(candidate.ring)
        if not real:
            return chain(rounding, Plain())
        masking = secure_aggregation(threshold=candidate.threshold)
        return chain(masking) if candidate.ring is None else chain(rounding, masking)

    def clear_utilities(self, candidate: Candidate, rounds: int, seeds: Sequence[int]) -> list[float]:
        """Return the utilities without a defence, one a seed, with the clients and rows of a setting.

        Args:
            candidate: the setting.
            rounds: the user's number of rounds, in place of the setting's.
            seeds: the seeds of the runs.
        """
        plain = replace(candidate, rounds=rounds)
        return [self._utility(self._in_the_clear(plain, s), plain, s) for s in seeds]

    def floors(self, candidate: Candidate, seeds: Sequence[int]) -> list[Mapping[str, float]]:
        """Return the floors of the utility, by their names, one mapping a seed, with the rows of a setting."""
        for seed in seeds:
            if (candidate.clients, candidate.rows, seed) not in self._floors:
                sized, prepared = self.sized(candidate.rows), self.prepare(candidate, seed)
                self._floors[candidate.clients, candidate.rows, seed] = floors(sized, prepared, seed)
        return [self._floors[candidate.clients, candidate.rows, seed] for seed in seeds]

    def cost(self, candidate: Candidate) -> tuple[float, float]:
        """Measure, in two rounds of the defence itself, bytes that a client sends in a round and seconds of a round."""
        prepared = self.prepare(candidate, 0)
        rounds = min(candidate.rounds, 2)
        start = time.perf_counter()
        result = self._run(candidate, prepared, self.defense(candidate, prepared, real=True), 0, rounds)
        seconds = (time.perf_counter() - start) / rounds
        return sum(entry.up for entry in result.history) / rounds / candidate.clients, seconds

    def run(self, candidate: Candidate, seeds: Sequence[int], acceptable: float) -> Trial:
        """Run a setting on every seed, and attack what the server sees.

        A setting that leaks more than is acceptable on the first seeds, every time, is not run on the others.

        Args:
            candidate: the setting.
            seeds: the seeds of the runs.
            acceptable: leakage that the user accepts.

        Returns:
            Leakages and utilities; a run that is refused or diverges ends the trial, which says why.
        """
        found, smallest, pooled = _Leaks(), _Leaks(), Pooled()
        utilities: list[float] = []
        try:
            for done, seed in enumerate(seeds, 1):
                result = self._result(candidate, seed)
                utilities.append(self._utility(result, candidate, seed))
                found.add(attacked := self._attacked(candidate, result, seed, TARGET, pooled))
                small = smallest_client(self.prepare(candidate, seed).public.rows)
                if small is not None:
                    again = attacked if small == TARGET else self._attacked(candidate, result, seed, small, Pooled())
                    smallest.add(again)
                if done == _HOPELESS and any(min(values) > acceptable for values in found.leaks.values()):
                    break
        except SecureFedError as error:
            return Trial({}, {}, tuple(utilities), str(error), len(seeds))
        small_leaks, small_shares = smallest.by_attack()
        leaks, shares = found.by_attack()
        return Trial(leaks, shares, tuple(utilities), "", len(seeds), small_leaks, small_shares, pooled)

    def _result(self, candidate: Candidate, seed: int) -> Result:
        if candidate.defense == PLAIN:
            return self._in_the_clear(candidate, seed)
        prepared = self.prepare(candidate, seed)
        return self._run(candidate, prepared, self.defense(candidate, prepared, real=False), seed, candidate.rounds)

    def _in_the_clear(self, candidate: Candidate, seed: int) -> Result:
        key = (candidate.clients, candidate.rows, candidate.rounds, seed)
        if key not in self._clear:
            self._clear[key] = self._run(candidate, self.prepare(candidate, seed), chain(), seed, candidate.rounds)
        return self._clear[key]

    def _run(self, candidate: Candidate, prepared: Prepared, defense: Defense, seed: int, rounds: int) -> Result:
        made = Federation(self.case.build(), prepared.clients, defense, seed=seed, public=prepared.public)
        return made.run(rounds)

    def _utility(self, result: Result, candidate: Candidate, seed: int) -> float:
        return float(self.case.utility(result.output, self.prepare(candidate, seed).test))

    def _attacked(
        self, candidate: Candidate, result: Result, seed: int, client: ClientId, pooled: Pooled
    ) -> list[_Scored]:
        """Attack what the server sees of a client; return attack, leakage of its secret, and whether it explains.

        What the view tells of all members together is added to `pooled`. Statistics of the client count like its other
        secrets where no noise is in the sums, whose scatter would hide that they say nothing.
        """
        prepared = self.prepare(candidate, seed)
        observed = self._view(candidate, result, client)
        attacker = Attacker(self._attacks, self.case.secrets, Target(self.case.build(), prepared.public), seed)
        level, out, sources = precision(observed), list[_Scored](), list[Source]()
        for finding in attacker.attack(observed)[0]:
            fits = explains(finding.estimate, level)
            sources.append(Source(finding.attack, finding.estimate, None, fits))
            for judged in assess(prepared, observed, finding.estimate, result, client):
                leak = leakage(judged.error, judged.baseline)
                if judged.secret == CLIENT:
                    out.append((finding.attack, leak, fits))
                else:
                    pooled.add(FEDERATION, finding.attack, leak)
        truth = Truth.of(prepared, client, seed, self.source.features, self.own.fewest)
        place = Place(self.case.name, candidate.defense, observed.view, seed, client)
        for implied in implied_attempts(place, sources, observed, attacker.target, truth):
            if implied.secret in ("people", "membership") and len(observed.members) > 1:
                leak = implied.leakage if implied.leakage > implied.null_leakage else min(implied.leakage, 0.0)
                pooled.add(implied.secret, implied.attack, leak, implied.part)
            elif implied.secret in SUMMARIES and candidate.epsilon is None:
                out.append((f"{implied.attack}, {implied.secret}", implied.leakage, implied.explained))
        return out

    def _view(self, candidate: Candidate, result: Result, client: ClientId) -> View:
        """Return what the server sees of a client: its own messages, or the smallest sum that holds them.

        The smallest sum that the server can see is of `candidate.members` honest clients, this one among them. Runs
        sum over all clients; the contributions of the others are subtracted, as if these colluded.
        """
        if candidate.defense == PLAIN:
            return views.server(result.transcript, client)
        others = [one for one in range(candidate.clients) if one != client][candidate.members - 1 :]
        if not others:
            return views.sum_only(result.transcript, client)
        return views.collusion(result.transcript, client, others)

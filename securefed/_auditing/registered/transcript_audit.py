"""Audit a recorded run, of this or another framework: no run is repeated, and every attack says what it lacks.

The attacker is given the transcript and the algorithm with the hyper-parameters that it believes. An attack whose
estimate does not explain the messages is tried once more on a run of its own, with those hyper-parameters on random
rows (the control). If it solves that run, the hyper-parameters are wrong; if not, the search failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from securefed import _catalogue as catalogue
from securefed._auditing.cases import Prepared
from securefed._auditing.engine.results import finite_or_none
from securefed._auditing.registered.attacker import WEAKER_FITS
from securefed._auditing.registered.scoring import assess
from securefed._messages import ClientId, Transcript
from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import Algorithm
from securefed.attacks import views
from securefed.attacks._base import Attack, Reconstruction, RoundView, Target, View
from securefed.attacks._diagnosis import diagnose, explained
from securefed.attacks._generic import ClearRows, FitRows, ProbeGram
from securefed.attacks._requirements import unbroken
from securefed.attacks.scores import leakage
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError, SecureFedError
from securefed.recording._recording import check, public_of

RECOVERED: Final = "recovered"
OPEN_DIRECTIONS: Final = "recovered in part"
OTHER_RUN: Final = "other hyper-parameters"
UNSOLVED: Final = "not solved"
UNCHECKED: Final = "not checked"
_MOST: Final = 2**30
"""Largest number of bytes of the control's rows."""
_SHOWN: Final = 3
"""Rounds whose batches the text lists; the JSON holds all."""
_GENERIC: Final = (ProbeGram, FitRows, ClearRows)
"""Attacks that need no code for the algorithm, tried where no other applies."""


@dataclass(frozen=True)
class TranscriptFinding:
    """One attack on one view of the transcript.

    Attributes:
        view: name of the view.
        attack: name of the attack.
        rounds: number of rounds that it read.
        found: its estimate, with residual, rank and condition number.
        explained: whether the estimate explains the messages to their precision; `None` where the attack cannot tell.
        control: if it does not: whether the same attack explains a run of its own on random rows, with the given
            hyper-parameters; `None` if that was not tried.
        lacks: what was missing, and what that costs.
        leakage: 1 - error / baseline's error if the rows are known; else NaN.
    """

    view: str
    attack: str
    rounds: int
    found: Reconstruction
    explained: bool | None
    control: bool | None
    lacks: tuple[str, ...]
    leakage: float = math.nan

    @property
    def word(self) -> str:
        """The finding in a word.

        `recovered`; `recovered in part` (directions stay open); `other hyper-parameters` (the attack solves a run with
        those given, and not this one); `not solved`; `not checked`.
        """
        if self.explained is None:
            return UNCHECKED
        if self.explained:
            full = self.found.rank >= self.found.unknowns or self.found.unknowns == 0
            return RECOVERED if full else OPEN_DIRECTIONS
        return OTHER_RUN if self.control else UNSOLVED

    @property
    def draws(self) -> str:
        """What was learned of the batches or blocks that the client drew, in a sentence; empty if it drew none."""
        drawn = self.found.diagnostics.get("draws", "")
        if not drawn:
            return ""
        if drawn != "found":
            return f"The client draws batches, {drawn}; full ones stand in for them, so a residual is no protection."
        batches = self.found.diagnostics.get("batches", ())
        shown = "; ".join(" then ".join(_listed(step) for step in steps) for steps in batches[:_SHOWN])
        more = f"; and so on, {len(batches)} rounds in all" if len(batches) > _SHOWN else ""
        return f"Which rows each local step took was found with them (numbered as recovered): {shown}{more}."

    def to_json(self) -> dict[str, Any]:
        """Convert all but the estimate itself to JSON values."""
        found = self.found
        numbers = {"residual": found.residual, "condition": found.condition, "leakage": self.leakage}
        return {
            "view": self.view,
            "attack": self.attack,
            "secret": found.secret,
            "word": self.word,
            "rounds": self.rounds,
            "rank": found.rank,
            "unknowns": found.unknowns,
            "lacks": list(self.lacks),
            "draws": self.found.diagnostics.get("draws"),
            "batches": self.found.diagnostics.get("batches"),
        } | {name: finite_or_none(value) for name, value in numbers.items()}


@dataclass(frozen=True)
class TranscriptAudit:
    """Findings of all attacks on a transcript.

    Attributes:
        algorithm: the attackers' assumption; of several candidates the one that explains the messages best.
        tried: every candidate, and the smallest residual that any attack reached under it.
        findings: every attack that ran.
        skipped: what did not run, and why.
    """

    algorithm: Algorithm[Any, Any]
    tried: tuple[tuple[str, float], ...]
    findings: tuple[TranscriptFinding, ...]
    skipped: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.algorithm!r}"]
        if len(self.tried) > 1:
            lines += [f"  candidate {name}: least residual {residual:.1e}" for name, residual in self.tried]
        for item in self.findings:
            known = "" if math.isnan(item.leakage) else f", leakage {item.leakage:.3f}"
            lines.append(
                f"  {item.view}, {item.found.secret} by {item.attack} from {item.rounds} rounds: {item.word} "
                f"(residual {item.found.residual:.1e}, rank {item.found.rank} of {item.found.unknowns}{known})"
            )
            lines += [f"    {line}" for line in (*item.lacks, item.draws) if line]
        return "\n".join([*lines, *(f"  not run: {reason}" for reason in self.skipped)])

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "algorithm": repr(self.algorithm),
            "candidates": [{"algorithm": name, "misfit": finite_or_none(residual)} for name, residual in self.tried],
            "findings": [item.to_json() for item in self.findings],
            "skipped": list(self.skipped),
        }


def audit_transcript(
    transcript: Transcript,
    algorithm: Algorithm[Any, Any] | Sequence[Algorithm[Any, Any]],
    *,
    target: ClientId = 0,
    attacks: Sequence[str] | None = None,
    clients: Sequence[Dataset] | None = None,
    classes: int | None = None,
    seed: int = 0,
) -> TranscriptAudit:
    """Attack a recorded run.

    One transcript is one run, so there is no interval and no verdict, only whether the messages are explained.

    Args:
        transcript: of the run.
        algorithm: with the hyper-parameters that the attacker believes; or several candidates if they are unknown.
        target: the client attacked.
        attacks: names; by default all, of fits of one problem only the strongest.
        clients: every client's rows if they are known, for a score.
        classes: number of classes, if the transcript states none.
        seed: of the attacks' own randomness, and of the control's rows.

    Raises:
        TranscriptError: the transcript states no public facts, or its rounds cannot be those of one run.
        ConfigError: target, attacks or candidates are not possible.
    """
    candidates = list(algorithm) if isinstance(algorithm, Sequence) else [algorithm]
    public = public_of(transcript, classes=classes)
    check(transcript, public)
    if not 0 <= target < public.clients:
        raise ConfigError(f"clients are numbered 0 to {public.clients - 1}, not {target}")
    if not candidates:
        raise ConfigError("give the algorithm, or candidates for it")
    if clients is not None and tuple(data.rows for data in clients) != public.rows:
        raise ConfigError(f"the clients' rows must number {list(public.rows)}, as the transcript states")
    names = [catalogue.attacks[name].name for name in attacks or catalogue.attacks.names]
    chosen = [catalogue.attacks.make(name) for name in names if attacks or name not in WEAKER_FITS]
    runs = [_Candidate(transcript, one, public, target, chosen, clients, seed) for one in candidates]
    for run in runs:
        run.attack_all()
    best = min(runs, key=lambda run: run.residual)
    tried = tuple((repr(run.algorithm), run.residual) for run in runs)
    return TranscriptAudit(best.algorithm, tried, tuple(best.findings), tuple(dict.fromkeys(best.skipped)))


@dataclass(frozen=True)
class _RecordedOutput:
    """The part of a run's result that a transcript holds."""

    output: Tensors
    personal: Mapping[ClientId, Tensors] = field(default_factory=dict)


@dataclass
class _Candidate:
    """All attacks under one candidate for the algorithm."""

    transcript: Transcript
    algorithm: Algorithm[Any, Any]
    public: Public
    target: ClientId
    attacks: Sequence[Attack]
    clients: Sequence[Dataset] | None
    seed: int
    findings: list[TranscriptFinding] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    _control_transcript: Transcript | None = None

    @property
    def residual(self) -> float:
        """Smallest residual that any attack reached."""
        known = [item.found.residual for item in self.findings if not math.isnan(item.found.residual)]
        return min(known, default=math.inf)

    @property
    def assumed(self) -> Target:
        """The algorithm and public facts that attacks are given."""
        return Target(self.algorithm, self.public)

    def attack_all(self) -> None:
        """Run every attack on every view that the transcript allows."""
        if (reason := self._not_of_algorithm()) is not None:
            self.skipped.append(f"every attack that replays the algorithm: {reason}")
        for name, see in _VIEWS.items():
            try:
                observed = see(self.transcript, self.target)
            except SecureFedError as refusal:
                self.skipped.append(f"{name}: {refusal}")
                continue
            before = len(self.findings)
            for attack in self.attacks if reason is None else ():
                self._attack(attack, observed, see)
            if reason is not None:
                self._attack(ClearRows(), observed, see)
            elif len(self.findings) == before:
                for make in _GENERIC:
                    self._attack(make(), observed, see)

        if any(item.explained for item in self.findings):  # then the hyper-parameters are right, in all views
            self.findings = [replace(item, control=None) for item in self.findings]

    def _not_of_algorithm(self) -> str | None:
        """Say why the messages cannot be this algorithm's: names or shapes differ. `None` if they agree."""
        try:
            expected = {spec.name: tuple(spec.shape) for spec in self.algorithm.layout(self.public)}
            if (reason := self._differ("messages", "total", expected)) is not None:
                return reason  # before arrays of the stated size are made
            start = self.algorithm.start(self.public, np.random.default_rng(0))
            sent = {name: np.shape(value) for name, value in self.algorithm.broadcast(start).items()}
            return self._differ("broadcasts", "broadcast", sent)
        except SecureFedError as refusal:
            return f"{self.algorithm!r} cannot have run on what the transcript states: {refusal}"

    def _differ(self, what: str, part: str, expected: Mapping[str, tuple[int, ...]]) -> str | None:
        """Say how the first training round with other names or shapes differs; `None` if there is none."""
        for record in self.transcript.records:
            recorded = {name: np.shape(value) for name, value in getattr(record, part).items()}
            if record.kind == "train" and recorded and recorded != expected:
                return f"the {what} are {_shapes(recorded)}; those of {self.algorithm!r} are {_shapes(expected)}"
        return None

    def _attack(self, attack: Attack, observed: View, see: MakeView) -> None:
        """Run an attack on a view, or on the rounds before the first gap where it needs unbroken ones."""
        where = f"{observed.view}, {attack.name}"
        used, lacks = observed, list[str]()
        if (reason := attack.applies(self.assumed, observed)) is not None:
            used = unbroken(observed)
            if len(used.rounds) == len(observed.rounds) or attack.applies(self.assumed, used) is not None:
                self.skipped.append(f"{where}: {reason}")
                return
            lacks.append(reason)
        found = self._run(attack, used, where)
        if found is None:
            return
        known = explained(found, used)
        control = self._control(attack, used, see) if known is False else None
        lacks += diagnose(found, used, self.assumed)
        score = self._score(used, found)
        self.findings.append(
            TranscriptFinding(used.view, attack.name, len(used.rounds), found, known, control, tuple(lacks), score)
        )

    def _run(self, attack: Attack, observed: View, where: str) -> Reconstruction | None:
        try:
            return attack.run(observed, self.assumed, np.random.default_rng([self.seed, 1]))
        except (SecureFedError, np.linalg.LinAlgError) as refusal:
            self.skipped.append(f"{where}: {refusal}")
            return None

    def _control(self, attack: Attack, observed: View, see: MakeView) -> bool | None:
        """Whether the attack explains a run with the given hyper-parameters, in the same rounds and types."""
        try:
            control = see(self._control_run(), self.target)
            rounds = _in_types_of(observed, control.rounds[: len(observed.rounds)])
            control = replace(control, rounds=tuple(rounds))
            return explained(attack.run(control, self.assumed, np.random.default_rng([self.seed, 1])), control)
        except (SecureFedError, np.linalg.LinAlgError):
            return None

    def _control_run(self) -> Transcript:
        """Run the algorithm on random rows, with the same clients in each round; once for all attacks."""
        if self._control_transcript is None:
            size = 8 * sum(self.public.rows) * self.public.features
            if size > _MOST:
                raise ConfigError(f"a control takes {size / 2**30:.3g} GiB of random rows, the limit is 1 GiB")
            present = [record.survivors for record in self.transcript.records if record.kind == "train"]
            rng = np.random.default_rng([self.seed, 2])
            clients = [_random_rows(rows, self.public, rng) for rows in self.public.rows]
            federation = Federation(
                self.algorithm,
                clients,
                public=self.public,
                seed=self.seed,
                options=RunOptions(schedule=lambda k: present[k]),
            )
            self._control_transcript = federation.run(len(present)).transcript
        return self._control_transcript

    def _score(self, observed: View, found: Reconstruction) -> float:
        """Compute the leakage if the clients' rows are known; else NaN."""
        if self.clients is None or found.secret == "personal" or not np.isfinite(found.value).all():
            return math.nan
        everyone = Dataset(np.concatenate([data.x for data in self.clients]))
        prepared = Prepared(tuple(self.clients), everyone, self.public, None)
        judged = assess(prepared, observed, found, _RecordedOutput(self.transcript.output), self.target)
        return leakage(judged[0].error, judged[0].baseline)


MakeView = Callable[[Transcript, ClientId], View]
_VIEWS: Final[Mapping[str, MakeView]] = {views.SERVER_VIEW: views.server, views.SUM_ONLY: views.sum_only}


def _random_rows(rows: int, public: Public, rng: np.random.Generator) -> Dataset:
    x = rng.uniform(0.0, public.feature_bound, (rows, public.features))
    return Dataset(x, rng.integers(0, public.classes, rows) if public.classes else None)


def _in_types_of(observed: View, rounds: Sequence[RoundView]) -> Iterator[RoundView]:
    """Convert the control's messages to the numbers' types of the observed ones."""
    for mine, recorded in zip(rounds, observed.rounds, strict=False):
        kinds = {name: np.asarray(value).dtype for name, value in recorded.message.items()}
        message: dict[str, Array] = {name: np.asarray(value, kinds.get(name)) for name, value in mine.message.items()}
        yield replace(mine, message=message)


def _listed(rows: Sequence[int]) -> str:
    return "+".join(map(str, rows))


def _shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shapes[name]}" for name in sorted(shapes)) or "nothing"

"""Audit of a transcript, recorded here or imported: no run is repeated, and every attack says what it lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from securefed import _catalogue as catalogue
from securefed._auditing.attacking import WEAKER_FITS
from securefed._auditing.cases import Prepared
from securefed._auditing.scoring import assess
from securefed._messages import ClientId, Transcript
from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import Algorithm
from securefed.attacks import views
from securefed.attacks._base import Attack, Reconstruction, Target, View
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
_SHOWN: Final = 3
_GENERIC: Final = (ProbeGram, FitRows, ClearRows)


@dataclass(frozen=True)
class ImportedFinding:
    """One attack on one view of the transcript.

    Attributes:
        rounds: how many it read.      found: what it believes, with residual, rank and condition.
        explained: whether that explains the messages to their precision; `None` where the attack checks nothing.
        control: where it does not: whether the same attack explains a run of its own, on random rows with the
            hyper-parameters given; `None` where it was not tried.
        lacks: what was missing, and what that costs.
        leakage: where the rows are known, 1 - error / baseline's error; else NaN.
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
        """`recovered`, `recovered in part` (directions stay open), `other hyper-parameters` (the same attack solves a
        run with those given, and not this one), `not solved`, `not checked`."""
        if self.explained is None:
            return UNCHECKED
        if self.explained:
            full = self.found.rank >= self.found.unknowns or self.found.unknowns == 0
            return RECOVERED if full else OPEN_DIRECTIONS
        return OTHER_RUN if self.control else UNSOLVED

    @property
    def draws(self) -> str:
        """What was learned of the batches or blocks that the client drew, in a sentence; empty where it drew none."""
        said = self.found.diagnostics.get("draws", "")
        if not said:
            return ""
        if said != "found":
            return f"The client draws batches, {said}; full ones stand in for them, so that a misfit is no protection."
        batches = self.found.diagnostics.get("batches", ())
        shown = "; ".join(" then ".join(_listed(step) for step in steps) for steps in batches[:_SHOWN])
        more = f"; and so on, {len(batches)} rounds in all" if len(batches) > _SHOWN else ""
        return f"Which rows each local step took was found with them (numbered as recovered): {shown}{more}."

    def to_json(self) -> dict[str, Any]:
        """Everything but the estimate itself."""
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
        } | {name: value if math.isfinite(value) else None for name, value in numbers.items()}


@dataclass(frozen=True)
class TranscriptAudit:
    """What a transcript gives away.

    Attributes:
        algorithm: the attackers' assumption; of several candidates the one that explains the messages best.
        tried: every candidate, and the smallest misfit that any attack reached under it.
        findings: every attack that ran.      skipped: what did not, and why.
    """

    algorithm: Algorithm[Any, Any]
    tried: tuple[tuple[str, float], ...]
    findings: tuple[ImportedFinding, ...]
    skipped: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.algorithm!r}"]
        if len(self.tried) > 1:
            lines += [f"  candidate {name}: least misfit {misfit:.1e}" for name, misfit in self.tried]
        for item in self.findings:
            known = "" if math.isnan(item.leakage) else f", leakage {item.leakage:.3f}"
            lines.append(
                f"  {item.view}, {item.found.secret} by {item.attack} from {item.rounds} rounds: {item.word} "
                f"(misfit {item.found.residual:.1e}, rank {item.found.rank} of {item.found.unknowns}{known})"
            )
            lines += [f"    {line}" for line in (*item.lacks, item.draws) if line]
        return "\n".join([*lines, *(f"  not run: {reason}" for reason in self.skipped)])

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "algorithm": repr(self.algorithm),
            "candidates": [{"algorithm": name, "misfit": _finite(misfit)} for name, misfit in self.tried],
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

    Args:
        algorithm: with the hyper-parameters that the attacker believes; or several candidates where they are unknown.
        target: the client attacked.      attacks: names; all by default, of fits of one problem only the strongest.
        clients: every client's rows, where they are known: for a score.      classes: where the transcript states none.
        seed: of the attacks' own randomness, and of the control's rows.

    One transcript is one run: there is no interval, and no verdict but whether the messages are explained.

    Raises:
        TranscriptError: the transcript states no public facts, or its rounds cannot be those of one run.
        ConfigError: target, attacks or candidates.
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
    runs = [_Run(transcript, one, public, target, chosen, clients, seed) for one in candidates]
    for run in runs:
        run.look()
    best = min(runs, key=lambda run: run.misfit)
    tried = tuple((repr(run.algorithm), run.misfit) for run in runs)
    return TranscriptAudit(best.algorithm, tried, tuple(best.findings), tuple(dict.fromkeys(best.skipped)))


@dataclass(frozen=True)
class _Known:
    """A result as far as a transcript holds it."""

    output: Tensors
    personal: Mapping[ClientId, Tensors] = field(default_factory=dict)


@dataclass
class _Run:
    """All attacks under one assumption."""

    transcript: Transcript
    algorithm: Algorithm[Any, Any]
    public: Public
    target: ClientId
    attacks: Sequence[Attack]
    clients: Sequence[Dataset] | None
    seed: int
    findings: list[ImportedFinding] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    _own: Transcript | None = None

    @property
    def misfit(self) -> float:
        known = [item.found.residual for item in self.findings if not math.isnan(item.found.residual)]
        return min(known, default=math.inf)

    @property
    def assumed(self) -> Target:
        return Target(self.algorithm, self.public)

    def look(self) -> None:
        if (reason := self._foreign()) is not None:
            self.skipped.append(f"every attack that replays the algorithm: {reason}")
        for name, see in _LOOKS.items():
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

        if any(item.explained for item in self.findings):  # one view's messages cannot have other hyper-parameters
            self.findings = [replace(item, control=None) for item in self.findings]

    def _foreign(self) -> str | None:
        """Why the messages cannot be this algorithm's: other names or shapes than its own, from public facts alone."""
        try:
            ours = {spec.name: tuple(spec.shape) for spec in self.algorithm.layout(self.public)}
            if (reason := self._differ("messages", "total", ours)) is not None:
                return reason  # before anything of the stated size is made
            start = self.algorithm.start(self.public, np.random.default_rng(0))
            sent = {name: np.shape(value) for name, value in self.algorithm.broadcast(start).items()}
            return self._differ("broadcasts", "broadcast", sent)
        except SecureFedError as refusal:
            return f"{self.algorithm!r} cannot have run on what the transcript states: {refusal}"

    def _differ(self, what: str, part: str, ours: Mapping[str, tuple[int, ...]]) -> str | None:
        for record in self.transcript.records:
            theirs = {name: np.shape(value) for name, value in getattr(record, part).items()}
            if record.kind == "train" and theirs and theirs != ours:
                return f"the {what} are {_said(theirs)}; those of {self.algorithm!r} are {_said(ours)}"
        return None

    def _attack(self, attack: Attack, observed: View, see: Look) -> None:
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
            ImportedFinding(used.view, attack.name, len(used.rounds), found, known, control, tuple(lacks), score)
        )

    def _run(self, attack: Attack, observed: View, where: str) -> Reconstruction | None:
        try:
            return attack.run(observed, self.assumed, np.random.default_rng([self.seed, 1]))
        except (SecureFedError, np.linalg.LinAlgError) as refusal:
            self.skipped.append(f"{where}: {refusal}")
            return None

    def _control(self, attack: Attack, observed: View, see: Look) -> bool | None:
        """Whether the attack explains a run with the hyper-parameters given, in the same rounds and types."""
        try:
            own = see(self._own_run(), self.target)
            own = replace(own, rounds=tuple(_as_seen(own.rounds[: len(observed.rounds)], observed)))
            return explained(attack.run(own, self.assumed, np.random.default_rng([self.seed, 1])), own)
        except (SecureFedError, np.linalg.LinAlgError):
            return None

    def _own_run(self) -> Transcript:
        if self._own is None:
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
            self._own = federation.run(len(present)).transcript
        return self._own

    def _score(self, observed: View, found: Reconstruction) -> float:
        if self.clients is None or found.secret == "personal" or not np.isfinite(found.value).all():
            return math.nan
        everyone = Dataset(np.concatenate([data.x for data in self.clients]))
        prepared = Prepared(tuple(self.clients), everyone, self.public, None)
        judged = assess(prepared, observed, found, _Known(self.transcript.output), self.target)
        return leakage(judged[0].error, judged[0].baseline)


Look = Callable[[Transcript, ClientId], View]
_LOOKS: Final[Mapping[str, Look]] = {views.SERVER_VIEW: views.server, views.SUM_ONLY: views.sum_only}


def _random_rows(rows: int, public: Public, rng: np.random.Generator) -> Dataset:
    x = rng.uniform(0.0, public.feature_bound, (rows, public.features))
    return Dataset(x, rng.integers(0, public.classes, rows) if public.classes else None)


def _as_seen(own: Sequence[Any], observed: View) -> Iterator[Any]:
    """Our rounds with the types of the observed ones."""
    for mine, theirs in zip(own, observed.rounds, strict=False):
        kinds = {name: np.asarray(value).dtype for name, value in theirs.message.items()}
        message: dict[str, Array] = {
            name: np.asarray(value, kinds.get(name, np.asarray(value).dtype)) for name, value in mine.message.items()
        }
        yield replace(mine, message=message)


def _listed(rows: Sequence[int]) -> str:
    return "+".join(map(str, rows))


def _said(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shapes[name]}" for name in sorted(shapes)) or "nothing"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

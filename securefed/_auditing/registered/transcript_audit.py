"""Audit a recorded run, of this or another framework: the run is not repeated, and every attack says what it lacks.

The attacker is given the transcript (all broadcasts and messages of the run) and the algorithm with the
hyper-parameters that it believes. Every attack computes the residual ||observed - predicted|| / ||observed|| of the
messages that its estimate predicts. An estimate explains the messages if the residual is no more than their rounding.

- Where it does not, the attack is tried again on controls: runs of the auditor's own with those hyper-parameters, on
  random rows and on rows like the estimate (`control_runs`). If it solves all of them and leaves far more here, the
  hyper-parameters are wrong; if it does not solve them, the search failed.
- Where it does, the attack is repeated on messages changed at random by their own rounding: only where that moves the
  estimate by no more than `SMALL`, 5 % of its norm, is it called recovered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from securefed import _catalogue as catalogue
from securefed._auditing.cases import Prepared
from securefed._auditing.engine.results import CLIENT, FEDERATION, finite_or_none
from securefed._auditing.engine.seed_result import Judgement
from securefed._auditing.registered.attacker import WEAKER_FITS
from securefed._auditing.registered.control_runs import ControlRuns
from securefed._auditing.registered.first_model import begun_as
from securefed._auditing.registered.scoring import assess
from securefed._auditing.registered.transcript_finding import TranscriptFinding
from securefed._class_names import common_class_names
from securefed._messages import ClientId, Transcript
from securefed._public import Public
from securefed._tensors import Tensors
from securefed.algorithms._base import Algorithm
from securefed.attacks import views
from securefed.attacks._base import Attack, Reconstruction, Target, View
from securefed.attacks._diagnosis import diagnose, explained
from securefed.attacks._generic import ClearRows, FitRows, ProbeGram
from securefed.attacks._gradient_inversion.fitting_attack import SIGN_OPEN
from securefed.attacks._networks.view_inversion import NetworkInversion
from securefed.attacks._repeatability import SMALL, Repeatability, repeatability
from securefed.attacks._requirements import unbroken
from securefed.attacks.scores import leakage, up_to_sign
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError, SecureFedError
from securefed.recording._recording import check, public_of

_GENERIC: Final = (ProbeGram, FitRows, ClearRows)
"""Attacks that need no code for the algorithm, tried where no other applies."""
_SAME_SIZE: Final = 3.0
"""The recorded run counts as explained if its residual is at most this many times that of the control on the estimate.
Both have the same types and similar data, so that their residuals differ only by the chance of the rounding errors."""
_FAR: Final = 10.0
"""Hyper-parameters are called wrong if the recorded run's residual exceeds this many times the controls' largest. A
step size that is wrong by a tenth leaves 50 times and more in FedPG in float32, 1e4 times and more in float64."""


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
        lines += ["  " + line for item in self.findings for line in str(item).splitlines()]
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
    progress: Callable[[int, int | None, str], None] | None = None,
) -> TranscriptAudit:
    """Attack a recorded run.

    One transcript is one run, so there is no interval and no verdict, only whether the messages are explained.

    Args:
        transcript: the transcript of the run.
        algorithm: the algorithm with the hyper-parameters that the attacker believes; or several candidates if they are
            unknown.
        target: the client attacked.
        attacks: names; by default all, of fits of one problem only the strongest.
        clients: every client's rows if they are known, for a score.
        classes: number of classes, if the transcript states none.
        seed: the seed of the attacks' own randomness, and of the control's rows.
        progress: called by attacks that search for long, as `NetworkInversion.progress`.

    Raises:
        TranscriptError: the transcript states no public facts, or its rounds cannot be those of one run.
        ConfigError: target, attacks or candidates are not possible.
        DataError: the clients' rows number their classes differently.
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
    common_class_names(clients or ())
    names = [catalogue.attacks[name].name for name in attacks or catalogue.attacks.names]
    chosen = [
        catalogue.attacks.make(name, **({"progress": progress} if name == NetworkInversion.name else {}))
        for name in names
        if attacks or name not in WEAKER_FITS
    ]
    runs = [
        _Candidate(transcript, begun_as(transcript, one, public), public, target, chosen, clients, seed)
        for one in candidates
    ]
    for run in runs:
        run.attack_all()
    index = min(range(len(runs)), key=lambda k: runs[k].residual)
    tried = tuple((repr(run.algorithm), run.residual) for run in runs)
    best = runs[index]  # its algorithm may begin at another model (`begun_as`); the caller's own is reported
    return TranscriptAudit(candidates[index], tried, tuple(best.findings), tuple(dict.fromkeys(best.skipped)))


@dataclass(frozen=True)
class _RecordedOutput:
    """The part of a run's result that a transcript holds."""

    output: Tensors
    personal: Mapping[ClientId, Tensors] = field(default_factory=dict)


@dataclass
class _Candidate:
    """All attacks under one candidate for the algorithm.

    Attributes:
        transcript: the transcript of the recorded run.
        algorithm: the candidate, with the hyper-parameters that the attackers believe.
        public: public facts of the run: numbers of clients, rows, features and classes, and the range of the rows.
        target: the client attacked.
        attacks: those to run.
        clients: every client's rows, for a score; `None` where they are not known.
        seed: the seed of the attacks' own randomness.
        findings: the findings of every attack that ran; empty before `attack_all`.
        skipped: what did not run, and why.
        controls: runs of the auditor's own under this candidate.
    """

    transcript: Transcript
    algorithm: Algorithm[Any, Any]
    public: Public
    target: ClientId
    attacks: Sequence[Attack]
    clients: Sequence[Dataset] | None
    seed: int
    findings: list[TranscriptFinding] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    controls: ControlRuns = field(init=False)

    def __post_init__(self) -> None:
        self.controls = ControlRuns(self.transcript, self.algorithm, self.public, self.seed)

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
            if reason is not None:
                self._attack(ClearRows(), observed, see)  # it reads rows that stand in a message
                continue
            before = len(self.findings)
            for attack in self.attacks:
                self._attack(attack, observed, see)
            if len(self.findings) == before:  # no attack with code for the algorithm ran on this view
                for make in _GENERIC:
                    self._attack(make(), observed, see)

        # one explained message shows that the hyper-parameters are right, so that no finding may call them wrong
        if any(item.explained for item in self.findings):
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
        """Run an attack on a view, or on the rounds before the first gap where it needs unbroken ones.

        Args:
            attack: the attack to run.
            observed: the view.
            see: makes the same view of a control run.
        """
        where = f"{observed.view}, {attack.name}"
        used, lacks = observed, list[str]()
        if (reason := attack.applies(self.assumed, observed)) is not None:
            used = unbroken(observed)  # the rounds before the first one whose broadcast is missing
            if len(used.rounds) == len(observed.rounds) or attack.applies(self.assumed, used) is not None:
                self.skipped.append(f"{where}: {reason}")
                return
            lacks.append(reason)
        found = self._run(attack, used, where)
        if found is None:
            return
        known, control = explained(found, used), None
        if known is False:  # a residual beyond rounding may still be as small as data like these allow
            known, control = self._compared(attack, used, see, found)
        steady = repeatability(attack, used, self.assumed, found, self.seed) if known else Repeatability(math.nan)
        leaks = self._leaks(used, found)
        lacks += diagnose(found, used, self.assumed, known=known, error=steady.error)
        self.findings.append(
            TranscriptFinding(
                view=used.view,
                attack=attack.name,
                rounds=len(used.rounds),
                found=found,
                explained=known,
                control=control,
                lacks=tuple(lacks),
                leakage=leaks.get(CLIENT, math.nan),
                pooled_leakage=leaks.get(FEDERATION, math.nan),
                error=steady.error,
                clients=self.public.clients,
                read=found.members or used.members,
                labels_open=not steady.labels,
            )
        )

    def _run(self, attack: Attack, observed: View, where: str) -> Reconstruction | None:
        try:
            return attack.run(observed, self.assumed, np.random.default_rng([self.seed, 1]))
        except (SecureFedError, np.linalg.LinAlgError) as refusal:
            self.skipped.append(f"{where}: {refusal}")
            return None

    def _compared(
        self, attack: Attack, observed: View, see: MakeView, found: Reconstruction
    ) -> tuple[bool, bool | None]:
        """Compare a residual beyond rounding with the residuals that the same attack leaves on controls.

        Returns:
            explained: true where the attack recovers the rows of the control on data like the estimate, and its
                residual there is about as large as here: such data leave no less.
            control: true where it solves every control and leaves far more here, so that the hyper-parameters are
                wrong; false where it does not, so that its search may have failed; `None` where no control could be
                run, or where `explained` is true.
        """
        makers: tuple[Callable[[], _Control | None], ...] = (
            lambda: self.controls.on_estimate(found, self.target),
            lambda: (self.controls.on_random_rows, None),
        )
        attacked = [self._attack_control(attack, observed, see, make) for make in makers]
        controls = [control for control in attacked if control is not None]
        if any(one.recovered and found.residual <= _SAME_SIZE * one.residual for one in controls):
            return True, None
        if not controls:
            return False, None
        solved = all(one.recovered or one.explained for one in controls)
        return False, solved and found.residual > _FAR * max(one.residual for one in controls)

    def _attack_control(
        self, attack: Attack, observed: View, see: MakeView, make: Callable[[], _Control | None]
    ) -> _AttackedControl | None:
        """Attack a control in the same rounds; `None` where it cannot be made or attacked."""
        try:
            if (made := make()) is None:
                return None
            run, rows = made
            view = see(run, self.target)
            view = replace(view, rounds=view.rounds[: len(observed.rounds)])
            again = attack.run(view, self.assumed, np.random.default_rng([self.seed, 1]))
        except (SecureFedError, np.linalg.LinAlgError, ValueError):
            return None
        judged = self._judged(rows, view, again, run)
        recovered = bool(judged) and judged[0].error <= SMALL
        return _AttackedControl(again.residual, bool(explained(again, view)), recovered)

    def _leaks(self, observed: View, found: Reconstruction) -> dict[str, float]:
        """Compute by secret the leakage, 1 - error / baseline, if the clients' rows are known; else nothing."""
        judged = self._judged(self.clients, observed, found, self.transcript)
        return {item.secret: leakage(item.error, item.baseline) for item in judged}

    def _judged(
        self, clients: Sequence[Dataset] | None, observed: View, found: Reconstruction, run: Transcript
    ) -> list[Judgement]:
        """Compare an estimate with the target's rows in a run, and of a sum over all clients with all of them.

        Rows whose sign the messages leave open are compared up to it. Nothing is returned where the rows or the
        estimate are not known.
        """
        if clients is None or found.secret == "personal" or not np.isfinite(found.value).all():
            return []
        everyone = Dataset(np.concatenate([data.x for data in clients]))
        prepared = Prepared(tuple(clients), everyone, self.public, None)
        if found.secret == "samples" and SIGN_OPEN in found.open:
            members = found.members or observed.members
            held = np.concatenate([clients[client].x for client in sorted(members)])
            found = replace(found, value=up_to_sign(found.value, held))
        return assess(prepared, observed, found, _RecordedOutput(run.output), self.target)


@dataclass(frozen=True)
class _AttackedControl:
    """What one attack reached on a control.

    Attributes:
        residual: the residual that it left.
        explained: whether its estimate explains the control's messages to their rounding.
        recovered: whether its estimate is within `SMALL` of the control's rows; only checked on the control on data
            like the estimate, false on the other.
    """

    residual: float
    explained: bool
    recovered: bool


_Control = tuple[Transcript, Sequence[Dataset] | None]
"""A run of the auditor's own; and each client's rows if they are like the estimate, `None` if they are random."""
MakeView = Callable[[Transcript, ClientId], View]
"""(transcript, target) -> the messages that one kind of attacker sees."""
_VIEWS: Final[Mapping[str, MakeView]] = {views.SERVER_VIEW: views.server, views.SUM_ONLY: views.sum_only}


def _shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shapes[name]}" for name in sorted(shapes)) or "nothing"

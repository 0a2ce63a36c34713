"""Running attacks on one seed's views: which apply, their nulls, and how they grow with the rounds seen."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from securefed._messages import ClientId
from securefed.attacks import views
from securefed.attacks._base import Attack, Reconstruction, Target, View, attacks
from securefed.errors import TranscriptError

CHANGING_SURVIVORS = "changing survivors"
DIFFERENCE = "gram/difference"
"""The attack on changing survivor sets; it runs on that view, the others on the rest."""

Members = tuple[frozenset[ClientId], frozenset[ClientId]]
"""Whose sum a round shows, out of whom."""
JOINT_FIT = "gradient_inversion/fit"
WEAKER_FITS = ("gradient_inversion/naive", "gradient_inversion/dlg", "gradient_inversion/telescoping")
"""They pose the joint fit's problem and solve it less often. All run on the server's view, to be compared; on the other
views the joint fit runs in their place, unless it was not chosen."""


@dataclass(frozen=True)
class Attempt:
    """One attack on one view.

    Attributes:
        found: what it believes.
        null: the same on the shuffled transcript; `None` where it saw that nothing fits, or where it was not asked for.
    """

    attack: str
    found: Reconstruction
    null: Reconstruction | None


class Attacker:
    """All chosen attacks on some kinds of secrets.

    Equal observations give equal results, so they are attacked once: the exact defences leave the same sums bit for
    bit, and a key holder sees what a collusion of all others does.

    Args:
        chosen: attacks to run, by name or ready-made.
        secrets: `gram`, `samples` or the like; attacks on other kinds are left out.
        seed: of the attacks' own randomness and of the shuffling.
        nulls: whether attacks also run on shuffled transcripts, which takes their time again.
    """

    def __init__(
        self, chosen: Sequence[str | Attack], secrets: Sequence[str], target: Target, seed: int, *, nulls: bool = True
    ) -> None:
        made = [attacks.make(attack) if isinstance(attack, str) else attack for attack in chosen]
        self._chosen = [(attack.name, attack) for attack in made]
        self._secrets, self._target, self._seed, self._with_nulls = tuple(secrets), target, seed, nulls
        self._known: dict[tuple[str, bytes], Attempt] = {}
        self._nulls: dict[tuple[str, bool, frozenset[Members]], Reconstruction | None] = {}

    def attempts(self, observed: View) -> tuple[list[Attempt], list[str]]:
        """What every attack made of a view, and why others did not run."""
        done, refused = [], []
        for name, attack in self._applicable(observed):
            reason = attack.applies(self._target, observed)
            if reason is None:
                try:
                    done.append(self._once(name, attack, observed))
                except TranscriptError as error:
                    reason = str(error)
            if reason is not None:
                refused.append(f"{name}: {reason}")
        return done, refused

    def prefixes(
        self, observed: View, rounds: Sequence[int], left_out: Sequence[str]
    ) -> Iterator[tuple[str, list[Reconstruction | None]]]:
        """Each attack on the first `rounds[i]` rounds; `None` where it does not apply, or not yet."""
        for name, attack in self._applicable(observed):
            if name in left_out:
                continue
            parts = [replace(observed, rounds=observed.rounds[:count]) for count in rounds]
            found = [self._on_prefix(name, attack, part) for part in parts]
            if any(item is not None for item in found):
                yield name, found

    def _on_prefix(self, name: str, attack: Attack, part: View) -> Reconstruction | None:
        if attack.applies(self._target, part) is not None:
            return None
        if (known := self._known.get((name, _digest(part)))) is not None:  # all rounds: attacked as a view
            return known.found
        try:
            return self._run(attack, part)
        except TranscriptError:  # seen only once it had begun: the audit goes on
            return None

    def _applicable(self, observed: View) -> Iterator[tuple[str, Attack]]:
        changing = observed.view == CHANGING_SURVIVORS
        derived = observed.view != views.SERVER_VIEW and any(name == JOINT_FIT for name, _ in self._chosen)
        for name, attack in self._chosen:
            left_out = derived and name in WEAKER_FITS
            if attack.secret in self._secrets and (name == DIFFERENCE) == changing and not left_out:
                yield name, attack

    def _once(self, name: str, attack: Attack, observed: View) -> Attempt:
        key = (name, _digest(observed))
        if key not in self._known:
            null = self._null(name, attack, observed) if self._with_nulls else None
            self._known[key] = Attempt(name, self._run(attack, observed), null)
        return self._known[key]

    def _run(self, attack: Attack, observed: View) -> Reconstruction:
        return attack.run(observed, self._target, np.random.default_rng([self._seed, 1]))

    def _null(self, name: str, attack: Attack, observed: View) -> Reconstruction | None:
        """What chance gives this attack: shuffled once for each set of clients in a sum, and apart for noised sums."""
        noised = observed.view == views.RELEASED
        key = (name, noised, frozenset((o.members, o.survivors) for o in observed.rounds))
        if key not in self._nulls:
            nothing = views.shuffled(observed, np.random.default_rng([self._seed, 2]))
            try:
                fits = attack.applies(self._target, nothing) is None
                self._nulls[key] = self._run(attack, nothing) if fits else None
            except TranscriptError:
                self._nulls[key] = None
        return self._nulls[key]


def prefix_lengths(rounds: int) -> tuple[int, ...]:
    """Prefixes worth tracing, closer together at the start."""
    return (*(count for count in (1, 2, 3, 5, 8, 13, 20, 40) if count < rounds), rounds)


def finite(value: float) -> float:
    """NaN instead of infinity, which JSON and the charts do not have."""
    return value if math.isfinite(value) else math.nan


def _digest(observed: View) -> bytes:
    """Of everything an attack can read."""
    digest = hashlib.sha256(repr((observed.target, [(o.members, o.survivors) for o in observed.rounds])).encode())
    for observation in observed.rounds:
        for tensors in (observation.broadcast, observation.message, observation.followed):
            for name in sorted(tensors):
                value = np.asarray(tensors[name])
                digest.update(f"{name}{value.dtype.str}{value.shape}".encode() + value.tobytes())
    return digest.digest()

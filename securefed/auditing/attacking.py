"""Running attacks on one seed's views: which apply, their nulls, and how they grow with the rounds seen."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from securefed.attacks import views
from securefed.attacks.base import Attack, Observed, Reconstruction, Target, attacks
from securefed.errors import TranscriptError

CHANGING_SURVIVORS = "changing survivors"
DIFFERENCE = "gram/difference"
"""The attack on changing survivor sets; it runs on that view, the others on the rest."""

JOINT_FIT = "gradient_inversion/fit"
WEAKER_ON_SUMS = ("gradient_inversion/naive", "gradient_inversion/dlg", "gradient_inversion/telescoping")
"""On a sum of several clients these pose the joint fit's problem and solve it less often: it runs in their place."""


@dataclass(frozen=True)
class Attempt:
    """One attack on one view.

    Attributes:
        found: what it believes.      null: the same on the shuffled transcript; `None` where it saw that nothing fits.
    """

    attack: str
    found: Reconstruction
    null: Reconstruction | None


class Attacker:
    """All chosen attacks on one kind of secret.

    Equal observations give equal results, so they are attacked once: the exact defences leave the same sums bit for
    bit, and a key holder sees what a collusion of all others does.

    Args:
        names: attacks to run.      secret: `gram` or `samples`; attacks on the other kind are left out.
        seed: of the attacks' own randomness and of the shuffling.
    """

    def __init__(self, names: Sequence[str], secret: str, target: Target, seed: int) -> None:
        self._chosen = [(name, attacks.make(name)) for name in names]
        self._secret, self._target, self._seed = secret, target, seed
        self._known: dict[tuple[str, bytes], Attempt] = {}

    def attempts(self, observed: Observed) -> tuple[list[Attempt], list[str]]:
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
        self, observed: Observed, rounds: Sequence[int], left_out: Sequence[str]
    ) -> Iterator[tuple[str, list[Reconstruction | None]]]:
        """Each attack on the first `rounds[i]` rounds; `None` where it does not apply yet."""
        for name, attack in self._applicable(observed):
            if name in left_out:
                continue
            found: list[Reconstruction | None] = []
            for count in rounds:
                part = replace(observed, rounds=observed.rounds[:count])
                applies = attack.applies(self._target, part) is None
                found.append(self._run(attack, part) if applies else None)
            if any(item is not None for item in found):
                yield name, found

    def _applicable(self, observed: Observed) -> Iterator[tuple[str, Attack]]:
        changing = observed.view == CHANGING_SURVIVORS
        pooled = len(observed.members) > 1 and any(name == JOINT_FIT for name, _ in self._chosen)
        for name, attack in self._chosen:
            left_out = pooled and name in WEAKER_ON_SUMS
            if attack.secret == self._secret and (name == DIFFERENCE) == changing and not left_out:
                yield name, attack

    def _once(self, name: str, attack: Attack, observed: Observed) -> Attempt:
        key = (name, _digest(observed))
        if key not in self._known:
            self._known[key] = Attempt(name, self._run(attack, observed), self._null(attack, observed))
        return self._known[key]

    def _run(self, attack: Attack, observed: Observed) -> Reconstruction:
        return attack.run(observed, self._target, np.random.default_rng([self._seed, 1]))

    def _null(self, attack: Attack, observed: Observed) -> Reconstruction | None:
        nothing = views.shuffled(observed, np.random.default_rng([self._seed, 2]))
        if attack.applies(self._target, nothing) is not None:
            return None
        try:
            return self._run(attack, nothing)
        except TranscriptError:
            return None


def prefix_lengths(rounds: int) -> tuple[int, ...]:
    """Prefixes worth tracing: every one up to six, then every second."""
    return tuple(count for count in range(1, rounds + 1) if count <= 6 or count % 2 == 0 or count == rounds)


def finite(value: float) -> float:
    """NaN instead of infinity, which JSON and the charts do not have."""
    return value if math.isfinite(value) else math.nan


def _digest(observed: Observed) -> bytes:
    """Of everything an attack can read."""
    digest = hashlib.sha256(repr((observed.target, [(o.members, o.survivors) for o in observed.rounds])).encode())
    for observation in observed.rounds:
        for tensors in (observation.broadcast, observation.message, observation.followed):
            for name in sorted(tensors):
                value = np.asarray(tensors[name])
                digest.update(f"{name}{value.dtype.str}{value.shape}".encode() + value.tobytes())
    return digest.digest()

"""Run registered attacks on views of one seed: which of them look at a view, and what they find there.

A view holds, round by round, the broadcast and the one message that an attacker sees: the sum of the contributions of
some clients (`members`; the target alone in the clear). The null of an attack is the same attack on a shuffled view, in
which messages have changed rounds and their entries places, so that they say nothing: it measures chance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from securefed._messages import ClientId
from securefed.attacks import views
from securefed.attacks._base import Attack, Reconstruction, Target, View, attacks
from securefed.attacks.views import CHANGING_SURVIVORS
from securefed.errors import TranscriptError

DIFFERENCE: Final = "gram/difference"
"""The attack that separates one client's Gram matrix from sums over changing sets of survivors; it runs on no other."""
SIMULATED: Final = "samples"
"""Secret of the attacks that simulate every client of a sum, also of clients that come and go: they read such sums
directly. All other attacks read one set of clients, whose messages `separated` estimates from the sums."""
SEPARATED: Final = "separated sums, "
"""Beginning of the name of an attack that reads messages which `separated` estimated."""
JOINT_FIT: Final = "gradient_inversion/fit"
WEAKER_FITS: Final = ("gradient_inversion/naive", "gradient_inversion/dlg", "gradient_inversion/telescoping")
"""Attacks that pose the problem of `JOINT_FIT` (fit all rounds' rows together) and solve it less often. They run on the
server's view, for comparison; on the other views the joint fit runs in their place, unless it was not chosen."""
Members = tuple[frozenset[ClientId], frozenset[ClientId]]
"""Clients whose sum a round shows, and all clients in that round's sum."""


@dataclass(frozen=True)
class Finding:
    """One attack's result on one view.

    Attributes:
        attack: its name.
        estimate: the estimate of the secret.
    """

    attack: str
    estimate: Reconstruction


class Attacker:
    """All chosen attacks on some kinds of secrets.

    Equal views give equal results, so each is attacked once: defences without noise leave the same sums bit for bit,
    and a key holder sees what a collusion of all other clients sees.

    Args:
        chosen: attacks to run, by name or ready-made.
        secrets: kinds of secrets (`gram`, `samples`, ...); attacks on other kinds are left out.
        target: the algorithm and the public facts.
        seed: the seed of the attacks' own randomness and of the shuffling.
    """

    def __init__(self, chosen: Sequence[str | Attack], secrets: Sequence[str], target: Target, seed: int) -> None:
        self._chosen = [attacks.make(attack) if isinstance(attack, str) else attack for attack in chosen]
        self.target = target
        self._secrets, self._seed = tuple(secrets), seed
        self._estimates: dict[tuple[str, bytes], Reconstruction] = {}
        self._shuffled: dict[tuple[bool, frozenset[Members]], View] = {}

    def attack(self, observed: View) -> tuple[list[Finding], dict[str, str]]:
        """Run every chosen attack that looks at this view, without nulls and without a score.

        Returns:
            The findings; and by name of an attack that did not run the reason.
        """
        findings, refused = [], {}
        for attack in self.looking_at(observed):
            name = named_in(observed, attack.name)
            try:
                findings.append(Finding(name, self.run(attack, observed)))
            except TranscriptError as error:
                refused[name] = str(error)
        return findings, refused

    def looking_at(self, observed: View) -> Iterator[Attack]:
        """Yield the chosen attacks that look at such views."""
        changing = is_changing(observed)
        joint = observed.view != views.SERVER_VIEW and any(attack.name == JOINT_FIT for attack in self._chosen)
        for attack in self._chosen:
            left_out = joint and attack.name in WEAKER_FITS
            reads = attack.name == DIFFERENCE or (changing and attack.secret == SIMULATED)
            if attack.secret in self._secrets and reads == changing and not left_out:
                yield attack

    def run(self, attack: Attack, observed: View) -> Reconstruction:
        """Run an attack on a view; on equal views once.

        Raises:
            TranscriptError: the attack does not apply to the view; or as the attack raises.
        """
        if (reason := attack.applies(self.target, observed)) is not None:
            raise TranscriptError(reason)
        key = (attack.name, _digest(observed))
        if key not in self._estimates:
            self._estimates[key] = attack.run(observed, self.target, np.random.default_rng([self._seed, 1]))
        return self._estimates[key]

    def null(self, observed: View) -> View:
        """Return a shuffled view: one for each set of clients in a sum, and apart for sums with noise.

        Views of the same clients share it: without noise their messages differ by rounding only.
        """
        noised = any(view.noise for view in observed.rounds)
        key = (noised, frozenset((o.members, o.survivors) for o in observed.rounds))
        if key not in self._shuffled:
            self._shuffled[key] = views.shuffled(observed, np.random.default_rng([self._seed, 2]))
        return self._shuffled[key]

    def prefixes(
        self, observed: View, rounds: Sequence[int], left_out: Sequence[str]
    ) -> Iterator[tuple[str, list[Reconstruction | None]]]:
        """Let each attack read only the first rounds of a view.

        Args:
            observed: the view.
            rounds: numbers of rounds to read.
            left_out: names of attacks that do not run here.

        Yields:
            The attack's name, and its estimate for each number of rounds; `None` where it does not apply, or not yet.
        """
        for attack in self.looking_at(observed):
            if attack.name in left_out:
                continue
            parts = [replace(observed, rounds=observed.rounds[:count]) for count in rounds]
            estimates = [self._on_prefix(attack, part) for part in parts]
            if any(item is not None for item in estimates):
                yield attack.name, estimates

    def _on_prefix(self, attack: Attack, part: View) -> Reconstruction | None:
        try:
            return self.run(attack, part)
        except TranscriptError:  # it does not apply, or noticed only once it had begun; the audit goes on
            return None


def is_changing(observed: View) -> bool:
    """Whether a view shows sums over sets of clients that change; `separated` makes one of a single set of them."""
    return observed.view == CHANGING_SURVIVORS and len({one.members for one in observed.rounds}) != 1


def named_in(observed: View, attack: str) -> str:
    """Name an attack, with a remark where it reads messages that `separated` estimated from changing sums."""
    estimated = observed.view == CHANGING_SURVIVORS and not is_changing(observed)
    return f"{SEPARATED}{attack}" if estimated else attack


def prefix_lengths(rounds: int) -> tuple[int, ...]:
    """Choose numbers of rounds, up to `rounds`, at which errors are traced: close at first, where they change most."""
    return (*(count for count in (1, 2, 3, 5, 8, 13, 20, 40) if count < rounds), rounds)


def _digest(observed: View) -> bytes:
    """Hash everything that an attack can read of a view, but for its name.

    Among it are the steps, clips and noise that a view states: messages may be equal where these are not.
    """
    facts = [
        (sorted(o.members), sorted(o.survivors), sorted(o.step.items()), o.clips, sorted(o.noise.items()))
        for o in observed.rounds
    ]
    digest = hashlib.sha256(repr((observed.target, facts)).encode())
    for observation in observed.rounds:
        for tensors in (observation.broadcast, observation.message, observation.followed):
            for name in sorted(tensors):
                value = np.asarray(tensors[name])
                digest.update(f"{name}{value.dtype.str}{value.shape}".encode() + value.tobytes())
    return digest.digest()

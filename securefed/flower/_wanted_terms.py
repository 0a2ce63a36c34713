"""The arguments of `SecureStrategy`; from them the terms of each phase's sum are made, in its first round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from securefed._hyperparameters import check_integer, check_limit, check_positive
from securefed._persistence.sealing import Seal
from securefed._tensors import Array, Ring
from securefed.defenses._chain import Link, as_defense
from securefed.defenses._fixed_point import check_ring
from securefed.errors import ConfigError
from securefed.flower._cohorts import Sampling
from securefed.flower._reply_numbers import LARGEST, bounds_of, shapes_of
from securefed.flower._sum_messages import ARRAY, CONTENT, DIGEST_ENTRY, METRIC, TRAIN, base_of
from securefed.parties._terms import SumTerms
from securefed.parties._terms_parts import weighs_alike

Metrics = Iterable[str] | Mapping[str, int] | None
"""Names of single numbers; lists by name with their lengths, 0 for a single number; or `None` for all."""


def metric_shapes(name: str, given: Metrics, *, alike: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that carry metrics, by their names in the terms.

    Args:
        name: the argument's name, for errors.
        given: its value.
        alike: whether no metrics can travel beside an update.

    Raises:
        ConfigError: one text, whose letters would be taken for names, or a length that is none.
    """
    if given is None:
        return {} if alike else shapes_of()
    if isinstance(given, str):
        raise ConfigError(f"{name} takes a tuple of names, such as ({given!r},); got the text {given!r}")
    lengths = given if isinstance(given, Mapping) else dict.fromkeys(given, 0)
    for metric, length in lengths.items():
        check_integer(f"the length of {metric!r} in {name}", length, 0)
    return {f"{METRIC}{metric}": (length,) if length else () for metric, length in lengths.items()}


@dataclass(frozen=True)
class WantedTerms:
    """The arguments of `SecureStrategy`, as read.

    Attributes:
        metrics: by phase, shapes of the tensors that carry metrics. They are further tensors of the update, so that the
            reply holds their means, weighted as those of the model's arrays are.
        weighted_by: name of the metric that weights updates.
        run_config: digest of the run's config (`config_digest`), to which sums are bound.
        samplings: how the strategy samples in each phase, where it does so as Flower's own ones do.
    """

    defense: Link
    metrics: Mapping[str, Mapping[str, tuple[int, ...]]]
    clients: int | None
    bounds: float | Mapping[str, float] | None
    largest_weight: float | None
    local: tuple[str, ...]
    rounds: int | None
    epsilon: float | None
    ring: Ring
    max_void: int
    answer_after: float | None
    weighted_by: str
    run_config: str
    samplings: tuple[Sampling, ...]
    poll: float
    patience: float
    folder: Path | None
    seal: Seal | None

    def check(self) -> None:
        """Raise `ConfigError` for a number outside its domain: now, and not when the SuperNodes are there."""
        for name, number, least in (("clients", self.clients, 1), ("rounds", self.rounds, 0)):
            if number is not None:
                check_integer(name, number, least)
        check_integer("max_void", self.max_void, 1)
        check_ring(self.ring, "SecureStrategy")
        for name, size in (
            ("largest_weight", self.largest_weight), ("epsilon", self.epsilon), ("answer_after", self.answer_after),
        ):  # fmt: skip
            if size is not None:
                check_positive(name, size)
        check_limit("poll", self.poll)
        check_limit("patience", self.patience)
        for bound in self.bounds.values() if isinstance(self.bounds, Mapping) else [self.bounds]:
            if bound is not None:
                check_positive("bounds", bound)

    def check_timeout(self, timeout: float | None) -> None:
        """Raise `ConfigError` where the server would not wait until clients answer."""
        if self.answer_after is not None and timeout is not None and timeout <= self.answer_after:
            raise ConfigError(
                f"clients answer after {self.answer_after:g} s, and a timeout of {timeout:g} s ends before; give start "
                "a longer one, or SecureStrategy a shorter answer_after"
            )

    def for_nodes(self, phase: str, sampled: int) -> SumTerms:
        """Make terms that are a phase's but for the model's arrays, to see whether so many SuperNodes are enough."""
        return self.terms(phase, base_of({}, self.metrics[phase], bytes(32)), sampled, sampled)

    @property
    def weighs_alike(self) -> bool:
        """Whether all clients weigh the same, so that no metrics travel beside an update."""
        return weighs_alike(as_defense(self.defense))

    def terms(self, phase: str, base: Mapping[str, Array], sampled: int, connected: int) -> SumTerms:
        """Make the terms of a phase from its first round.

        Args:
            phase: `train` or `evaluate`.
            base: what the round is bound to (`base_of`): the model, zeros for metrics, the digest of the messages.
            sampled: number of SuperNodes that the strategy sends messages to.
            connected: number of SuperNodes that are connected.
        """
        # by summed tensor its largest entry: of the messages' digest, and of arrays for which the caller gave one
        bounds: dict[str, float] = {CONTENT: DIGEST_ENTRY, **dict.fromkeys(self.metrics[phase], LARGEST), **bounds_of()}
        if isinstance(self.bounds, Mapping):
            bounds |= {f"{ARRAY}{name}": bound for name, bound in self.bounds.items() if phase == TRAIN}
        elif self.bounds is not None:
            bounds |= {name: self.bounds for name in base if name.startswith(ARRAY)}
        local = tuple(f"{ARRAY}{pattern}" for pattern in self.local)
        bounds = {name: bound for name, bound in bounds.items() if name in base}
        clients = max(self.clients or 0, connected, sampled)
        terms = SumTerms.like(
            base, clients=clients, defense=self.defense, cohort=sampled, bounds=bounds,
            largest_weight=self.largest_weight, local=local, rounds=self.rounds, epsilon=self.epsilon, ring=self.ring,
            max_void=self.max_void,
        )  # fmt: skip
        beside = self.metrics[phase]  # few numbers, which are not worth a coarser sum
        tensors = tuple(replace(t, ring=64) if t.name in beside else t for t in terms.tensors)
        return replace(terms, tensors=tensors, answer_after=self.answer_after)

"""Entries of a ledger: the exchanges answered in each run with the privacy cost of each, and trainings by DP-SGD.

An exchange makes one sum, and is numbered in its run. Trainings are numbered in the ledger: a site that trains by
DP-SGD in its own local step sends a model that is private by itself, so that all that its release costs is the
training. How many steps an opacus `PrivacyEngine` ran is read off its accountant; opacus is not imported here.
`Ledger` keeps the entries in a file and enforces limits; here is only the arithmetic.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from securefed._hyperparameters import check_choice, check_integer, check_limit, check_number
from securefed._messages import SERVER
from securefed._runtime.privacy_cost import DPSGDLoss, PrivacyCost, PrivacyMechanism, epsilon_of_all
from securefed.defenses._base import Unit
from securefed.defenses._differential_privacy.accountant import DELTA
from securefed.errors import ConfigError, ContradictionError

Steps = Mapping[tuple[float, float], int]
"""Numbers of steps by (noise multiplier, sampling rate)."""


@dataclass(frozen=True, eq=False)
class Training:
    """A local training whose cost a ledger has reserved; made by `Ledger.reserve`.

    Attributes:
        number: of the training in its ledger.
        engine: the engine that runs it.
        before: the steps that the engine had run before.
    """

    number: int
    engine: Any = field(repr=False)
    before: Steps = field(repr=False)

    def ran(self) -> Counter[tuple[float, float]]:
        """Return the steps that the engine ran since, by (noise multiplier, sampling rate)."""
        return steps_of(self.engine) - Counter(self.before)

    def beyond(self, reserved: tuple[float, float, int]) -> bool:
        """Return whether these are more steps than were reserved, or have another noise multiplier or sampling rate."""
        return any(key != reserved[:2] or number > reserved[2] for key, number in self.ran().items())


def steps_of(engine: Any) -> Counter[tuple[float, float]]:
    """Return the steps that an engine ran, by (noise multiplier, sampling rate).

    Args:
        engine: a `PrivacyEngine` of opacus.

    Raises:
        ConfigError: an object without the history of an opacus accountant.
    """
    history = getattr(getattr(engine, "accountant", None), "history", None)
    if not isinstance(history, list):
        raise ConfigError(f"engine must be an opacus PrivacyEngine; got {type(engine).__name__}")
    found: Counter[tuple[float, float]] = Counter()
    for noise, rate, steps in history:
        found[float(noise), float(rate)] += int(steps)
    return found


def cost_of_training(noise_multiplier: float, rate: float, steps: int) -> PrivacyCost:
    """Return what so many steps of DP-SGD cost a record.

    Raises:
        ConfigError: a parameter outside its domain.
    """
    check_integer("steps", steps, 1)
    return PrivacyCost((PrivacyMechanism(DPSGDLoss(noise_multiplier, rate, steps), "record"),))


Ranges = tuple[tuple[int, int], ...]
"""Numbers of exchanges as ascending half-open ranges (first, last + 1), which neither touch nor overlap."""


@dataclass(frozen=True)
class DataUsage:
    """Total use of a client's data: exchanges, epsilon and delta.

    Attributes:
        exchanges: exchanges answered.
        epsilon: privacy loss of all of them together; infinite where one of them carried no noise.
        delta: probability with which epsilon may fail.

    Raises:
        ConfigError: a value outside its domain.
    """

    exchanges: int = 0
    epsilon: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_integer("exchanges", self.exchanges, 0)
        check_limit("epsilon", self.epsilon, least=0)
        check_number("delta", self.delta, 0, below=1)


@dataclass(frozen=True)
class Limits:
    """Limits that an operator sets on the use of its data, over all runs together.

    Attributes:
        exchanges: largest number of exchanges answered; `None` for any number.
        epsilon: largest epsilon of all noise together; `None` for any. An exchange whose answer carries no noise has
            no finite epsilon, and is refused where there is a limit.
        delta: probability with which epsilon may fail, of all exchanges together.
        unit: whose privacy epsilon is about: the whole "client", or one "record" of it. Noise that hides a client hides
            each of its records too, at twice the sensitivity: another record changes the contribution from one vector
            within the clip to another. Noise that hides a record (DP-SGD, `records`) does not hide a client.

    Raises:
        ConfigError: a limit outside its domain.
    """

    exchanges: int | None = None
    epsilon: float | None = None
    delta: float = DELTA
    unit: Unit = "client"

    def __post_init__(self) -> None:
        if self.exchanges is not None:
            check_integer("exchanges", self.exchanges, 0, note="(or None)")
        if self.epsilon is not None:
            check_limit("epsilon", self.epsilon)
        check_number("delta", self.delta, below=1, positive=True)
        check_choice("unit", self.unit, ("client", "record"))


@dataclass(frozen=True)
class LedgerEntries:
    """All entries of a ledger, immutable: adding an entry returns a new value.

    Attributes:
        declared: the privacy cost before this ledger, as the operator declared it.
        charged: for each cost, which exchanges of each run were charged at it.
        trained: steps of DP-SGD that ran, by (noise multiplier, sampling rate).
        reserved: by training, the (noise multiplier, sampling rate, steps) that were reserved and not recorded yet.
        trainings: number of trainings so far.
    """

    declared: DataUsage = DataUsage()
    charged: Mapping[PrivacyCost, Mapping[str, Ranges]] = field(default_factory=dict)
    trained: Steps = field(default_factory=dict)
    reserved: Mapping[int, tuple[float, float, int]] = field(default_factory=dict)
    trainings: int = 0

    @property
    def counts(self) -> dict[PrivacyCost, int]:
        """Number of exchanges charged at each cost."""
        return {
            cost: sum(stop - start for ranges in runs.values() for start, stop in ranges)
            for cost, runs in self.charged.items()
        }

    @property
    def exchanges(self) -> int:
        """Exchanges answered, declared ones included."""
        return self.declared.exchanges + sum(self.counts.values())

    def spent(self, delta: float, unit: Unit) -> DataUsage:
        """Add up all use of the data: epsilon is the declared one plus that of all charges and trainings.

        The charges are composed at the part of `delta` that was not declared as used before (basic composition).

        Args:
            delta: probability with which the returned epsilon may fail; more than the declared delta.
            unit: whether a record or a client is protected; the declared epsilon is taken to protect the same.
        """
        costs = Counter(self.counts)
        steps = Counter(self.trained)
        for noise, rate, most in self.reserved.values():
            steps[noise, rate] += most
        costs.update(cost_of_training(noise, rate, ran) for (noise, rate), ran in steps.items())
        epsilon = epsilon_of_all(costs, delta - self.declared.delta, unit)
        return DataUsage(self.exchanges, self.declared.epsilon + epsilon, delta)

    def with_charge(self, run: str, exchange: int, cost: PrivacyCost) -> Self:
        """Return the entries with one more exchange, or the same object if they hold it already.

        Raises:
            ConfigError: the number is negative.
            ContradictionError: it was charged at another cost.
        """
        if exchange < 0:
            raise ConfigError(f"exchanges are numbered from 0; got {exchange}")
        for known, runs in self.charged.items():
            if _holds(runs.get(run, ()), exchange):
                if known == cost:
                    return self
                raise ContradictionError(SERVER, f"exchange {exchange} was charged before, at another cost")
        runs = self.charged.get(cost, {})
        return replace(self, charged={**self.charged, cost: {**runs, run: _added(runs.get(run, ()), exchange)}})

    def with_reserved(self, noise_multiplier: float, rate: float, steps: int) -> Self:
        """Return the entries with one more training, whose number is `trainings` of before."""
        reserved = {**self.reserved, self.trainings: (float(noise_multiplier), float(rate), int(steps))}
        return replace(self, reserved=reserved, trainings=self.trainings + 1)

    def with_trained(self, ran: Steps, number: int | None = None) -> Self:
        """Return the entries with steps that ran, in place of what was reserved for training `number`.

        Raises:
            ConfigError: nothing is reserved for that number.
        """
        if number is not None and number not in self.reserved:
            raise ConfigError(f"training {number} is not reserved in this ledger, or was recorded before")
        reserved = {other: steps for other, steps in self.reserved.items() if other != number}
        return replace(self, reserved=reserved, trained=dict(Counter(self.trained) + Counter(ran)))

    def check_trained(self, training: Training | int) -> None:
        """Raise `ConfigError` unless these entries count all steps of a training, given by itself or by its number."""
        number = training.number if isinstance(training, Training) else training
        if type(number) is not int or not 0 <= number < self.trainings:
            raise ConfigError("trained must be a training of this client's ledger: ledger.reserve(engine, ...)")
        if (kept := self.reserved.get(number)) is None:
            return
        if not isinstance(training, Training):
            raise ConfigError(
                f"the steps of training {number} are not counted yet; count them first: ledger.record(training)"
            )
        if training.beyond(kept):
            raise ConfigError("more steps ran than were reserved; count them first: ledger.record(training)")

    def to_json(self) -> dict[str, Any]:
        """Return JSON values. Inverse: `from_json`."""
        declared = self.declared
        epsilon = None if math.isinf(declared.epsilon) else declared.epsilon
        return {
            "declared": {"exchanges": declared.exchanges, "epsilon": epsilon, "delta": declared.delta},
            "charged": [
                {"cost": cost.to_json(), "runs": {run: [list(pair) for pair in ranges] for run, ranges in runs.items()}}
                for cost, runs in self.charged.items()
            ],
            "trained": [[noise, rate, steps] for (noise, rate), steps in self.trained.items()],
            "reserved": {str(number): list(steps) for number, steps in self.reserved.items()},
            "trainings": self.trainings,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read the entries from JSON values. Inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: it did not come from `to_json`.
        """
        declared = dict(values["declared"])
        spent = DataUsage(**declared | ({"epsilon": math.inf} if declared["epsilon"] is None else {}))
        charged: dict[PrivacyCost, Mapping[str, Ranges]] = {}
        for entry in values["charged"]:
            runs = {
                run: tuple((int(start), int(stop)) for start, stop in pairs) for run, pairs in entry["runs"].items()
            }
            charged[PrivacyCost.from_json(entry["cost"])] = runs
        trained = {(float(z), float(rate)): int(steps) for z, rate, steps in values.get("trained", ())}
        reserved = {int(n): (float(z), float(r), int(k)) for n, (z, r, k) in values.get("reserved", {}).items()}
        return cls(spent, charged, trained, reserved, int(values.get("trainings", 0)))


def _holds(ranges: Ranges, number: int) -> bool:
    """Tell whether one of the ranges contains the number."""
    place = bisect_right(ranges, number, key=lambda pair: pair[0])  # number of ranges that begin at or before it
    return place > 0 and number < ranges[place - 1][1]


def _added(ranges: Ranges, number: int) -> Ranges:
    """Return the ranges with one more number, which they do not hold yet; ranges that touch are joined."""
    place = bisect_right(ranges, number, key=lambda pair: pair[0])
    before, after = ranges[:place], ranges[place:]
    start, stop = number, number + 1
    if before and before[-1][1] == start:
        start, before = before[-1][0], before[:-1]
    if after and after[0][0] == stop:
        stop, after = after[0][1], after[1:]
    return (*before, (start, stop), *after)

"""From a plan to a cost: counts times constants that were fitted to measured exchanges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from securefed.costs import encryption, masking
from securefed.defenses.base import Defense, Plan
from securefed.defenses.homomorphic import Paillier
from securefed.defenses.secure_aggregation import SecureAggregation
from securefed.errors import PlanError

FIGURES: Final = Path(__file__).with_name("figures.json")
Constants = Mapping[str, Mapping[str, float]]
"""By quantity and term."""


@dataclass(frozen=True)
class Cost:
    """Predicted for one exchange.

    Attributes:
        client_cpu, server_cpu: seconds of one core; of one client and of the server.
        helper_cpu: of the key holder, where there is one.
        sent, received: bytes of one client, headers left out; with `verify` the announced sum is received too.
        client_memory, server_memory: bytes allocated in a step beside what it was handed; `None` where not modelled.
    """

    client_cpu: float
    server_cpu: float
    sent: float
    received: float
    client_memory: float | None = None
    server_memory: float | None = None
    helper_cpu: float = 0.0


@dataclass(frozen=True)
class Sized:
    """An exchange whose costs are known: the model's name, and the count of each term by quantity."""

    model: str
    counts: Mapping[str, Mapping[str, float]]

    @classmethod
    def of(cls, defense: Defense, plan: Plan, lost: int = 0) -> Sized:
        """The exchange of `plan`, which `defense` made, that `lost` clients do not upload in.

        Raises:
            PlanError: costs of this defence are not known, or more clients are lost than the plan survives.
        """
        protocol = defense.aggregation
        if isinstance(protocol, SecureAggregation):
            masked = masking.Size.of(plan, lost, resumed=protocol.pipelined)
            return cls(protocol.name, _counts(masking.TERMS, masked))
        if isinstance(protocol, Paillier) and (model := str(protocol)) in MODELS:
            return cls(model, _counts(encryption.TERMS, encryption.Size.of(plan, protocol.bits, lost)))
        raise PlanError(f"costs are known for {', '.join(MODELS)}; not for {protocol}")


def _counts(terms: Mapping[str, Mapping[str, Any]], size: object) -> dict[str, dict[str, float]]:
    return {quantity: {name: float(term(size)) for name, term in of.items()} for quantity, of in terms.items()}


MODELS: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    SecureAggregation.name: masking.TERMS,
    **{f"{Paillier.name}({bits}, {noise})": encryption.TERMS for bits in (2048, 3072) for noise in ("half", "short")},
}
"""By name, the models and their terms."""


@cache
def figures() -> Mapping[str, Any]:
    """The fitted constants, the machine, and how far predictions were off where they were checked."""
    return dict(json.loads(FIGURES.read_text()))


def predict(defense: Defense, plan: Plan, lost: int = 0, fitted: Mapping[str, Constants] | None = None) -> Cost:
    """The cost of an exchange under `plan`, which `defense` made, that `lost` clients do not upload in.

    A pipelined exchange is one that the exchange before has prepared. Under Paillier the tables of powers, filled once
    a process, and the key, made once a run, are left out, and CPU seconds are those of all worker processes together.

    Args:
        fitted: constants by model; `None` takes those of `figures`.

    Guarantee: none on another machine; ratios carry over better than seconds. `figures()["checked"]` says how far
    predictions were off at sizes that were not fitted.

    Raises:
        PlanError: costs of this defence are not known, or more clients are lost than the plan survives.
    """
    sized = Sized.of(defense, plan, lost)
    constants = (figures()["models"] if fitted is None else fitted)[sized.model]
    found = {
        quantity: sum(constants[quantity][name] * count for name, count in counts.items())
        for quantity, counts in sized.counts.items()
    }
    return Cost(sent=plan.upload_bytes, **found)

"""Predict the cost of an exchange (one sum) from its plan: counts times constants fitted to measured exchanges.

A plan fixes how many masks, ciphertexts, signatures, bytes, ... an exchange takes (`masking_terms`,
`encryption_terms`). Each quantity, such as CPU seconds of the server, is the sum over these counts of a constant from
`figures.json` times the count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from securefed._costs import encryption_terms, masking_terms
from securefed.defenses._base import Defense, Plan
from securefed.defenses._homomorphic import Paillier
from securefed.defenses._secure_aggregation import SecureAggregation
from securefed.errors import PlanError

FIGURES: Final = Path(__file__).with_name("figures.json")
"""The fitted constants, written by `python -m benchmarks scaling`."""
Constants = Mapping[str, Mapping[str, float]]
"""Fitted constants of one cost model, by quantity (such as `client_cpu`) and term."""


@dataclass(frozen=True)
class ExchangeCost:
    """The predicted cost of one exchange.

    Attributes:
        client_cpu: CPU seconds of one client.
        server_cpu: CPU seconds of the server.
        sent: most bytes that one client sends, without headers; clients that deal no piece of the key by which a sum
            is checked send fewer.
        received: bytes that one client receives, without headers; includes the announced sum if clients verify it.
        client_memory: bytes that a client allocates in a step beside its inputs; `None` where not modelled.
        server_memory: bytes that the server allocates in a step beside its inputs; `None` where not modelled.
        helper_cpu: CPU seconds of the key holder; 0 without one.
    """

    client_cpu: float
    server_cpu: float
    sent: float
    received: float
    client_memory: float | None = None
    server_memory: float | None = None
    helper_cpu: float = 0.0


@dataclass(frozen=True)
class CountedExchange:
    """The counts of an exchange from which its cost is predicted.

    Attributes:
        model: the name of its cost model.
        counts: by quantity, the count of each term.
        sent: most bytes that one client sends, without headers.
    """

    model: str
    counts: Mapping[str, Mapping[str, float]]
    sent: int

    @classmethod
    def of(cls, defense: Defense, plan: Plan, lost: int = 0) -> CountedExchange:
        """Count the terms of an exchange.

        Args:
            defense: the defence that made the plan.
            plan: the plan of the exchange.
            lost: number of clients that do not upload.

        Raises:
            PlanError: costs of this defence are not known, or more clients are lost than the plan survives.
        """
        protocol = defense.aggregation
        if isinstance(protocol, SecureAggregation):
            masked = masking_terms.MaskingCounts.of(plan, lost, resumed=protocol.pipelined)
            return cls(protocol.name, _counts(masking_terms.TERMS, masked), plan.upload_bytes - masked.unsent)
        if isinstance(protocol, Paillier) and (model := str(protocol)) in MODELS:
            encrypted = encryption_terms.EncryptionCounts.of(plan, protocol.bits, lost)
            return cls(model, _counts(encryption_terms.TERMS, encrypted), plan.upload_bytes)
        raise PlanError(f"costs are known for {', '.join(MODELS)}; not for {protocol}")


def _counts(terms: Mapping[str, Mapping[str, Any]], counts: object) -> dict[str, dict[str, float]]:
    """Evaluate every term on the counts of one exchange, by quantity and name."""
    return {quantity: {name: float(term(counts)) for name, term in named.items()} for quantity, named in terms.items()}


MODELS: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    SecureAggregation.name: masking_terms.TERMS,
    **{
        f"{Paillier.name}({bits}, {randomness})": encryption_terms.TERMS
        for bits in (2048, 3072)
        for randomness in ("half", "short")
    },
}
"""The terms of each cost model, by the model's name."""


@cache
def figures() -> Mapping[str, Any]:
    """Read the fitted constants, the machine, and the errors of predictions where they were checked."""
    return dict(json.loads(FIGURES.read_text()))


def predict(defense: Defense, plan: Plan, lost: int = 0, fitted: Mapping[str, Constants] | None = None) -> ExchangeCost:
    """Predict the cost of an exchange.

    In a pipelined federation, the cost is that of an exchange whose keys and shares the exchange before has prepared.
    Under Paillier, two costs are left out: filling the tables of powers, once per process, and generating the key, once
    per run. CPU seconds are those of all worker processes together.

    Args:
        defense: the defence that made the plan.
        plan: the plan of the exchange.
        lost: number of clients that do not upload.
        fitted: constants by model; `None` takes those of `figures`.

    Not promised: accuracy on another machine; ratios carry over better than seconds. `figures()["checked"]` holds the
    errors of predictions at sizes that were not fitted.

    Raises:
        PlanError: costs of this defence are not known, or more clients are lost than the plan survives.
    """
    counted = CountedExchange.of(defense, plan, lost)
    constants = (figures()["models"] if fitted is None else fitted)[counted.model]
    predicted = {
        quantity: sum(constants[quantity][name] * count for name, count in counts.items())
        for quantity, counts in counted.counts.items()
    }
    return ExchangeCost(sent=counted.sent, **predicted)

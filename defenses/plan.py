"""What a defence will do, said before the run: the plan of every tensor, and the fingerprint of its numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from securefed.defenses.wording import plan_text
from securefed.tensors import Layout, Ring, TensorSpec

Unit = Literal["client", "record"]

INDICATOR: Final = "out.indicator"
"""The tensor that tells, in the sum, that some client sat out: each client adds 0 to it, a client that is out a
uniform residue."""


@dataclass(frozen=True)
class TensorPlan:
    """What happens to one tensor.

    Attributes:
        name, shape: as in the layout.
        bound: largest absolute entry a client may send; beyond it the client refuses with `RangeRefused`.
        ring: integer width of the sum in bits, 0 where it is summed in floating point.
        step: value of one integer unit (a power of two), 0 where it is not quantised.
        max_clients: largest number of clients whose sum cannot wrap.
        error: largest absolute difference, in the decoded SUM, to the exact sum, per entry.
        sensitivity: L2 distance by which one of a client's records moves it, declared by the layout, or `None`.
        declared: largest absolute entry before any noise of the client's own, where contributions are cut to it
            (`records`), else `None`.
    """

    name: str
    shape: tuple[int, ...]
    bound: float | None
    ring: int
    step: float
    max_clients: int
    error: float
    sensitivity: float | None = None
    declared: float | None = None

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Plan:
    """What a defence will do for one layout and cohort, said before the run.

    Attributes:
        defense: its name, as composed.
        clients: size of the planned cohort.
        tensors: per tensor: bound, ring, step, largest N without wrap, error bound.
        wanted_rings: the ring each tensor asks for.
        stages: names of the exchanges of a round, in order.
        upload_bytes: bytes a client sends in a round, all stages, headers left out.
        threshold: survivors a round needs.
        degree: neighbours that a client masks with and deals its secrets to, 0 for everybody.
        shares: shares that open a client's secret, 0 where secrets are not shared.
        survivor_change: by how many clients the survivors of two sums that follow each other differ at least, unless
            they are the same; 1 for no such rule.
        open_to: collusions that open single contributions, in words.
        verified: whether clients check the sum that the server announces.
        clip: L2 norm of what one unit of privacy contributes, `None` where it is not bounded: the norm that a
            contribution is clipped to, or what one record moves it by.
        unit: whose contribution `clip` bounds: a whole "client", or one "record" of a client.
        added: names of tensors that transforms add to a contribution; they are released, and no algorithm sees them.
        learned: public numbers that transforms drew from earlier releases of the run (`Adaptive`).
        noise_multiplier: standard deviation of the server's noise over the sensitivity (`clip`, and what rounding adds
            to it: `differential_privacy.sensitivity`), 0 without.
        noise_survivors: survivors that the clients' own noise is sized for, 0 without; at most `threshold`.
        epsilon: (rounds, epsilon) pairs of the mechanism for what leaves the aggregator (with `noise_survivors`: for
            what the server sees).
        exchange: the run and number of the exchange it is used in, set by `Session`; `None` before there is one.
        assumptions: what is assumed, one sentence each.
    """

    defense: str
    clients: int
    tensors: tuple[TensorPlan, ...]
    wanted_rings: Mapping[str, Ring]
    stages: tuple[str, ...] = ()
    upload_bytes: int = 0
    threshold: int = 1
    degree: int = 0
    shares: int = 0
    survivor_change: int = 1
    open_to: str = ""
    verified: bool = False
    clip: float | None = None
    unit: Unit = "client"
    added: tuple[str, ...] = ()
    learned: tuple[float, ...] = ()
    noise_multiplier: float = 0.0
    noise_survivors: int = 0
    epsilon: tuple[tuple[int, float], ...] = ()
    exchange: tuple[str, int] | None = None
    assumptions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return plan_text(self)

    @property
    def steps(self) -> dict[str, float]:
        """Value of one integer unit by tensor; empty where nothing is quantised."""
        return {tensor.name: tensor.step for tensor in self.tensors if tensor.step}

    @property
    def layout(self) -> Layout:
        return Layout(tuple(TensorSpec(t.name, t.shape, t.bound, self.wanted_rings[t.name]) for t in self.tensors))

    @property
    def own(self) -> Layout:
        """What the algorithm contributes: without the tensors that transforms add."""
        return Layout(tuple(spec for spec in self.layout if spec.name not in self.added))

    def assume(self, *sentences: str) -> Plan:
        """This plan with further assumptions."""
        return replace(self, assumptions=self.assumptions + sentences)


def plan_digest(plan: Plan) -> bytes:
    """SHA-256 of every number of a plan that moves what a client sends or what is made of it; no words, no exchange.

    A server that opens an exchange says to each client how often the range was doubled and what was learned. Clients
    that were told different plans must not be summed: one whose step or clip is a million times another's is alone in
    the sum. So protocols against a server that deviates bind what they mask, sign and open to this digest.
    """

    def exact(value: float | None) -> str | None:
        return None if value is None else float(value).hex()

    numbers = (
        plan.clients,
        [(t.name, t.shape, exact(t.bound), t.ring, exact(t.step)) for t in plan.tensors],
        (plan.stages, plan.threshold, plan.degree, plan.shares, plan.survivor_change),
        (bool(plan.verified), plan.added, plan.unit),
        (exact(plan.clip), exact(plan.noise_multiplier), plan.noise_survivors, [exact(x) for x in plan.learned]),
    )
    return hashlib.sha256(json.dumps(numbers, default=int).encode()).digest()


def with_indicator(plan: Plan) -> Plan:
    """The plan with the tensor `INDICATOR` more: 64 bits of integers, or a float where sums are not made of integers.

    The integers are of a ring that the plan has anyway (32 bits where it can), so that encryptions pack them beside the
    other entries.
    """
    rings = {tensor.ring for tensor in plan.tensors if tensor.step}
    ring: Ring = 32 if 32 in rings else 64
    shape, planned, step = ((2,) if ring == 32 else (), ring, 1.0) if rings else ((), 0, 0.0)
    indicator = TensorPlan(INDICATOR, shape, 1.0, planned, step, 2**31, 0.0)
    return replace(
        plan,
        tensors=(*plan.tensors, indicator),
        wanted_rings={**plan.wanted_rings, INDICATOR: ring},
        added=(*plan.added, INDICATOR),
    ).assume(
        "A client whose values are out of range or not finite, or whose computation fails, uploads uniform residues: "
        "the sum opens to noise, shows in one bit that some client was out, and the exchange is repeated."
    )


def indicator_of(plan: Plan) -> TensorPlan | None:
    """The indicator's part of the plan, if it has one."""
    return next((tensor for tensor in plan.tensors if tensor.name == INDICATOR), None)


def without_indicator(plan: Plan) -> Plan:
    """The plan of the tensors that transforms work on."""
    if not has_indicator(plan):
        return plan
    return replace(plan, tensors=tuple(tensor for tensor in plan.tensors if tensor.name != INDICATOR))


def has_indicator(plan: Plan) -> bool:
    """Whether a client that is out of range uploads uniform residues under this plan, instead of refusing."""
    return INDICATOR in plan.added

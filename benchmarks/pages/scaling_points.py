"""Points of the scaling page: one exchange each, under secure aggregation or Paillier."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from statistics import median
from typing import Any, ClassVar, Literal

import numpy as np

from benchmarks.peers.exchange import exchange, uniform
from securefed import _costs as costs
from securefed._tensors import Layout, TensorSpec
from securefed.defenses._base import Defense, Plan
from securefed.defenses._chain import chain
from securefed.defenses._homomorphic import KeyHolder, paillier
from securefed.defenses._secure_aggregation import secure_aggregation
from securefed.defenses._secure_aggregation.identities import Identities

Option = Literal["signed", "verified", "pipelined"]
OPTIONS: tuple[Option, ...] = ("signed", "verified", "pipelined")


@lru_cache(maxsize=32)
def masking(graph: str, options: tuple[str, ...] = (), clients: int = 0) -> Defense:
    """Secure aggregation with those of `OPTIONS`; identities of `clients`, whom they are made for."""
    chosen: dict[str, Any] = {"graph": graph, "adversarial": 0.1, "dropouts": 0.1} if graph == "sparse" else {}
    if "signed" in options:
        chosen |= {"identities": Identities.generate(clients), "adversarial": 0.1}
    return chain(secure_aggregation(verify="verified" in options, pipelined="pipelined" in options, **chosen))


def layout(entries: int) -> Layout:
    """One tensor."""
    return Layout((TensorSpec("w", (entries,), 8.0),))


@dataclass(frozen=True, order=True)
class Point:
    """One exchange under secure aggregation; `lost` clients do not upload. `check`: kept out of the fit."""

    graph: str
    clients: int
    entries: int
    lost: int
    options: tuple[str, ...] = ()
    check: bool = False
    kind: ClassVar[str] = "masking"

    @property
    def name(self) -> str:
        return f"{', '.join((self.graph, *self.options))}, N={self.clients}, d={self.entries:.0e}, {self.lost} lost"

    @property
    def defense(self) -> Defense:
        return masking(self.graph, self.options, self.clients if "signed" in self.options else 0)

    @property
    def plan(self) -> Plan:
        return self.defense.plan(layout(self.entries), self.clients)

    @property
    def runs(self) -> int:
        """Three, and one where that takes seconds."""
        masks = self.clients * self.entries * (self.clients if self.graph == "complete" else 22)
        most = 30 if self.options else 100
        return 3 if self.clients <= most and masks < 3e9 else 1

    def measure(self) -> dict[str, Any]:
        """Medians of the runs, and the memory of one more step each; the sum must be exact."""
        defense, plan, value = self.defense, self.plan, uniform(self.clients, self.entries)
        found = []
        for run in range(self.runs):
            total, cost = exchange(
                defense.aggregation, plan, lambda c: defense.encode(value(c), plan), self.lost,
                trace=run == 0, prepared="pipelined" in self.options,
            )  # fmt: skip
            found.append(cost)
        kinds = min(self.clients, 8)
        exact = sum(defense.encode(value(k), plan)["w"] * len(total.survivors[k::kinds]) for k in range(kinds))
        assert np.array_equal(total.total["w"], exact), f"{self.name}: the sum is not exact"
        sent = sum(found[0].sent.values())
        # Fewer where the lost are dealt no shares for the next exchange, or the client deals no piece of the sum's key.
        fewer = ("pipelined" in self.options and self.lost) or "verified" in self.options
        assert sent == plan.upload_bytes or (fewer and sent < plan.upload_bytes), f"{self.name}: {sent} bytes sent"
        return {
            "client_cpu": median(f.client for f in found),
            "server_cpu": median(f.server for f in found),
            "sent": sent,
            "received": found[0].received,
            "client_memory": found[0].client_memory,
            "server_memory": found[0].server_memory,
        }


@lru_cache(maxsize=2)
def key_holder(bits: int) -> KeyHolder:
    """One key of each length for all points."""
    return KeyHolder.generate(bits)


@dataclass(frozen=True, order=True)
class Encrypted:
    """One exchange under Paillier."""

    bits: int
    noise: str
    clients: int
    entries: int
    lost: int
    check: bool = False
    kind: ClassVar[str] = "paillier"

    @property
    def name(self) -> str:
        size = f"N={self.clients}, d={self.entries:.0e}, {self.lost} lost"
        return f"Paillier, {self.bits} bits, {self.noise} noise, {size}"

    @property
    def defense(self) -> Defense:
        return _paillier(self.bits, self.noise)

    @property
    def plan(self) -> Plan:
        return self.defense.plan(layout(self.entries), self.clients)

    @property
    def runs(self) -> int:
        return 3 if self.entries <= 10**4 else 1

    def measure(self) -> dict[str, Any]:
        """Medians of the runs, tables of powers being filled; the sum must be exact."""
        defense, plan, value = self.defense, self.plan, uniform(self.clients, self.entries)
        small, holder = layout(1), key_holder(self.bits)
        first = defense.plan(small, 2)
        exchange(defense.aggregation, first, lambda _: defense.encode({"w": np.ones(1)}, first), helper=holder)
        found = []
        for _ in range(self.runs):
            total, cost = exchange(
                defense.aggregation, plan, lambda c: defense.encode(value(c), plan), self.lost, helper=holder
            )
            found.append(cost)
        exact = sum(defense.encode(value(c), plan)["w"] for c in total.survivors)
        assert np.array_equal(total.total["w"], exact), f"{self.name}: the sum is not exact"
        assert sum(found[0].sent.values()) == plan.upload_bytes
        return {
            "client_cpu": median(f.client for f in found),
            "server_cpu": median(f.server for f in found),
            "helper_cpu": median(f.helper for f in found),
            "sent": plan.upload_bytes,
            "received": found[0].received,
        }


@lru_cache(maxsize=8)
def _paillier(bits: int, noise: Any) -> Defense:
    return chain(paillier(bits, noise, threshold=2))


AnyPoint = Point | Encrypted
CLIENTS = {"complete": (10, 20, 50, 100, 200), "sparse": (50, 100, 200, 500)}
ENTRIES = {("complete", 10): (10**4, 10**5, 10**6, 10**7), ("sparse", 100): (10**4, 10**5, 10**6, 10**7)}
WITH_OPTIONS = [
    ("complete", 10, 10**4, 0), ("complete", 10, 10**6, 1), ("complete", 30, 10**4, 3), ("complete", 30, 10**5, 0),
    ("complete", 100, 10**5, 0), ("complete", 100, 10**4, 10), ("sparse", 100, 10**5, 10), ("sparse", 300, 10**4, 0),
]  # fmt: skip
CHECKS = (
    Encrypted(2048, "half", 10, 10**5, 1, True),
    Encrypted(2048, "short", 10, 10**5, 1, True),
    Encrypted(3072, "half", 4, 10**5, 0, True),
    Encrypted(3072, "short", 4, 10**5, 0, True),
    Point("complete", 100, 10**5, 10, OPTIONS, True),
    Point("sparse", 1000, 10**5, 100, (), True),
    Point("complete", 400, 10**5, 40, (), True),
    Point("sparse", 200, 10**5, 20, OPTIONS, True),
)


def points() -> list[AnyPoint]:
    """All points, those that the model is checked at last."""
    plain = {
        Point(graph, n, 10**d, lost)
        for graph, all_ in CLIENTS.items()
        for n in all_
        for lost in (0, n // 10)
        for d in (4, 5)
    }
    plain |= {
        Point(graph, n, d, lost)
        for (graph, n), all_ in ENTRIES.items()
        for d in all_
        for lost in ((0, n // 10) if d < 10**7 else (0,))
    }
    optional = {Point(*size, (option,)) for size in WITH_OPTIONS for option in OPTIONS}
    encrypted = [
        Encrypted(bits, noise, n, d, lost)
        for bits in (2048, 3072)
        for noise in ("half", "short")
        for n, d, lost in ((3, 10**3, 0), (3, 10**4, 1), (10, 10**3, 0), (10, 10**4, 1), (3, 3 * 10**4, 0))
    ]
    masked = sorted(plain | optional, key=lambda p: (p.clients * p.entries, p))
    return [*masked, *encrypted, *CHECKS]


def kept(point: AnyPoint) -> dict[str, Any]:
    """The point as it is kept."""
    return {"kind": point.kind, **asdict(point)}


def measured(point: AnyPoint) -> dict[str, Any]:
    """The point, what it cost, and how busy the machine was."""
    load = os.getloadavg()[0]
    return {**kept(point), **point.measure(), "runs": point.runs, "load": load}


def restored(content: dict[str, Any]) -> AnyPoint:
    """The point that was kept."""
    kind = Point if content["kind"] == Point.kind else Encrypted
    values = {field.name: content[field.name] for field in fields(kind)}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def sized(point: AnyPoint) -> costs.CountedExchange:
    """What the model counts of it."""
    return costs.CountedExchange.of(point.defense, point.plan, point.lost)

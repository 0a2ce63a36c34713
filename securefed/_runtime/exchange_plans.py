"""Derive the defence's plans of a client's exchanges from public facts, and keep what was derived.

A plan states for each tensor its clip, its fixed-point step and its ring, and for the protocol its stages, threshold
and bytes. Server and clients derive it alone from the same facts, so that a server cannot hand a client another one.
"""

from __future__ import annotations

from functools import cached_property

from securefed._runtime.exchange_header import TRAIN, ExchangeHeader
from securefed._runtime.message_schema import MessageSchema
from securefed.defenses._base import Defense, Plan, has_indicator


class ExchangePlans:
    """The plans of one client's exchanges. Deriving one takes milliseconds, so the newest is kept.

    Args:
        schema: the tensors that clients upload, and the public facts.
        defense: protects the contributions in messages.
    """

    def __init__(self, schema: MessageSchema, defense: Defense) -> None:
        self._schema, self._defense = schema, defense
        self._newest: tuple[object, Plan] | None = None  # what the newest plan was derived from, and the plan

    def plan(self, header: ExchangeHeader) -> Plan:
        """Return the plan of the exchange with this header.

        Raises:
            PlanError: the defence cannot keep its promise after so many doublings of the range.
        """
        layout, doublings, learned = given = self._schema.layouts[header.kind], header.doublings, header.learned
        if self._newest is None or self._newest[0] != given:
            plan = self._defense.plan(layout, self._schema.public.cohort, range_doublings=doublings, learned=learned)
            self._newest = given, plan
        return self._newest[1]

    @cached_property
    def training(self) -> Plan:
        """The plan of the first training exchange, before any doubling of the range."""
        return self._defense.plan(self._schema.layouts[TRAIN], self._schema.public.cohort)

    @cached_property
    def hide_absence(self) -> bool:
        """True if the server must not learn that a client has no contribution: uploads are hidden, or carry noise."""
        return has_indicator(self.training) or self.training.noised

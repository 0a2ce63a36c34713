"""Derive the plans of a client's exchanges from public facts.

An exchange makes one sum of the clients' uploads. Its plan states how the defence makes that sum: for each tensor the
norm to which it is clipped, its fixed-point step and the width of the integers that are added, and for the protocol its
stages, threshold and bytes. Server and clients each derive the plan by themselves from the same facts, so that a server
cannot give a client another one. A client (`SumNode`) asks for the plan when a request opens an exchange.
"""

from __future__ import annotations

from functools import cached_property

from securefed._runtime.exchange_header import TRAIN, ExchangeHeader
from securefed._runtime.sum_facts import SumSchema
from securefed.defenses._base import Defense, Plan, has_indicator


class ExchangePlans:
    """The plans of one client's exchanges. Deriving one takes milliseconds, so the newest is kept.

    Args:
        schema: the tensors that clients upload with their bounds, and the planned cohort.
        defense: protects the contributions in messages; it makes the plans.
    """

    def __init__(self, schema: SumSchema, defense: Defense) -> None:
        self._schema, self._defense = schema, defense
        self._newest: tuple[object, Plan] | None = None  # what the newest plan was derived from, and the plan

    def plan(self, header: ExchangeHeader) -> Plan:
        """Return the plan of the exchange with this header.

        Args:
            header: public numbers that the server sends. The plan depends on three: the kind of the sum (training or
                evaluation); how often the planned bounds of the entries were doubled, since a sum in which a value
                exceeded its bound is void and is repeated with twice the bounds; and what an adaptive defence learned
                from earlier sums, such as the clipping norm.

        Raises:
            PlanError: the defence cannot keep its promise after so many doublings of the bounds.
        """
        facts = self._schema.layouts[header.kind], header.doublings, header.learned
        if self._newest is None or self._newest[0] != facts:
            layout, doublings, learned = facts
            if header.kind == TRAIN and not doublings and learned == self._defense.start(layout):
                plan = self.training
            else:
                cohort = self._schema.cohort
                plan = self._defense.plan(layout, cohort, range_doublings=doublings, learned=learned)
            self._newest = facts, plan
        return self._newest[1]

    @cached_property
    def training(self) -> Plan:
        """The plan of the first training exchange, before any doubling of the bounds."""
        return self._defense.plan(self._schema.layouts[TRAIN], self._schema.cohort)

    @cached_property
    def hide_absence(self) -> bool:
        """True if a client without a contribution, as where its values exceed their bounds, uploads all the same.

        The server then does not learn which client it is. Where uploads are masked or encrypted, the client uploads
        random numbers, and an added tensor, the indicator, shows in the sum that some client did (`has_indicator`).
        Under noise it uploads zeros with noise, since a refusal depends on its data and epsilon does not cover it. If
        false, uploads are in the clear without noise, and the client answers with an error, which shows who it is.
        """
        return has_indicator(self.training) or self.training.noised

"""Play one exchange of a grouped sum by hand: liars, lost replies, and states that are packed between two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from securefed import SERVER, Aggregate, Layout, Message, TensorSpec
from securefed._persistence.packing import pack, restore
from securefed.defenses import Defense, Session, UploadContext, chain, grouped, secure_aggregation

RUN = "ab" * 16
LAYOUT = Layout((TensorSpec("w", (4, 2), 1.0, 64), TensorSpec("b", (3,), 0.5, 32)))
CONTEXT = UploadContext(bytes(32), bytes(32))


def contributions(clients: int, seed: int = 0) -> dict[int, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return {i: {s.name: rng.uniform(-s.bound, s.bound, s.shape) for s in LAYOUT} for i in range(clients)}  # type: ignore[operator]


@dataclass
class Play:
    """One exchange.

    Attributes:
        defense: the defence.
        clients: number of clients.
        given: by client its contribution, `None` where it sits out; integers (units) for a liar's.
        lost: function of a stage and a client: true if its reply, and all later ones, are lost.
        freeze: whether states are packed and restored after each step.
        cohort: the invited clients; all by default.
    """

    defense: Defense
    clients: int
    given: Mapping[int, Any]
    lost: Callable[[str, int], bool] = lambda stage, client: False
    freeze: bool = False
    cohort: tuple[int, ...] | None = None
    asked: list[tuple[str, int]] = field(default_factory=list)

    @property
    def plan(self) -> Any:
        return self.defense.plan(LAYOUT, self.clients)

    @property
    def session(self) -> Session:
        cohort = tuple(range(self.clients)) if self.cohort is None else self.cohort
        return Session(RUN, 3, cohort, self.plan, CONTEXT.exchange)

    def run(self) -> Aggregate:
        protocol, session = self.defense.aggregation, self.session
        states: dict[int, Any] = {i: protocol.client_open(session, i) for i in session.cohort}
        gone: set[int] = set()
        server, stage, outgoing = protocol.server_open(session)
        while True:
            replies = {}
            for client, body in outgoing.items():
                self.asked.append((stage, client))
                request = Message(RUN, 3, stage, SERVER, client, body)
                if client in gone or self.lost(stage, client):
                    gone.add(client)
                    continue
                if stage == "upload":
                    state = protocol.client_accept(self.thawed(states[client]), request, CONTEXT)
                    states[client], reply = protocol.client_upload(self.thawed(state), self.encoded(client))
                else:
                    states[client], reply = protocol.client_step(self.thawed(states[client]), request, None)
                replies[client] = Message(RUN, 3, stage, client, SERVER, reply)
            step = protocol.server_step(self.thawed(server), replies)
            if isinstance(step, Aggregate):
                return step
            server, stage, outgoing = step

    def encoded(self, client: int) -> Any:
        own = self.given[client]
        if own is None or own["w"].dtype == np.int64:
            return own
        return self.defense.encode(own, self.plan)

    def thawed(self, state: Any) -> Any:
        return restore(state, pack(state)) if self.freeze else state


def grouping(groups: int = 5, aggregator: Any = "median", masking: Any = None, **more: Any) -> Defense:
    return chain(grouped(masking or secure_aggregation(), groups=groups, aggregator=aggregator, **more))


def groups(play: Play) -> tuple[tuple[int, ...], ...]:
    """The clients of each group."""
    return play.defense.aggregation._everyone(play.session)  # type: ignore[attr-defined, no-any-return]

"""A server that deviates: it has the true clients of an exchange in its hands, and says to each what it likes.

Clients are the library's own. Corrupt ones give the adversary all that they hold and sign what it wants.
What it collects goes into a pool of shares; `opened` removes masks with them as a server does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from securefed import SERVER, ClientId, Message
from securefed.defenses import Plan, Session
from securefed.defenses._secure_aggregation import SecureAggregation, consistency, masks, primitives
from securefed.defenses._secure_aggregation.primitives import FIELD
from securefed.defenses._secure_aggregation.session import MASK_KEY, SEED
from securefed.defenses._secure_aggregation.shares import holders_of

RUN = "0123456789abcdef0123456789abcdef"


def with_numbers(plan: Plan, changes: Mapping[str, int]) -> Plan:
    """A plan with other numbers, which no plan of the library has; those of masking stand in their own part."""
    assert plan.masking is not None
    masking = {name: value for name, value in changes.items() if hasattr(plan.masking, name)}
    others = {name: value for name, value in changes.items() if name not in masking}
    return replace(plan, masking=replace(plan.masking, **masking), **others)


class Adversary:
    """One exchange of honest clients under a server that deviates.

    Args:
        last: the clients' states of their last exchange, where they had one.
        corrupt: clients that tell the server everything.
    """

    def __init__(
        self,
        protocol: SecureAggregation,
        plan: Plan,
        cohort: Collection[ClientId],
        values: Mapping[ClientId, np.ndarray],
        *,
        number: int = 0,
        last: Mapping[ClientId, Any] | None = None,
        corrupt: Collection[ClientId] = (),
    ) -> None:
        self.protocol, self.values, self.corrupt = protocol, values, corrupt
        self.session = Session(RUN, number, tuple(sorted(cohort)), plan)
        self.clients = {c: self._open(c, (last or {}).get(c)) for c in self.session.cohort}
        self.server, self.stage, self.outgoing = protocol.server_open(self.session)
        self.uploads: dict[ClientId, np.ndarray] = {}
        self.pool: dict[tuple[int, ClientId], dict[ClientId, np.ndarray]] = {}
        self.aggregate: Any = None

    def _open(self, client: ClientId, last: Any) -> Any:
        opened = self.protocol.client_open(self.session, client)
        return opened if last is None else self.protocol.client_resume(self.session, client, last)

    def follow(self, until: str = "", lost: Mapping[str, Collection[ClientId]] | None = None) -> Adversary:
        """Follow the protocol until the requests of stage `until` are made, or to the end; `lost` by stage."""
        lost, gone = lost or {}, set()
        while self.stage != until:
            gone |= set(lost.get(self.stage, ()))
            replies = {}
            for client, body in self.outgoing.items():
                if client not in gone:
                    answer = self.ask(client, self.stage, body, sealed=True)
                    replies[client] = Message(RUN, self.session.round, self.stage, client, SERVER, answer)
            step = self.protocol.server_step(self.server, replies)
            if not isinstance(step, tuple):
                self.aggregate = step
                break
            self.server, self.stage, self.outgoing = step
        return self

    def ask(self, client: ClientId, stage: str, body: Any, *, sealed: bool = False, state: Any = None) -> Any:
        """One client's answer to words of the server's choice, or its refusal. `state`: as if it were still in that."""
        session = self.session
        if not sealed:
            secret = self.server.channels[client]
            body = primitives.seal(secret, session.run, session.round, stage, SERVER, client, body)
        request = Message(session.run, session.round, stage, SERVER, client, body)
        encoded = {"w": self.values[client]} if stage == "upload" else None
        new, answer = self.protocol.client_step(state or self.clients[client], request, encoded)
        self.clients[client] = new
        if stage == "upload":
            self.uploads[client] = answer["masked/w"]
            if client in self.corrupt:
                for dealer, both in zip(self._dealers(client), new.held_shares, strict=True):
                    for kind in (SEED, MASK_KEY):
                        self._keep(kind, dealer, client, both[kind])
        return answer

    def _dealers(self, holder: ClientId) -> list[ClientId]:
        return [dealer for dealer in self.server.share_dealers if holder in holders_of(self.server, dealer)]

    def _keep(self, kind: int, dealer: ClientId, holder: ClientId, share: np.ndarray) -> None:
        self.pool.setdefault((kind, dealer), {})[holder] = share

    def survivors(self, dead: Collection[ClientId]) -> dict[str, np.ndarray]:
        """The words "these are dead, the other sharers alive"."""
        alive = [c for c in self.server.share_dealers if c not in dead]
        return {"alive": np.asarray(alive, np.int64), "dead": np.asarray(sorted(dead), np.int64)}

    def confirm(self, client: ClientId, dead: Collection[ClientId], state: Any = None) -> np.ndarray:
        """A client's signature that these are dead."""
        return np.asarray(self.ask(client, "confirm", self.survivors(dead), state=state)["signature"])

    def forge(self, client: ClientId, dead: Collection[ClientId]) -> np.ndarray:
        """A corrupt client's signature of whatever the server wants."""
        alive = [c for c in self.server.share_dealers if c not in dead]
        statement = consistency.survivors_statement(self.server.exchange, alive)
        return np.frombuffer(self.protocol.identities.sign(client, statement), np.uint8)

    def unmask(self, client: ClientId, dead: Collection[ClientId], signatures: Any = None, state: Any = None) -> None:
        """A client's shares: with identities for signatures by client, without for the words themselves."""
        if signatures is None:
            body = self.survivors(dead)
        else:
            ids = np.asarray(sorted(signatures), np.int64)
            body = {"ids": ids, "signatures": np.stack([signatures[c] for c in sorted(signatures)])}
        shares = self.ask(client, "unmask", body, state=state)["shares"]
        for dealer, share in zip(self._dealers(client), shares, strict=True):
            self._keep(MASK_KEY if dealer in dead else SEED, dealer, client, share)

    def secret(self, kind: int, owner: ClientId) -> bytes | None:
        """A client's seed or mask key, where enough of its holders gave shares of it."""
        held, holders, t = (
            self.pool.get((kind, owner), {}),
            holders_of(self.server, owner),
            self.session.plan.masking.shares,
        )
        if len(held) < t:
            return None
        some = sorted(held)[:t]
        points = [holders.index(holder) + 1 for holder in some]
        return FIELD.combine(points, np.stack([held[holder] for holder in some])[:, None])[0]

    def opened(self, alive: Collection[ClientId], *, both: bool = False) -> np.ndarray | None:
        """The sum of these clients' contributions, where the pool opens it.

        Args:
            both: with a single client's two secrets, instead of those of all that it masked with.
        """
        seeds = {client: self.secret(SEED, client) for client in alive}
        applied, exchange, server = [], self.server.exchange, self.server
        public = dict(zip(server.advertised_clients, (key.tobytes() for key in server.mask_keys), strict=True))
        pairs = [(a, d) for d in server.share_dealers if d not in alive for a in alive if a in holders_of(server, d)]
        keys = {c: self.secret(MASK_KEY, c) for c in ({a for a, _ in pairs} if both else {d for _, d in pairs})}
        if None in seeds.values() or None in keys.values():
            return None
        for client, seed in seeds.items():
            applied.append(masks.self_mask(seed, exchange, client))
        for client, peer in pairs:
            own, other = (client, peer) if both else (peer, client)
            agreement = primitives.agree(primitives.private_key(keys[own]), public[other], other)
            applied.append(masks.pair_mask(agreement, exchange, client, peer))
        total = np.sum([self.uploads[client] for client in alive], axis=0, dtype=np.uint32)
        masks.apply_masks([total], applied, remove=True)
        return total.view(np.int32).astype(np.int64)

    def true_sum(self, alive: Collection[ClientId]) -> np.ndarray:
        """What a successful attack must give."""
        return np.sum([self.values[client] for client in alive], axis=0)

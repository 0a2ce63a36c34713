"""The terms of the cost of an exchange under secure aggregation, as counts that its plan fixes.

An exchange makes one sum. Each client advertises two public keys, deals Shamir shares of its secrets to `holders`
clients (encrypted, relayed by the server), and uploads its contribution plus one mask for each of these; the server
rebuilds the masks of lost clients from `shares` shares each (Bonawitz et al., 2017; with fewer holders than clients,
Bell et al., 2020). An exchange is resumed if the one before it has agreed its keys and shares, and if it does the same
for the next one.

A predicted quantity, such as the server's CPU time, is a sum of terms: a count, times a constant that was fitted to
measured exchanges. `TERMS` has for each quantity the counts, as functions of `MaskingCounts`, by name; `figures.json`
has the constants by the same names. In these names a "roster entry" is a client that takes part, an "advert" its two
public keys, a "bundle" the encrypted shares from one client for one holder, and a "key piece" and a "tag" belong to the
check of the announced sum: some clients deal pieces of a key to all, and each client sends a linear tag of its
contribution, under a pad of its own from the key and under pairwise masks ("tag pad" counts pads and masks).

Memory is the peak over all steps of an exchange. Where either of two steps may have the peak, a term counts by how much
the second step exceeds the first, and is 0 where it does not (`relay_excess`, `preparation_excess`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from securefed.defenses._base import Plan
from securefed.defenses._fixed_point import wire_dtype, wire_size
from securefed.defenses._secure_aggregation.mersenne import CHUNK
from securefed.defenses._secure_aggregation.session import ACTIVE_STAGES, ENCRYPTED_SHARES_BYTES, masking_of
from securefed.defenses._secure_aggregation.verification import KEY_DEALERS, PIECE_BYTES
from securefed.errors import PlanError


@dataclass(frozen=True)
class MaskingCounts:
    """The counts that the cost of one exchange depends on.

    Attributes:
        clients: number of clients, n.
        holders: number of shares that a client deals, h.
        shares: number of shares that reconstruct a secret, t.
        threshold: number of survivors that the exchange needs; where clients sign, so many must confirm a survivor set.
        sparse: whether each client masks with some of the others only.
        entries: number of entries of a contribution, d.
        upload_bytes: bytes of a masked upload.
        lost: number of clients that do not upload.
        signed: whether clients sign with identities.
        verified: whether clients check the announced sum.
        resumed: whether the exchange before has prepared this one, and this one prepares the next.
    """

    clients: int
    holders: int
    shares: int
    threshold: int
    sparse: bool
    entries: int
    upload_bytes: int
    lost: int
    signed: bool = False
    verified: bool = False
    resumed: bool = False

    @classmethod
    def of(cls, plan: Plan, lost: int = 0, *, resumed: bool = False) -> MaskingCounts:
        """Count for an exchange under `plan`.

        Args:
            plan: the plan of the exchange.
            lost: number of clients that do not upload.
            resumed: whether the exchange before has prepared this one.

        Raises:
            PlanError: the plan is not one of secure aggregation, or more are lost than it survives.
        """
        masking = masking_of(plan)
        if not 0 <= lost <= plan.clients - plan.threshold:
            raise PlanError(f"the plan survives 0 to {plan.clients - plan.threshold} lost clients, not {lost}")
        return cls(
            clients=plan.clients,
            holders=min(masking.degree + 1, plan.clients) if masking.degree else plan.clients,
            shares=masking.shares,
            threshold=plan.threshold,
            sparse=masking.degree > 0,
            entries=sum(t.size for t in plan.tensors),
            upload_bytes=sum(wire_size(t.size, t.ring) * wire_dtype(t.ring).itemsize for t in plan.tensors),
            lost=lost,
            signed=plan.stages == ACTIVE_STAGES,
            verified=plan.verified,
            resumed=resumed,
        )

    @property
    def alive(self) -> int:
        """Number of clients that upload."""
        return self.clients - self.lost

    @property
    def pairs(self) -> float:
        """Expected number of masks of lost clients with survivors, which the server computes again.

        Each lost client shares masks with `holders` - 1 others, of which a fraction `alive` / (`clients` - 1) uploads.
        """
        return self.lost * (self.holders - 1) * self.alive / max(self.clients - 1, 1)

    @property
    def relay_excess(self) -> int:
        """Server memory of relaying encrypted shares, less that of opening the sum; in entries of a contribution.

        It is 0 where opening the sum takes more. A bundle takes as much memory as 19 entries of a contribution, and as
        12 where an exchange relays the bundles of the next one. (Both were measured, with the constants; see
        `figures.json`.)
        """
        return max((12 if self.resumed else 19) * self.clients * self.holders - self.entries, 0)

    @property
    def preparation_excess(self) -> float:
        """Client memory of preparing the next exchange, less that of the masks' buffers; in units of one share holder.

        It is 0 where the buffers, which the client releases before it prepares, take more. An advertised client takes
        as much memory as 1.5 share holders, and the buffers as much as 130. (Both were measured, with the constants;
        see `figures.json`.)
        """
        return max(1.5 * self.clients + self.holders - 130, 0)

    @property
    def adverts(self) -> int:
        """Number of clients whose keys a client receives.

        These are the keys of this exchange, or, if this exchange prepares the next one, the keys of that.
        """
        return self.alive if self.resumed else self.clients

    @property
    def unsent(self) -> int:
        """Bytes that a client sends less than its plan says, which counts without lost clients.

        Where clients are lost in an exchange that prepares the next one, the others deal them no shares for that, nor
        pieces of the key that its sum is checked with.
        """
        dealt = min(self.holders, self.adverts)
        pieces = (self.clients - self.adverts) * PIECE_BYTES if self.verified else 0
        return (self.holders - dealt) * ENCRYPTED_SHARES_BYTES + pieces

    @property
    def dealers(self) -> int:
        """Number of clients that deal a piece of the key that the sum is checked with."""
        return min(KEY_DEALERS, self.clients) if self.verified else 0


Term = Callable[[MaskingCounts], float]
TERMS: Final[Mapping[str, Mapping[str, Term]]] = {
    "client_cpu": {
        "exchange": lambda s: 1,
        "roster entry": lambda s: s.clients,
        "holder": lambda s: s.holders,
        "polynomial term": lambda s: s.holders * s.shares,
        "entry": lambda s: s.entries,
        "mask byte": lambda s: s.upload_bytes * s.holders,
        "signature": lambda s: s.signed * (s.adverts + s.threshold),  # of keys, and of the survivors by a quorum
        "remembered byte": lambda s: s.signed * s.upload_bytes,  # hashed, so that a repeated contribution is recognised
        "key piece": lambda s: s.dealers,
        "tag pad": lambda s: s.verified * (s.holders + s.alive),  # masks of its own tag; pads of all in the sum
        "tagged entry": lambda s: s.verified * 2 * s.entries,  # in its own tag, and in the check of the sum
        "prepared exchange": lambda s: s.resumed,
        "prepared holder": lambda s: s.resumed * s.holders,
    },
    "server_cpu": {
        "exchange": lambda s: 1,
        "client": lambda s: s.clients,
        "bundle": lambda s: s.clients * s.holders,
        # weights at the points of `shares` holders: once where all clients have the same holders, else for each client
        "Lagrange factor": lambda s: s.shares**2 * (s.clients if s.sparse else 1),
        "key agreement": lambda s: s.pairs,
        "upload byte": lambda s: s.upload_bytes * s.alive,
        "mask byte": lambda s: s.upload_bytes * (s.alive + s.pairs),  # each survivor's own mask, and those of the lost
        "entry": lambda s: s.entries,
        "signature": lambda s: s.signed * (s.adverts + s.alive),  # of keys, and of the survivors
        "tag pad": lambda s: s.verified * (s.alive + s.pairs),
        "prepared client": lambda s: s.resumed * s.clients,
        "prepared bundle": lambda s: s.resumed * s.clients * s.holders,
    },
    "received": {
        "exchange": lambda s: 1,
        "roster entry": lambda s: s.clients,
        "advert": lambda s: s.adverts,
        "holder": lambda s: s.holders,
        "signed exchange": lambda s: s.signed,
        "signature of keys": lambda s: s.signed * s.adverts,
        "signature of survivors": lambda s: s.signed * s.threshold,
        "key piece": lambda s: s.dealers,
        "announced number": lambda s: s.verified * (s.entries + s.alive + 2),  # the sum, the survivors' ids, their tag
    },
    "client_memory": {
        "exchange": lambda s: 1,
        "roster entry": lambda s: s.clients,
        "holder": lambda s: s.holders,
        "entry": lambda s: s.entries,
        "signature": lambda s: s.signed * s.clients,
        "tagged entry": lambda s: s.verified * min(s.entries, CHUNK),  # limbs of one chunk, beside the upload
        "prepared holder": lambda s: s.resumed * s.preparation_excess,
    },
    "server_memory": {
        "exchange": lambda s: 1,
        "bundle": lambda s: s.clients * s.holders,
        "entry": lambda s: s.entries,
        "entry's worth of bundles": lambda s: s.relay_excess,
        "signature": lambda s: s.signed * s.clients,
        "key piece": lambda s: s.clients * s.dealers,
        "prepared bundle": lambda s: s.resumed * s.clients * s.holders,
    },
}
"""By quantity, the terms of its model; CPU in seconds, the others in bytes, once multiplied by their constants."""

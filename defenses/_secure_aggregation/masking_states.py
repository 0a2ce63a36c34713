"""The states of a client and of the server between the stages of one exchange of secure aggregation.

An exchange is one secure sum; its stages are rounds of requests by the server and replies by the clients. Each step of
the protocol (`masking_client`, `masking_server`) is a function from a state and messages to the next state and
messages. Fields are filled as the stages `keys`, `shares`, `upload` and `unmask` go by.

A state can be packed into a file, so that another process goes on with the exchange: `local` marks fields that are left
out, and a field marked `stored_as` has another name in files that exist already. A packed state holds the secrets below
in the clear; the caller seals its file. "Erased" means that later states do not hold a value; memory is not wiped.

    a client's secret           made                              leaves the client as                   erased
    root                        at the start, random              nothing                                with the upload
    share key (X25519)          derived from root                 its public key                         with root
    mask key, self-mask seed    derived from root                 a public key; a hash; Shamir shares    with root
    channel's secret            agreed with the server at `keys`  tags (MACs) of messages                with `unmask`
    shares of others' secrets   dealt by neighbours at `shares`   one of each dealer's two, at `unmask`  with `unmask`
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from securefed._messages import SERVER, ClientId
from securefed._persistence.packing import local, stored_as
from securefed._tensors import Array, Tensors
from securefed.defenses._aggregation import Outgoing
from securefed.defenses._plan import Session
from securefed.defenses._secure_aggregation import channel, consistency
from securefed.defenses._secure_aggregation.graph import neighbourhoods, neighbours
from securefed.defenses._secure_aggregation.identities import Identities
from securefed.defenses._secure_aggregation.masks import PrecomputedMasks
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES, hkdf, label
from securefed.defenses._secure_aggregation.session import (
    KEYS,
    check_session,
    graph_seed,
    masking_of,
    share_dealers_digest,
)
from securefed.defenses._secure_aggregation.shamir import FIELD
from securefed.errors import ConfigError

DealtShares = Mapping[ClientId, tuple[Array, Array]]
"""By holder, where its shares stand in an array A (dealers, holders, ...), in which row d lists the shares of dealer d,
one for each of that dealer's holders: a pair of int64 arrays (rows, places), such that A[rows, places] are the holder's
shares, dealers ascending."""
ServerStep = tuple["MaskingServer", str, Outgoing]
"""The server's next state, the stage, and the requests by client."""


def no_bytes() -> Array:
    """Return an empty array, for a field that holds nothing yet."""
    return np.zeros(0, np.uint8)


@dataclass(frozen=True, eq=False)
class MaskingClient:
    """A client's state between two stages.

    A client's neighbours are the clients that it has masks in common with and shares its secrets among. A share dealer
    is a client that dealt its shares at stage `shares`; a survivor is a client whose upload the server received.

    Attributes:
        client: its id.
        stage: the stage it answers next; empty when it is done.
        root: random bytes from which its secrets derive; erased after the upload.
        session: run, exchange number, cohort and plan.
        channel: secret of the authenticated channel with the server, 32 bytes (`channel`).
        own_keys: the two public keys that it advertised, for shares and for masks, 64 bytes.
        advertised_clients: clients that advertised keys, ascending.
        digest: fingerprint of the advertised clients and keys.
        neighbourhood: this client and its neighbours, ascending; on the complete graph all advertised clients.
        mask_keys: public mask keys of the neighbourhood, uint8 (neighbourhood, 32).
        opening_keys: secret keys that open the shares dealt by the neighbourhood, uint8 (neighbourhood, 32).
        share_dealers: clients that dealt shares, ascending.
        held_shares: shares of seed and mask key from the dealers in the neighbourhood, uint8 (dealers, 2, 32); before
            the upload only those of its own two secrets, (1, 2, 32).
        identities: public identities, against a server that deviates; `None` where it is honest but curious.
        ahead: whether this exchange's keys are advertised during the exchange before it (`pipeline`).
        survivors: the set of survivors that this client signed, or without identities helped to unmask.
        contribution: digest of what its contribution is computed from (`UploadContext.source`).
        piece_keys: keys that open the pieces of `sum_key`, which some clients (key dealers) send to all others by the
            server, uint8 (key dealers, 32); where clients check the sum that the server announces (`verification`).
        sum_key: the secret key of that check, which all clients share; it outlives the exchange.
        context: digest of the exchange's context as this client received it; set with the request for its upload.
        precomputed: masks of the upload, computed while the contribution is (`make_masks`); in this process only.
    """

    client: ClientId
    stage: str
    root: bytes = field(repr=False)
    session: Session = local()
    channel: bytes = field(default=b"", repr=False)
    own_keys: bytes = stored_as("advertised", default=b"")
    advertised_clients: tuple[ClientId, ...] = stored_as("roster", default=())
    digest: bytes = b""
    neighbourhood: tuple[ClientId, ...] = stored_as("near", default=())
    mask_keys: Array = field(default_factory=no_bytes, repr=False)
    opening_keys: Array = stored_as("opening", default_factory=no_bytes, repr=False)
    share_dealers: tuple[ClientId, ...] = stored_as("sharers", default=())
    held_shares: Array = stored_as("held", default_factory=no_bytes, repr=False)
    identities: Identities | None = local(default=None)
    ahead: bool = False
    survivors: tuple[ClientId, ...] = ()
    contribution: bytes = field(default=b"", repr=False)
    piece_keys: Array = field(default_factory=no_bytes, repr=False)
    sum_key: bytes = field(default=b"", repr=False)
    context: bytes = b""
    precomputed: PrecomputedMasks | None = local(default=None, repr=False)

    @classmethod
    def open(cls, session: Session, client: ClientId, identities: Identities | None = None) -> MaskingClient:
        """Start an exchange with fresh secrets from the operating system.

        Args:
            session: run, exchange number, cohort and plan.
            client: its id.
            identities: public identities and this client's private one; `None` without them.

        Raises:
            PlanError: the plan's threshold or cohort is not sound.
            ConfigError: the client is not invited, or identities and plan do not belong together.
        """
        check_session(session)
        if client not in session.cohort:
            raise ConfigError(f"client {client} is not in the cohort {session.cohort}")
        consistency.check_identities(identities, session)
        return cls(client, KEYS, secrets.token_bytes(KEY_BYTES), session, identities=identities)

    @property
    def share_secret(self) -> bytes:
        """X25519 scalar for encrypted shares and the channel; it is not shared, so no reconstructed key opens these."""
        return hkdf(self.root, label("share key"))

    @property
    def shared_secrets(self) -> tuple[bytes, bytes]:
        """Self-mask seed and mask key: the two secrets that are shared, as field elements (`shamir`), 32 bytes each."""
        wide = hkdf(self.root, label("shared secrets"), 96)  # 48 bytes each: reduced modulo a prime, nearly uniform
        return FIELD.element(wide[:48]), FIELD.element(wide[48:])

    @property
    def exchange(self) -> bytes:
        """Digest of session, advertised keys, context and share dealers, as this client was told them."""
        return share_dealers_digest(self.session, self.digest, self.context, self.share_dealers)

    def seal(self, stage: str, body: Tensors, context: bytes = b"") -> Tensors:
        """Add the channel's tag, which is bound to `stage` and `context`, to the body of a message to the server."""
        session = self.session
        return channel.seal(self.channel, session.run, session.round, stage, self.client, SERVER, body, context)


@dataclass(frozen=True, eq=False)
class MaskingServer:
    """The server's state between two stages.

    Attributes:
        stage: the stage whose replies come next.
        secret: X25519 scalar of its channels with the clients, fresh in each exchange.
        members: clients that may reply at this stage, ascending.
        session: run, exchange number, cohort and plan.
        channels: by client, the secret of the channel with it, 32 bytes.
        advertised_clients: clients that advertised keys, ascending.
        digest: fingerprint of the advertised clients and keys.
        mask_keys: their public mask keys, uint8 (advertised clients, 32).
        share_dealers: clients that dealt shares, ascending.
        tags: `share_tags` of the shares that they dealt, uint8 (dealers, holders, 16).
        commitments: `seed_commitment` of their self-mask seeds, uint8 (dealers, 32).
        survivors: clients that uploaded, so far or in all.
        totals: sums of their masked uploads, flat, in the plan's order.
        check: the sum of their masked tags, where the sum is verified.
        identities: public identities, against which signatures are checked; `None` without them.
        ahead: whether this exchange's keys are advertised during the exchange before it.
    """

    stage: str
    secret: bytes = field(repr=False)
    members: tuple[ClientId, ...]
    session: Session = local()
    channels: Mapping[ClientId, bytes] = field(default_factory=dict, repr=False)
    advertised_clients: tuple[ClientId, ...] = stored_as("roster", default=())
    digest: bytes = b""
    mask_keys: Array = field(default_factory=no_bytes, repr=False)
    share_dealers: tuple[ClientId, ...] = stored_as("sharers", default=())
    tags: Array = field(default_factory=no_bytes, repr=False)
    commitments: Array = field(default_factory=no_bytes, repr=False)
    survivors: tuple[ClientId, ...] = ()
    totals: tuple[Array, ...] = field(default=(), repr=False)
    check: Array = field(default_factory=no_bytes, repr=False)
    identities: Identities | None = local(default=None)
    ahead: bool = False

    @property
    def exchange(self) -> bytes:
        """Digest of session, advertised keys, context and share dealers, as the server knows them."""
        return share_dealers_digest(self.session, self.digest, self.session.context, self.share_dealers)

    def holders(self, dealer: ClientId) -> tuple[ClientId, ...]:
        """Return the clients that hold shares of the dealer's secrets, ascending: its neighbours and itself."""
        degree = masking_of(self.session.plan).degree
        rows = neighbours(
            graph_seed(self.digest), len(self.advertised_clients), degree, self.advertised_clients.index(dealer)
        )
        return tuple(self.advertised_clients[row] for row in rows)

    def dealt(self) -> DealtShares:
        """Return, by holder, where the shares that it was dealt stand in arrays (dealers, holders)."""
        places = {client: row for row, client in enumerate(self.advertised_clients)}
        rows, degree = [places[dealer] for dealer in self.share_dealers], masking_of(self.session.plan).degree
        near = neighbourhoods(graph_seed(self.digest), len(self.advertised_clients), degree, rows)
        return dealt_shares(near, self.advertised_clients)

    def requests(self, bodies: Mapping[ClientId, Tensors]) -> ServerStep:
        """Return this state, its stage, and the requests with the channels' tags."""
        run, round = self.session.run, self.session.round
        sealed = {
            client: channel.seal(self.channels[client], run, round, self.stage, SERVER, client, body)
            for client, body in bodies.items()
        }
        return self, self.stage, sealed


def dealt_shares(near: Array, advertised_clients: Sequence[ClientId]) -> DealtShares:
    """List the shares that each holder was dealt.

    Args:
        near: by dealer, its holders' rows among the advertised clients, ascending, int64 (dealers, holders).
        advertised_clients: their ids.
    """
    # Sort all (dealer, place) pairs, numbered dealer * holders + place, by the holder that stands there; then cut the
    # sorted list where the next holder begins.
    by_holder = np.argsort(near, axis=None, kind="stable")  # stable: each holder's dealers stay ascending
    rows, places = np.divmod(by_holder, near.shape[1])
    ends = np.cumsum(np.bincount(near.reshape(-1), minlength=len(advertised_clients)))[:-1]
    return dict(zip(advertised_clients, zip(np.split(rows, ends), np.split(places, ends), strict=True), strict=True))

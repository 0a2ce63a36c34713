"""Define what a client and the server of secure aggregation know of an exchange: stages, sizes, digests and states.

An exchange is one secure sum. Its stages are rounds of messages: the server sends each client a request, and the client
replies. A session is what all parties agree on before: run, number of the exchange, cohort (invited clients) and plan
(sizes, threshold and fixed point, `Plan`). As the stages go by, all parties hash what they have agreed on:

    session_digest         session
    advertisement_digest   the session digest; ids and public keys of the clients that advertised keys at stage `keys`
    share_dealers_digest   both digests above; the context; ids of the clients that dealt shares at stage `shares`

The context is a hash of everything else that a client received before its upload, such as the model. The last digest
enters masks and signatures: masks of clients that were told different things do not cancel, so these clients are not
summed. The words inside a digest ("roster", "sharers", ...) keep it apart from other digests. They cannot change, or
old and new versions would not agree.

Each step of the protocol (`masking_client`, `masking_server`) is a function from a state and messages to the next state
and messages. A state can be packed into a file, so that another process goes on with the exchange: `local` marks fields
that are left out, and a field marked `stored_as` has another name in files that exist already. A packed state holds the
secrets below in the clear; the caller seals its file. "Erased" means that later states do not hold a value; memory is
not wiped.

    a client's secret           made                              leaves the client as                   erased
    root                        at the start, random              nothing                                with the upload
    share key (X25519)          derived from root                 its public key                         with root
    mask key, self-mask seed    derived from root                 a public key; a hash; Shamir shares    with root
    channel's secret            agreed with the server at `keys`  tags (MACs) of messages                with `unmask`
    shares of others' secrets   dealt by neighbours at `shares`   one of each dealer's two, at `unmask`  with `unmask`
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final, Self, TypeVar

import numpy as np

from securefed._messages import SERVER, ClientId
from securefed._persistence.packing import local, stored_as
from securefed._tensors import Array, Tensors
from securefed.defenses._aggregation import Outgoing
from securefed.defenses._fixed_point import lanes, wire_size
from securefed.defenses._plan import MaskingPlan, Plan, Session, TensorPlan, plan_digest
from securefed.defenses._secure_aggregation.identities import Identities
from securefed.defenses._secure_aggregation.masks import PrecomputedMasks
from securefed.defenses._secure_aggregation.primitives import (
    FIELD,
    KEY_BYTES,
    fingerprint,
    hkdf,
    label,
    seal,
)
from securefed.errors import ConfigError, PlanError

KEYS: Final = "keys"
SHARES: Final = "shares"
UPLOAD: Final = "upload"
CONTRIBUTE: Final = "contribute"
"""Stage of a client between the request for its upload and the upload; no message carries it."""
CONFIRM: Final = "confirm"
"""Stage at which the survivors (the clients that uploaded) sign the set of survivors; with identities only."""
UNMASK: Final = "unmask"
STAGES: Final = (KEYS, SHARES, UPLOAD, UNMASK)
ACTIVE_STAGES: Final = (KEYS, SHARES, UPLOAD, CONFIRM, UNMASK)
"""The stages where clients have identities (long-lived signing keys), which protect them against an active adversary: a
server that may deviate from the protocol."""

MASKED: Final = "masked"
"""Prefix of the masked tensors' names in an upload."""

SEED, MASK_KEY = 0, 1
"""Indices of a client's two shared secrets, in this order everywhere: the seed of its self mask, and its mask key, the
X25519 key from which the masks that it has in common with its neighbours derive."""

SHARE_TAG_BYTES = 8
"""A dealer publishes a tag (truncated hash) of each share. It only serves to tell which client falsified a share: to
find another share with the same tag takes 2^64 hashes."""
SEALED_BYTES = 2 * KEY_BYTES + 16
"""Both shares for one holder, 32 bytes each, encrypted, and the 16 bytes by which AES-GCM authenticates them. No nonce
is sent: each pair of clients derives a fresh key for each direction and exchange, which encrypts these shares alone, so
that a constant nonce is safe (`primitives.encrypt_once`)."""
ENCRYPTED_SHARES_BYTES = SEALED_BYTES + 2 * SHARE_TAG_BYTES
"""`SEALED_BYTES` and the two tags in the clear: a row of the field `bundles`, on the wire."""


def masking_of(plan: Plan) -> MaskingPlan:
    """Return the plan's part of secure aggregation.

    Raises:
        PlanError: the plan was made by another aggregation.
    """
    if plan.masking is None:
        raise PlanError(f"{plan.defense!r} is not a plan of secure aggregation; make it with secure_aggregation()")
    return plan.masking


def check_session(session: Session, identities: Identities | None) -> None:
    """Raise unless the plan is one of this protocol, and goes with the identities that this party has.

    Complete graph (degree 0): as many shares as the threshold open a secret, and the threshold must exceed half of the
    planned clients. Of two disjoint groups that reach it, a server could get a client's seed from one and its mask key
    from the other, and open its upload.

    Sparse graph: the check is one of form, and does not exclude that attack. A client shares its secrets with its
    neighbours and itself, so groups that open them are drawn from these. That enough shares are needed is up to
    `graph.design_sparse_graph`, which chooses degree and shares for a bound on the clients that collude with the
    server; against a server that lies (identities are needed) any two groups that open a secret then share an honest
    client, except with the probability that the design allows (its condition 4). Client and server derive the plan by
    themselves from the run's terms, so that a server cannot lower either number. The degree is even since neighbours
    stand on a circle, half of them on either side. It is below the threshold, so that the clients of a valid exchange
    are enough for every client to have all neighbours.

    Raises:
        PlanError: a number breaks these rules, or the cohort exceeds the plan.
        ConfigError: identities without the stage in which they sign, or the other way round; an invited client that
            has no identity.
    """
    plan, masking = session.plan, masking_of(session.plan)
    degree, shares = masking.degree, masking.shares
    if not plan.clients < 2 * plan.threshold <= 2 * plan.clients:
        raise PlanError(f"threshold {plan.threshold} for {plan.clients} clients is not above half of them")
    if not degree and shares != plan.threshold:
        raise PlanError(f"{shares} shares open a secret, and {plan.threshold} survivors are needed; they must agree")
    if degree and not (degree % 2 == 0 and degree < plan.threshold and 2 <= shares <= degree):
        raise PlanError(
            f"a graph of degree {degree} of which {shares} shares open a secret, for {plan.threshold} "
            "survivors: the degree must be even and below the survivors, the shares from 2 to the degree"
        )
    if len(session.cohort) > plan.clients:
        raise PlanError(
            f"{len(session.cohort)} clients are invited, the plan is for {plan.clients}; plan for the larger number"
        )
    if (CONFIRM in plan.stages) != (identities is not None):
        raise ConfigError("a plan with the stage 'confirm' needs identities, and one without it takes none")
    if identities is not None:
        for client in session.cohort:
            identities.known(client)


def session_digest(session: Session) -> bytes:
    """Compute the digest of what all parties agree on before the exchange, 32 bytes.

    `session.round` is the number of the exchange: each attempt at a round's sum has its own.

    In all digests `fingerprint` writes each part with its type and length, so that no two lists of parts encode alike.
    A list of ids of any length is encoded as one part (`label`), or stands last, as in `share_dealers_digest`.
    """
    return _session_digest(session.run, session.round, plan_digest(session.plan), session.cohort)


@lru_cache(maxsize=8)
def _session_digest(run: str, number: int, plan: bytes, cohort: tuple[ClientId, ...]) -> bytes:
    """Compute a session's digest once for all steps of an exchange, and for all clients of a simulation."""
    return fingerprint("securefed secure aggregation 8", run, number, plan, label(*cohort))


def advertisement_digest(
    session: Session, advertised_clients: Sequence[ClientId], share_keys: Array, mask_keys: Array
) -> bytes:
    """Compute the digest of the advertised clients and their keys, 32 bytes.

    Args:
        session: run, exchange number, cohort and plan.
        advertised_clients: ids of the clients that advertised keys, ascending.
        share_keys: their X25519 keys for encrypting shares, uint8 (clients, 32).
        mask_keys: their X25519 keys for masks, uint8 (clients, 32).
    """
    return fingerprint(
        "roster", session_digest(session), label(*advertised_clients), share_keys.tobytes(), mask_keys.tobytes()
    )


def graph_seed(advertisement: bytes) -> bytes:
    """Derive the seed of the graph of neighbours from all advertised keys, so that no party alone chooses it."""
    return fingerprint("graph", advertisement)


@lru_cache(maxsize=8)
def share_dealers_digest(
    session: bytes, advertisement: bytes, context: bytes, share_dealers: tuple[ClientId, ...]
) -> bytes:
    """Compute the digest of the exchange at the upload, 32 bytes: it binds masks and survivors' signatures.

    Args:
        session: `session_digest`.
        advertisement: `advertisement_digest`.
        context: hash of what clients received before the upload (`UploadContext.exchange`).
        share_dealers: ids of the clients that dealt shares, ascending.
    """
    return fingerprint("sharers", session, advertisement, context, *share_dealers)


def seed_commitment(advertisement: bytes, client: ClientId, seed: bytes) -> bytes:
    """Compute the commitment to a self-mask seed that its owner publishes; 32 bytes.

    The server compares a seed that it reconstructed from shares with it. The seed is uniform modulo 2^255 - 19, the
    prime of the shares (`PrimeField`), so that it has almost 255 bits of entropy, and a plain hash hides it.
    """
    return fingerprint("seed commitment", advertisement, client, seed)


def share_tags(advertisement: bytes, dealer: ClientId, holder: ClientId, shares: Array) -> bytes:
    """Compute the tags that a dealer publishes of the two shares for `holder`: two truncated SHA-256, 8 bytes each.

    They show which client is at fault when shares do not combine; that the sum is right does not rest on them.

    Args:
        advertisement: `advertisement_digest`.
        dealer: id of the client that made the shares.
        holder: id of the client that they are for.
        shares: the holder's shares of seed and mask key, uint8 (2, 32).

    Returns:
        16 bytes: the tag of the seed's share, then that of the mask key's share.
    """
    # All parts have fixed widths, so that different inputs give different strings.
    prefix = b"share" + advertisement + dealer.to_bytes(8, "little") + holder.to_bytes(8, "little")
    share_bytes = shares.tobytes()
    seed = hashlib.sha256(prefix + b"seed" + share_bytes[:KEY_BYTES]).digest()
    mask_key = hashlib.sha256(prefix + b"mask" + share_bytes[KEY_BYTES:]).digest()
    return seed[:SHARE_TAG_BYTES] + mask_key[:SHARE_TAG_BYTES]


def wire_shape(tensor: TensorPlan) -> tuple[int, ...]:
    """Return the shape of a masked tensor in an upload: its own, or flat where several entries share an integer.

    In narrow rings (a ring is the width in bits of a tensor's sum) a 64-bit integer holds several entries, its lanes.
    """
    return tensor.shape if lanes(tensor.ring) == 1 else (wire_size(tensor.size, tensor.ring),)


ServerStep = tuple["MaskingServer", str, Outgoing]
"""The server's next state, the stage, and the requests by client."""


no_bytes: Final = partial(np.zeros, 0, np.uint8)
"""Makes an empty array, for a field that holds nothing yet."""


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
        channel: secret of the authenticated channel with the server, 32 bytes (`agreed_secret`).
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
    def open(cls, session: Session, client: ClientId, identities: Identities | None = None) -> Self:
        """Start an exchange with fresh secrets from the operating system.

        Args:
            session: run, exchange number, cohort and plan.
            client: its id.
            identities: public identities and this client's private one; `None` without them.

        Raises:
            PlanError: the plan's threshold or cohort is not sound.
            ConfigError: the client is not invited, or identities and plan do not belong together.
        """
        check_session(session, identities)
        if client not in session.cohort:
            raise ConfigError(f"client {client} is not in the cohort {session.cohort}")
        return cls(client, KEYS, secrets.token_bytes(KEY_BYTES), session, identities=identities)

    @property
    def share_secret(self) -> bytes:
        """X25519 scalar for encrypted shares and the channel; it is not shared, so no reconstructed key opens these."""
        return hkdf(self.root, label("share key"))

    @property
    def shared_secrets(self) -> tuple[bytes, bytes]:
        """Self-mask seed and mask key: the two secrets that are shared, as elements of `FIELD`, 32 bytes each."""
        wide = hkdf(self.root, label("shared secrets"), 96)  # 48 bytes each: reduced modulo a prime, nearly uniform
        return FIELD.element(wide[:48]), FIELD.element(wide[48:])

    @property
    def exchange(self) -> bytes:
        """Digest of session, advertised keys, context and share dealers, as this client was told them."""
        return share_dealers_digest(session_digest(self.session), self.digest, self.context, self.share_dealers)

    def seal(self, stage: str, body: Tensors, context: bytes = b"") -> Tensors:
        """Add the channel's tag, which is bound to `stage` and `context`, to the body of a message to the server."""
        session = self.session
        return seal(self.channel, session.run, session.round, stage, self.client, SERVER, body, context)


C = TypeVar("C", bound=MaskingClient)
"""The type of a client's state, which a step keeps: one of a pipelined run stays one."""


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
        return share_dealers_digest(session_digest(self.session), self.digest, self.session.context, self.share_dealers)

    def requests(self, bodies: Mapping[ClientId, Tensors]) -> ServerStep:
        """Return this state, its stage, and the requests with the channels' tags."""
        run, round = self.session.run, self.session.round
        sealed = {
            client: seal(self.channels[client], run, round, self.stage, SERVER, client, body)
            for client, body in bodies.items()
        }
        return self, self.stage, sealed

"""Agree on keys with the other ranks, over an all-reduce of integers and nothing else.

`MaskingState` calls this once on every rank. Each pair of ranks agrees on a secret, from which their masks are made:
one adds them, the other subtracts them, so that they cancel in the sum.

1. Every rank shows the version of the protocol that it speaks. All ranks refuse a mixture by name, in the same call,
   whatever the other messages of the other version look like.
2. Every rank makes an X25519 key and shows its public part, with its settings. The session is the digest of all of it.
3. Every rank signs the session, where identities are given, and rank 0 sends the others a common key, encrypted for
   each. Rank 0 adds a mask from it to every sum, and every rank removes it, so that the network does not see the sum.
   As all keys stand in what is signed, a rank that verifies the signatures has the keys that the others sent.
4. A masked sum of known numbers shows that the pairwise secrets agree and that the backend adds modulo 2^ring.

Ranks exchange bytes by summing a table in which each fills only its own row, and zeros stand in the others: so any
backend that sums int32 will do.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securefed._tensors import Array, Ring
from securefed.defenses._fixed_point import wire_dtype
from securefed.defenses._secure_aggregation.chacha_stream import AES, StreamName
from securefed.defenses._secure_aggregation.identities import SIGNATURE_BYTES, Identities
from securefed.defenses._secure_aggregation.primitives import (
    KEY_BYTES,
    agree,
    decrypt_once,
    encrypt_once,
    fingerprint,
    hkdf,
    label,
    public_bytes,
)
from securefed.errors import AuthenticationError, ConfigError, MaskMismatch, PlanError, VersionRefused
from securefed.torch._masking import CONTROL, Call, RankMasks, read_control

LEAST_RANKS: Final = 3
_SEALED: Final = KEY_BYTES + 16
"""Bytes of a key under AES-GCM: the key and the tag."""

_PROTOCOL: Final = "masked all-reduce 3"
VERSION: Final = 3
"""Version of the masked all-reduce that ranks show first; 3 has the name of the masks' stream among the settings."""
Sum = Callable[[Array], Array]
"""Sum an int32 or int64 array over all ranks."""


@dataclass(frozen=True)
class AgreedSettings:
    """Settings that must be equal on all ranks.

    Attributes:
        ring: width in bits of the integers.
        bound: declared largest gradient entry of the first step.
        headroom: bound of a later step, in units of the last mean's largest entry.
        ceiling: largest bound of any step; 0 where it follows from the first sum.
        signed: whether identities are given.
        stream: name of the stream that masks are made of.
    """

    ring: Ring
    bound: float
    headroom: float
    ceiling: float
    signed: bool
    stream: StreamName = AES


_NAMES: Final = ("ring", "bound", "headroom", "ceiling", "identities", "the masks' stream, which follows from device=")
_SETTINGS: Final = struct.Struct("<iddd?16s")
_VERSION: Final = struct.Struct("<H")


@dataclass(frozen=True, eq=False)
class Agreement:
    """The result.

    Attributes:
        session: digest of all ranks' public keys and settings, 32 bytes, equal on all ranks.
        masks: this rank's masks with all others.
    """

    session: bytes
    masks: RankMasks

    @property
    def fingerprint(self) -> str:
        """160 bits of the session's digest, equal on all ranks, for people to compare over another channel."""
        digest = hashlib.sha256(label("session", self.session)).hexdigest()[:40]
        return " ".join(digest[i : i + 4] for i in range(0, len(digest), 4))


def check_ranks(ranks: int) -> None:
    """Raise `PlanError` for fewer than three ranks."""
    if ranks < LEAST_RANKS:
        raise PlanError(
            f"a masked all-reduce needs {LEAST_RANKS} ranks or more; the group has {ranks}. Of two ranks, the sum less "
            "one's own gradient is the gradient of the other, whatever hides it on the way. Train with three parties "
            "or more, or let each party clip its gradient and add noise (differential privacy)"
        )


def agree_on_keys(
    rank: int, ranks: int, settings: AgreedSettings, identities: Identities | None, add: Sum
) -> Agreement:
    """Agree on keys with the other ranks; all ranks call this together.

    Args:
        rank: this rank.
        ranks: number of ranks.
        settings: this rank's settings.
        identities: public identities by rank, and this rank's private one; `None` for an unsigned agreement.
        add: sums arrays over all ranks.

    Raises:
        PlanError: fewer than three ranks.
        VersionRefused: the ranks speak different versions of the protocol.
        ConfigError: the ranks' settings differ, or a rank has no identity.
        AuthenticationError: a rank's signature or message does not verify.
        MaskMismatch: the masks of a trial sum did not cancel, or the backend does not add integers.
    """
    check_ranks(ranks)
    _check_identities(rank, ranks, identities)
    _check_versions(rank, [_VERSION.unpack(row)[0] for row in _show(_VERSION.pack(VERSION), rank, ranks, add)])
    key = X25519PrivateKey.generate()
    shown = _show(public_bytes(key) + _packed(settings), rank, ranks, add)
    _check_settings(settings, rank, [_unpacked(row[KEY_BYTES:]) for row in shown])
    session = fingerprint(_PROTOCOL, VERSION, ranks, *shown)
    publics = {peer: row[:KEY_BYTES] for peer, row in enumerate(shown) if peer != rank}
    agreements = {peer: agree(key, public, peer) for peer, public in publics.items()}
    statement = label(_PROTOCOL, session)
    signature = bytes(SIGNATURE_BYTES) if identities is None else identities.sign(rank, label(statement, rank))
    dealt = secrets.token_bytes(KEY_BYTES)
    rows = _show(signature + _deal(dealt, rank, ranks, session, agreements), rank, ranks, add)
    if identities is not None:
        for peer, row in enumerate(rows):
            identities.verify(peer, label(statement, peer), row[:SIGNATURE_BYTES], "the agreement of keys")
    common = dealt if rank == 0 else _open(rows[0][SIGNATURE_BYTES:], rank, session, agreements[0])
    masks = RankMasks(session, rank, agreements, common, settings.stream)
    _trial(masks, rank, ranks, settings.ring, add)
    return Agreement(session, masks)


def _show(row: bytes, rank: int, ranks: int, add: Sum) -> list[bytes]:
    """Exchange rows of equal length; return all of them."""
    table = np.zeros((ranks, len(row)), np.int32)
    table[rank] = np.frombuffer(row, np.uint8)
    total = add(table.reshape(-1)).reshape(ranks, -1)
    if total.shape != table.shape or total.min() < 0 or total.max() > 255 or not (total[rank] == table[rank]).all():
        raise AuthenticationError(rank, "what this rank showed to the others came back altered")
    return [shown.astype(np.uint8).tobytes() for shown in total]


def _check_versions(rank: int, versions: Sequence[int]) -> None:
    """Raise `VersionRefused` unless all ranks speak the version of this one; the text says which rank speaks which."""
    other = next((peer for peer, version in enumerate(versions) if version != versions[rank]), None)
    if other is None:
        return
    spoken = {version: [peer for peer, theirs in enumerate(versions) if theirs == version] for version in versions}
    listed = "; ".join(f"version {version}: ranks {spoken[version]}" for version in sorted(spoken))
    raise VersionRefused(
        other, f"the ranks speak different versions of the protocol ({listed}); install the same release of securefed "
        "on all ranks"
    )  # fmt: skip


def _packed(settings: AgreedSettings) -> bytes:
    """Write settings as every rank shows them."""
    *numbers, stream = astuple(settings)
    return _SETTINGS.pack(*numbers, stream.encode())


def _unpacked(row: bytes) -> tuple[object, ...]:
    """Read the settings that a rank shows."""
    *numbers, stream = _SETTINGS.unpack(row)
    return (*numbers, stream.rstrip(bytes(1)).decode("ascii", "replace"))


def _check_settings(own: AgreedSettings, rank: int, all_settings: Sequence[tuple[object, ...]]) -> None:
    """Raise `ConfigError` unless all ranks have the settings of this one."""
    for peer, theirs in enumerate(all_settings):
        for name, value, other in zip(_NAMES, astuple(own), theirs, strict=True):
            if value != other:
                raise ConfigError(
                    f"the ranks differ in {name}: rank {rank} has {value}, rank {peer} has {other}; give all ranks "
                    "the same"
                )


def _check_identities(rank: int, ranks: int, identities: Identities | None) -> None:
    """Raise `ConfigError` unless identities, if given, hold every rank's public key and this one's private key."""
    if identities is None:
        return
    for peer in range(ranks):
        identities.known(peer)
    if rank not in identities.own:
        raise ConfigError(f"identities hold no private key of rank {rank}, which this process is: Identities(public, "
                          f"{{{rank}: key}})")  # fmt: skip


def _deal(dealt: bytes, rank: int, ranks: int, session: bytes, agreements: dict[int, bytes]) -> bytes:
    """Encrypt the common key for every other rank; only rank 0 deals, the others send zeros."""
    if rank != 0:
        return bytes(ranks * _SEALED)
    sealed = (encrypt_once(_sealing_key(agreements[peer], peer, session), dealt, session) for peer in range(1, ranks))
    return bytes(_SEALED) + b"".join(sealed)


def _open(row: bytes, rank: int, session: bytes, agreement: bytes) -> bytes:
    """Decrypt the common key that rank 0 sent to this rank; `agreement` is the secret of both."""
    sealed = row[rank * _SEALED : (rank + 1) * _SEALED]
    return decrypt_once(_sealing_key(agreement, rank, session), sealed, session, 0)


def _sealing_key(agreement: bytes, receiver: int, session: bytes) -> bytes:
    """Derive the key under which rank 0 encrypts the common key for one receiver; it serves once."""
    return hkdf(agreement, label("common key", session, receiver))


def _trial(masks: RankMasks, rank: int, ranks: int, ring: Ring, add: Sum) -> None:
    """Sum known numbers under masks: every rank adds rank + 1, so that each entry of the sum is 1 + ... + ranks.

    A masked message is its values and CONTROL control words, by which a rank reports that it has no values to add. No
    rank does so here, so the sum of these words must be 0, and is not where the masks failed to cancel.
    """
    call = Call("trial", 0, CONTROL, ring, 1.0)  # call 0 of this kind, with as many values as control words
    words = masks.expand(call)
    words[:CONTROL] += wire_dtype(ring).type(rank + 1)
    total = add(words.view(f"<i{words.itemsize}")).view(words.dtype)
    masks.remove_common(total, call)
    read_control(total, call)  # raises MaskMismatch unless the masks cancelled
    if (total[:CONTROL] != ranks * (ranks + 1) // 2).any():
        raise MaskMismatch(
            f"a trial sum of known numbers came out wrong: the backend does not add integers modulo 2^{ring}, or the "
            "network altered the message; use gloo, or another backend that sums int32 and int64"
        )

"""The first bytes of every message between parties: the protocol's mark and version, and the digest of the terms.

With them a party refuses a message of another release, or of parties that agreed to other terms, before it decodes it.

16 bytes "securefed sum" and zeros, 2 bytes version (little-endian), 32 bytes digest of the terms; then the message.
"""

from __future__ import annotations

import struct
from typing import Final

from securefed._messages import PROTOCOL_VERSION, check_version
from securefed.errors import ConfigError, MalformedError, TermsDiffer

_MARK: Final = b"securefed sum"
_HEADER: Final = struct.Struct("<16sH32s")


def header(digest: bytes) -> bytes:
    """Return the header for terms of this digest."""
    return _HEADER.pack(_MARK, PROTOCOL_VERSION, digest)


def wrap(digest: bytes, message: bytes) -> bytes:
    """Put the header before an encoded message."""
    return header(digest) + message


def unwrap(digest: bytes, data: bytes, sender: int) -> bytes:
    """Check the header and return the message behind it.

    Args:
        digest: digest of this party's terms.
        data: the bytes that arrived, as `bytes`, `bytearray` or `memoryview`.
        sender: the party that the transport names as their sender.

    Raises:
        ConfigError: not bytes.
        MalformedError: the bytes are no message of this protocol.
        VersionRefused: the sender speaks another version of the protocol.
        TermsDiffer: the sender has other terms.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ConfigError(f"a message is bytes, as the other party made it; got {type(data).__name__}")
    data = bytes(data)  # a copy only of what is not bytes yet
    if len(data) < _HEADER.size or not data.startswith(_MARK):
        raise MalformedError(sender, "these bytes are no message of securefed.parties; pass requests and replies whole")
    _, version, theirs = _HEADER.unpack_from(data)
    check_version(version, sender)
    if theirs != digest:
        raise TermsDiffer(
            sender,
            f"its terms have the digest {theirs.hex()[:16]}, and this party's {digest.hex()[:16]}: tensors, bounds, "
            "clients, defence or rounds differ; give all parties the same SumTerms (SumTerms.to_bytes)",
        )
    return data[_HEADER.size :]

"""Make the words of ChaCha20 mask streams (RFC 8439), which a processor and a graphics card make alike.

A plan names its mask stream (`STREAMS`). `aes-128-ctr` (`mask_streams`) is the faster one on most processors.
`chacha20` needs additions, rotations and exclusive ors of 32-bit words only, which a graphics card does fast. A mask's
secret and integers of w bytes give one ChaCha20 stream. It is cut into segments of 2^32 blocks of 64 bytes, as the
block counter has 32 bits. Byte b of the stream lies in segment s = b // 2^38, and there in the block with the counter
(b mod 2^38) // 64:

    key of segment s  =  HKDF-SHA256(secret, ("mask", "chacha20", w, s))        32 bytes
    nonce             =  0 (12 bytes): a key makes one segment, and nothing else

So two bytes of masks come from the same key and counter only if they are the same byte of the same stream. The labels
keep the keys apart from those of `aes-128-ctr`, so that one secret may even serve both streams.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from securefed._hyperparameters import check_choice
from securefed.defenses._secure_aggregation.primitives import hkdf, label

StreamName = Literal["aes-128-ctr", "chacha20"]
AES: Final = "aes-128-ctr"
CHACHA20: Final = "chacha20"
STREAMS: Final = (AES, CHACHA20)
"""Names of the mask streams that a plan may name; the first is the default."""

BLOCK: Final = 64
"""Bytes of a block of ChaCha20."""
SEGMENT: Final = BLOCK * 2**32
"""Bytes of a segment: all that one key makes, as the block counter has 32 bits (RFC 8439, section 2.3)."""
_NONCE: Final = bytes(12)


def check_stream(name: str) -> None:
    """Raise `ConfigError` for a name that is not in `STREAMS`."""
    check_choice("stream", name, STREAMS)


def segment_key(secret: bytes, width: int, segment: int) -> bytes:
    """Derive the key of one segment of a mask's stream, 32 bytes.

    Args:
        secret: the mask's secret.
        width: bytes of the integers that are masked, 4 or 8.
        segment: the segment's place in the stream, from 0.
    """
    return hkdf(secret, label("mask", CHACHA20, width, segment))


class ChaChaStream:
    """The stream of one mask secret for integers of one width, from a byte of it on.

    Args:
        secret: the mask's secret.
        width: bytes of the integers that are masked, 4 or 8.
        offset: the first byte of the stream that is made.
    """

    def __init__(self, secret: bytes, width: int, offset: int = 0) -> None:
        self._secret, self._width = secret, width
        self._start(*divmod(offset, SEGMENT))

    def update(self, data: bytes, /) -> bytes:
        """Encrypt `data`; of zeros this gives the next bytes of the stream."""
        parts, view = [], memoryview(data)
        while view:
            here = view[: self._room()]
            parts.append(self._cipher.update(here))
            self._left -= len(here)
            view = view[len(here) :]
        return b"".join(parts)

    def update_into(self, data: Any, buffer: Any, /) -> int:
        """Encrypt `data` into `buffer`, as `update`; returns how many bytes were written."""
        written = 0
        while written < len(data):
            here = data[written : written + self._room()]
            self._cipher.update_into(here, buffer[written:])
            self._left -= len(here)
            written += len(here)
        return written

    def _room(self) -> int:
        """Return how many bytes the segment has left; a segment that has none is followed by the next."""
        if not self._left:
            self._start(self._segment + 1, 0)
        return self._left

    def _start(self, segment: int, offset: int) -> None:
        """Start a segment's cipher at a byte of it."""
        block, inside = divmod(offset, BLOCK)
        key = segment_key(self._secret, self._width, segment)
        self._segment, self._left = segment, SEGMENT - offset
        self._cipher = start(key, block)
        self._cipher.update(bytes(inside))


def start(key: bytes, block: int) -> Any:
    """Start the cipher of a key at a block, nonce 0; encrypting zeros gives the blocks from there on."""
    return Cipher(algorithms.ChaCha20(key, block.to_bytes(4, "little") + _NONCE), None).encryptor()

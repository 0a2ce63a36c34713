"""Examine an installation: packages and extras, the random source, ciphers, keys, clocks, byte order, files.

The command `securefed doctor` prints what `examine` finds. Each check runs the primitive that the library uses, against
a published vector or a property that must hold. A check that passes does not prove that a generator is good; one that
fails shows that something is broken.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import pairwise
from pathlib import Path
from typing import Final

import securefed
from securefed._extras import EXTRA_OF, is_installed

GAINS: Final = {
    "audit": "securefed audit and its page, digits, detection metrics",
    "torch": "networks, attacks on networks, DistributedDataParallel",
    "paillier": "Paillier encryption",
    "flower": "Flower apps",
    "lattice": "CKKS encryption",
    "records": "DP-SGD at the client",
    "statistics": "labelled results and formulas of statistics",
    "gpu": "masks made on a graphics card",
    "lightning": "masked gradients of Lightning's Trainer",
}
"""By extra, what it adds."""

DOORS: Final[dict[str, tuple[tuple[str, ...], str, str]]] = {
    "own loop": ((), "SumClient, SumServer, secure_mean", ""),
    "shared folder": ((), "securefed party", ""),
    "statistics": ((), "securefed.statistics, through every other door", ""),
    "torch": (("torch",), "DistributedDataParallel, networks", "securefed[torch]"),
    "Lightning": (("lightning",), "LightningMasking", "securefed[lightning]"),
    "Trainer": (("transformers", "accelerate"), "callbacks of Hugging Face's Trainer", "securefed[trainer]"),
    "Flower": (("flwr",), "SecureStrategy, SecureQueries, secure_mod", "securefed[flower]"),
    "Flower's simulation": (("flwr", "ray"), "flwr run . on one machine", "securefed[flower]' 'flwr[simulation]"),
    "HTTP example": (("starlette", "uvicorn", "httpx"), "examples/http", "securefed[http]"),
    "audit": (("sklearn", "jinja2"), "securefed audit, its page, the digits", "securefed[audit]"),
}
"""By door through which updates are summed, or an audit is started: modules that it needs, names, what installs it."""

_DRAW = 1 << 16
"""Bytes drawn from the random source: enough that a stuck or coarse source shows, little enough to take no time."""
_LEAST_ONES, _MOST_ONES = 0.49, 0.51
"""Share of ones among 2^19 bits: the limits are 14 standard errors away, so that a fair source does not fail."""


@dataclass(frozen=True)
class HealthFinding:
    """One line of `securefed doctor`.

    Attributes:
        what: what was examined.
        sound: whether it is as needed; `None` for an extra that is not installed.
        detail: version, measurement, what is wrong, or what to install.
    """

    what: str
    sound: bool | None
    detail: str


def examine() -> list[HealthFinding]:
    """Run all checks, in the order in which the command shows them.

    A check of the list returns a few words on what it found, or raises an error with what is wrong.
    """
    checks = (
        ("random source", random_source),
        ("AES-128-CTR and AES-256-GCM", ciphers),
        ("ChaCha20", chacha20),
        ("mask stream", mask_words),
        ("X25519 and Ed25519", signatures),
        ("clocks", clocks),
        ("byte order and integers", integers),
        ("files", files),
    )
    return [python(), *packages(), *(_checked(what, check) for what, check in checks), *extras(), *doors()]


def python() -> HealthFinding:
    """Check the version of Python."""
    shown = ".".join(map(str, sys.version_info[:3]))
    return HealthFinding("Python", sys.version_info >= (3, 11), f"{shown} (3.11 or newer is needed)")


def packages() -> Iterator[HealthFinding]:
    """Look for each package that the core needs."""
    try:
        needed = [one for one in requires("securefed") or [] if "extra ==" not in one]
    except PackageNotFoundError:
        yield HealthFinding("securefed", False, "not installed: run `python -m pip install .` in its folder")
        return
    yield HealthFinding("securefed", True, securefed.__version__)
    for requirement in needed:
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        try:
            yield HealthFinding(name, True, version(name))
        except PackageNotFoundError:
            yield HealthFinding(name, False, f"not installed: `python -m pip install '{requirement}'`")


def extras() -> Iterator[HealthFinding]:
    """Say of each extra whether all of its packages are there; nothing is imported."""
    for extra, gain in GAINS.items():
        absent = [module for module, of in EXTRA_OF.items() if of == extra and not is_installed(module)]
        advice = f"adds {gain}; `python -m pip install 'securefed[{extra}]'`"
        yield HealthFinding(f"extra {extra}", None if absent else True, advice if absent else gain)


def doors() -> Iterator[HealthFinding]:
    """Say of each door whether it is ready, and else what to install; nothing is imported."""
    for door, (modules, names, install) in DOORS.items():
        absent = [module for module in modules if not is_installed(module)]
        told = f"lacks {', '.join(absent)}: `python -m pip install '{install}'`" if absent else f"ready: {names}"
        yield HealthFinding(f"door {door}", None if absent else True, told)


def random_source() -> str:
    """Draw from the operating system's generator: no block repeats, and half of the bits are ones."""
    drawn = os.urandom(_DRAW)
    blocks = {drawn[start : start + 16] for start in range(0, _DRAW, 16)}
    _require(len(blocks) == _DRAW // 16, "16-byte blocks repeat")
    ones = int.from_bytes(drawn, "little").bit_count() / (8 * _DRAW)
    _require(_LEAST_ONES < ones < _MOST_ONES, f"{ones:.1%} of the bits are ones")
    return f"{_DRAW} bytes, {ones:.1%} ones, no block twice"


def ciphers() -> str:
    """Compare AES with NIST's vectors: SP 800-38A F.5.1 for counter mode, the GCM specification's test case 14."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

    key, counter = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c"), bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    stream = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
    found = stream.update(bytes.fromhex("6bc1bee22e409f96e93d7e117393172a"))
    _require(found.hex() == "874d6191b620e3261bef6864990db6ce", "counter mode differs from NIST SP 800-38A")
    sealed = AESGCM(bytes(32)).encrypt(bytes(12), bytes(16), None)
    _require(
        sealed.hex() == "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919",
        "GCM differs from its specification",
    )
    return "as NIST's vectors say"


def chacha20() -> str:
    """Compare ChaCha20 with RFC 8439, appendix A.1, test vector 2."""
    from securefed.defenses._secure_aggregation.chacha_stream import start  # noqa: PLC0415

    _require(
        start(bytes(32), 1).update(bytes(32)).hex()
        == "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed",
        "ChaCha20 differs from RFC 8439",
    )
    return "as RFC 8439 says"


def mask_words() -> str:
    """Check that both ways to make masks give the same words, and say which one this process takes and how fast."""
    from securefed.defenses._secure_aggregation.mask_streams import PATHS, choice  # noqa: PLC0415

    made = {start(bytes(range(28))).update(bytes(1000)) for start in PATHS.values()}
    _require(len(made) == 1, "AES in counter mode and in GCM give different words")
    taken = choice()
    speeds = {path: max(speed for (by, _), speed in taken.speeds.items() if by == path) for path in PATHS}
    others = ", ".join(f"{speed / 1e6:,.0f} by {path}" for path, speed in speeds.items() if path != taken.path)
    return (
        f"AES-128 by {taken.path}, {speeds[taken.path] / 1e6:,.0f} million words a second ({others}), "
        f"{taken.chunk >> 10} KiB at a time"
    )


def signatures() -> str:
    """Agree on a key, sign, and find a forged signature; RFC 7748's vector for X25519."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415

    bob = X25519PrivateKey.from_private_bytes(
        bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    )
    shown = bob.public_key().public_bytes_raw().hex()
    _require(
        shown == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
        "X25519 differs from RFC 7748, section 6.1",
    )
    alice = X25519PrivateKey.generate()
    _require(alice.exchange(bob.public_key()) == bob.exchange(alice.public_key()), "two parties agree on two keys")
    signer = Ed25519PrivateKey.generate()
    signature = signer.sign(b"message")
    signer.public_key().verify(signature, b"message")
    try:
        signer.public_key().verify(signature, b"another message")
    except InvalidSignature:
        return "keys agree, a forged message is found"
    raise RuntimeError("a forged message was accepted")


def clocks() -> str:
    """Check that the monotonic clock does not run backwards and ticks often enough for timeouts."""
    ticks = [time.monotonic() for _ in range(10_000)]
    _require(all(a <= b for a, b in pairwise(ticks)), "the monotonic clock runs backwards")
    step = time.get_clock_info("monotonic").resolution  # timeouts are of seconds; Windows' clock ticks every 0.016 s
    _require(step <= 0.1, f"the monotonic clock ticks every {step:g} s only")
    return f"monotonic, {step:g} s"


def integers() -> str:
    """Check little-endian machine order, and that sums of 32-bit integers wrap around."""
    import numpy as np  # noqa: PLC0415

    _require(sys.byteorder == "little", "arrays travel as little-endian bytes; this machine is big-endian")
    wrapped = np.array([2**32 - 1], np.uint32) + np.array([2], np.uint32)
    _require(int(wrapped[0]) == 1, "sums of 32-bit integers do not wrap around")
    return "little-endian, sums wrap"


def files() -> str:
    """Check that a file can be made readable by its owner only, and renamed over another at once."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder) / "first", Path(folder) / "second"
        first.write_bytes(b"new")
        second.write_bytes(b"old")
        first.chmod(0o600)
        first.replace(second)
        _require(second.read_bytes() == b"new", "a file cannot be replaced")
        private = os.name != "posix" or second.stat().st_mode & 0o077 == 0
        _require(private, "a file in the temporary folder stays readable by others")
    return "private, replaced at once" + ("" if os.name == "posix" else "; without locks between processes")


def _checked(what: str, check: Callable[[], str]) -> HealthFinding:
    try:
        return HealthFinding(what, True, check())
    except Exception as error:  # whatever fails is the finding
        return HealthFinding(what, False, str(error) or type(error).__name__)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)

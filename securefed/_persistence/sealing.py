"""Encrypt files at rest with AES-256-GCM, under a key that is stored elsewhere.

    seal = Seal.from_file("client.key")                        # made by the operating system's generator the first time
    Federation(..., options=RunOptions(checkpoint="run.checkpoint", seal=seal))

A seal protects checkpoints, client states and pinned identities on disk (`container`). A sealed file is

    mark (16 bytes), version (2), key's fingerprint (8), generation (8), length (8), salt (32), ciphertext, tag (16)

with the header, up to the salt, in the clear, and a GCM tag that covers header, kind of file and ciphertext. A
generation is the number of a write. The anchor is a small file in another place, which remembers the newest
generation; without an anchor every write has generation 1.

    key             derived by HKDF-SHA256 from          serves                       lives
    the seal's      (32 random bytes)                    the three keys below         in its own file, until deleted
    "file"          the seal's key and the file's salt   to encrypt one write         while the file is written or read
    "anchor"        the seal's key                       as HMAC key of the anchor    while the anchor is used
    "fingerprint"   the seal's key                       8 bytes of it name the key   in each header, in the clear

The nonce of GCM is constant (zeros), since each file key encrypts one message.

Guarantees: without the key the file reveals its length, its generation, and by the fingerprint whether another file is
sealed under the same key; nothing else. `open` refuses a file that was altered, cut, written under another key, of
another kind, or replaced by one in the clear, by an error that says so. With `anchor`, it also refuses an older file in
place of the newest, and a file whose anchor is gone or was set back by several writes. It accepts an anchor that is one
write behind, since a crash between the writes of file and anchor leaves it so.

Not guaranteed: anything after an attacker has read the key. Without an anchor a copy of an older file opens. With an
anchor an attacker who can write both can reset file and anchor to the same older write. So keep the anchor in a place
that people who can replace the file cannot write to.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securefed._persistence.file_errors import storage_errors
from securefed.errors import ConfigError, RolledBackError, StorageError, WrongKeyError

KEY_BYTES: Final = 32
MARK: Final = b"securefed sealed"
VERSION: Final = 1
_HEADER: Final = struct.Struct("<16sH8sQQ32s")
_TAG, _SALT = 16, 32
# Bytes handed to the cipher at a time: OpenSSL takes less than 2^31 in one call.
_SLICE = 1 << 28
_ANCHOR: Final = struct.Struct("<Q32s")


@dataclass(frozen=True)
class Seal:
    """Key that files are encrypted with, and the anchor by which older files are refused.

    Attributes:
        key: 32 secret bytes, from the operating system's generator.
        anchor: a small file that remembers the generation written last; each sealed file needs its own, in another
            place than the file.

    Raises:
        ConfigError: the key is not 32 bytes.
    """

    key: bytes = field(repr=False)
    anchor: Path | str | None = None

    def __post_init__(self) -> None:
        if type(self.key) is not bytes or len(self.key) != KEY_BYTES:
            raise ConfigError(f"a seal's key is {KEY_BYTES} secret bytes; Seal.from_file makes and keeps one")

    @classmethod
    def from_file(cls, path: Path | str, anchor: Path | str | None = None, *, make: bool = True) -> Seal:
        """Read the key in a file; make the file, readable by its owner only, if there is none.

        Args:
            path: the file of the key.
            anchor: file that remembers the newest generation of what was sealed; `None` for none.
            make: whether a missing file may be made; if not, it is an error.

        Raises:
            StorageError: the file is missing or cannot be read or made, is no key, or others may read it.
        """
        place = Path(path)
        if make and not place.exists():
            make_key(place)
        try:
            with place.open("rb") as file:
                mode, key = os.fstat(file.fileno()).st_mode, file.read(KEY_BYTES + 1)
        except FileNotFoundError as error:
            raise StorageError(f"there is no key {place}; give another path, or make one (securefed key)") from error
        except OSError as error:
            raise StorageError(f"cannot use key {place}: {error.strerror}") from error
        if os.name == "posix" and mode & 0o077:
            raise StorageError(f"key {place} can be read by others than its owner; chmod 600 it, or make another")
        if len(key) != KEY_BYTES:
            raise StorageError(f"{place} is no key of {KEY_BYTES} bytes; restore it, or make another")
        return cls(key, None if anchor is None else Path(anchor))

    def close(self, kind: str, data: bytes) -> bytes:
        """Encrypt `data` as a file of this kind, of the generation after the newest one; 90 bytes longer than `data`.

        Call `remember` with the result once it is on disk.

        Raises:
            StorageError: the anchor cannot be read.
        """
        salt = os.urandom(_SALT)
        header = _HEADER.pack(MARK, VERSION, self._fingerprint, self.newest() + 1, len(data), salt)
        # the nonce may be zeros, since the salt makes the key fresh
        cipher = Cipher(algorithms.AES(self._derive(b"file", salt)), modes.GCM(bytes(12))).encryptor()
        cipher.authenticate_additional_data(header + kind.encode())
        return b"".join([header, *map(cipher.update, _slices(data)), cipher.finalize(), cipher.tag])

    def open(self, kind: str, data: bytes, where: str) -> bytes:
        """Decrypt and verify what `close` returned.

        Args:
            kind: the kind of file, as given to `close`.
            data: the sealed bytes.
            where: a description of the file, for errors.

        Returns:
            The content in the clear. The anchor is brought up to date where it was one write behind.

        Raises:
            WrongKeyError: sealed under another key.
            RolledBackError: older than the newest that the anchor remembers; or newer by several writes, so that the
                anchor is gone or was set back.
            StorageError: no sealed file, another version, cut, or altered; or the anchor cannot be written.
        """
        if not is_sealed(data) or len(data) < _HEADER.size:
            raise StorageError(f"{where} is not sealed, or truncated; a key is given, so nothing in clear is read")
        _, version, fingerprint, generation, length, salt = _HEADER.unpack_from(data)
        if version != VERSION:
            raise StorageError(f"{where} is sealed in version {version}, this release reads {VERSION}")
        if not hmac.compare_digest(fingerprint, self._fingerprint):
            raise WrongKeyError(f"{where} is sealed under another key; give the one it was written with")
        if len(data) != _HEADER.size + length + _TAG:
            raise StorageError(f"{where} is truncated, or something was appended; restore it from a copy")
        cipher = Cipher(algorithms.AES(self._derive(b"file", salt)), modes.GCM(bytes(12), data[-_TAG:])).decryptor()
        cipher.authenticate_additional_data(data[: _HEADER.size] + kind.encode())
        try:
            plain = [*map(cipher.update, _slices(memoryview(data)[_HEADER.size : -_TAG])), cipher.finalize()]
        except InvalidTag as error:
            raise StorageError(f"{where} was altered, or is no {kind}: its tag does not match") from error
        newest = self.newest()
        if generation < newest:
            raise RolledBackError(
                f"{where} is of generation {generation}, and {newest} was written since; a client that goes on "
                "from an older state may mask two uploads alike: restore the newest, or start a new run"
            )
        if self.anchor is not None and generation > newest + 1:  # a crash leaves it one write behind at most
            raise RolledBackError(
                f"{where} is of generation {generation}, and anchor {self.anchor} remembers {newest}: the anchor is "
                "gone or was set back, and an older file would not be noticed; restore it, or, if the file is the "
                "newest, open and write it once without an anchor"
            )
        if generation > newest:  # a crash came between file and anchor; otherwise the next write repeats the number
            self.remember(data)
        return b"".join(plain)

    def newest(self) -> int:
        """Return the generation written last; 0 without an anchor or before the first.

        Raises:
            StorageError: the anchor cannot be read, or is no anchor of this key.
        """
        if self.anchor is None or not Path(self.anchor).exists():
            return 0
        with storage_errors(f"read anchor {self.anchor}"):
            data = Path(self.anchor).read_bytes()
        if len(data) == _ANCHOR.size:
            generation, tag = _ANCHOR.unpack(data)
            if hmac.compare_digest(tag, self._anchor_tag(generation)):
                return int(generation)
        raise StorageError(f"anchor {self.anchor} was altered, or belongs to another key")

    def check_never_written(self, kind: str, path: Path | str) -> None:
        """Check, where there is no file, that there never was one.

        Raises:
            StorageError: the anchor remembers a file; or it cannot be read.
        """
        if newest := self.newest():
            raise StorageError(
                f"{kind} {path} is gone, and its anchor {self.anchor} remembers {newest} writes; restore the newest "
                "copy, or give a new file and a new anchor, whose counts then begin at 0"
            )

    def for_file(self, name: str) -> Seal:
        """Return a seal for one of several files: the same key, and an anchor of its own beside this one's."""
        return self if self.anchor is None else replace(self, anchor=Path(f"{self.anchor}-{name}"))

    def remember(self, sealed: bytes) -> None:
        """Note in the anchor, if there is one, that `sealed` is on disk now.

        Call it after the file is written: a crash between the two then leaves a file that is newer than the anchor.
        It opens, and opening it brings the anchor up to date.
        """
        if self.anchor is None:
            return
        generation = _HEADER.unpack_from(sealed)[3]
        write_atomically(Path(self.anchor), _ANCHOR.pack(generation, self._anchor_tag(generation)), "anchor")

    @property
    def _fingerprint(self) -> bytes:
        """Return 8 public bytes that name the key."""
        return self._derive(b"fingerprint")[:8]

    def _anchor_tag(self, generation: int) -> bytes:
        """Compute the HMAC-SHA256 that stands beside a generation in the anchor, 32 bytes."""
        return hmac.digest(self._derive(b"anchor"), generation.to_bytes(8, "little"), "sha256")

    def _derive(self, purpose: bytes, salt: bytes | None = None) -> bytes:
        """Derive the key for one purpose by HKDF-SHA256, 32 bytes."""
        return HKDF(SHA256(), KEY_BYTES, salt, b"securefed seal " + purpose).derive(self.key)


def make_key(path: Path) -> None:
    """Write a new key to `path`, from the operating system's generator, readable by its owner only.

    Raises:
        StorageError: there is a file already, which may be the only key to what it sealed, or it cannot be written.
    """
    try:
        _write_new(path, os.urandom(KEY_BYTES))
    except FileExistsError as error:
        raise StorageError(f"{path} is there already, and a key is never overwritten; give another path") from error
    except OSError as error:
        raise StorageError(f"cannot make key {path}: {error.strerror}") from error


def is_sealed(data: bytes) -> bool:
    """Tell whether the bytes start like a sealed file."""
    return data.startswith(MARK)


def write_atomically(path: Path, data: bytes, kind: str) -> None:
    """Write a file under a temporary name, rename it to `path`, and put both on disk, readable by its owner only.

    Args:
        path: the file; its folder is made if there is none. Of a symbolic link the file that it points to is replaced.
        data: the content.
        kind: what the file is, for the error.

    Raises:
        StorageError: the file cannot be written.
    """
    place = behind_links(path)
    temporary = place.with_name(f".{place.name}.{os.urandom(8).hex()}.part")
    try:
        _write_new(temporary, data)
        temporary.replace(place)
        sync_folder(place.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"cannot write {kind} {path}: {error.strerror}; choose another path") from error


def behind_links(path: Path) -> Path:
    """Return the file that a path leads to through symbolic links; renaming a file over a link would leave two."""
    return Path(os.path.realpath(path))


def sync_folder(folder: Path) -> None:
    """Put the folder's entries on disk, so that a file that was renamed into it survives a power cut.

    Not promised: anything on systems where a folder cannot be opened (Windows).

    Raises:
        OSError: the folder cannot be read.
    """
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _slices(data: bytes | memoryview) -> Iterator[memoryview]:
    """Split data into parts that are short enough for one call of the cipher."""
    view = memoryview(data)
    return (view[start : start + _SLICE] for start in range(0, len(view), _SLICE))


def _write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, readable by its owner only, and put it on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())

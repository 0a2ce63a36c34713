"""Turn the bytes of a text table into text, without a guess at its encoding.

A byte-order mark names its encoding. Without one the text is UTF-8 to the letter, or the user names the encoding: the
same byte is one letter in one of the older encodings, and another letter in the next. No byte is ever replaced, since
two names that differ in one letter would become one name.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from pathlib import Path
from typing import Final

from securefed.datasets._tables.table_format import remedy
from securefed.errors import DataError

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16's, with which it begins
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_OLDER: Final = ("cp1252", "cp1250", "mac_roman", "cp850")
"""Older encodings of Windows (Western and Central Europe), Macs and DOS; examples for an error."""
_WORD: Final = re.compile(rb'[^,;\t|\r\n" ]*')


def read_bytes(path: Path) -> bytes:
    """Read a file, unpacked where it ends in `.gz`.

    Raises:
        DataError: there is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise DataError(f"cannot read {path}: there is no such file; give the path of a table")
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def decoded(data: bytes, source: str, encoding: str = "") -> tuple[str, str]:
    """Turn the bytes of a table into text.

    Args:
        data: the bytes.
        source: the table's name, for errors.
        encoding: the encoding, where the user names it.

    Returns:
        The text without a byte-order mark, and the name of its encoding.

    Raises:
        DataError: the bytes are in another encoding; names the first of them and the option to write.
    """
    if data.startswith(b"PK\x03\x04"):
        raise DataError(f"{source} is an archive, as spreadsheets are, and no text; export the table as .csv")
    used = _encoding(data, source, encoding)
    try:
        text = data.decode(used)
    except UnicodeError as error:
        raise DataError(_undecodable(data, source, used, error)) from error
    if "\0" in text:
        raise DataError(_nul_bytes(data, source))
    return text, "UTF-8" if used in ("utf-8", "utf-8-sig") else used


def _encoding(data: bytes, source: str, encoding: str) -> str:
    """Return the encoding of a byte-order mark, which a named one must not contradict; else the named one, or UTF-8."""
    marked = next((name for mark, name in _MARKS if data.startswith(mark)), "")
    named = codecs.lookup(encoding).name if encoding else ""
    family = marked.removesuffix("-sig")
    if family and named and not named.startswith(family):
        raise DataError(f"{source} starts with the byte-order mark of {family}; leave out the encoding {encoding!r}")
    return marked or named or "utf-8"


def _undecodable(data: bytes, source: str, used: str, error: UnicodeError) -> str:
    """Say which bytes are not of the encoding, and how they would read in others."""
    if used != "utf-8" or not isinstance(error, UnicodeDecodeError):
        return f"{source} is no text in {used}: {error}; name its encoding, such as {remedy(encoding='cp1252')}"
    if b"\0" in data:
        return _nul_bytes(data, source)
    line = data.count(b"\n", 0, error.start) + 1
    start = max(data.rfind(mark, 0, error.start) for mark in (b",", b";", b"\t", b"|", b"\n", b'"', b" ")) + 1
    match = _WORD.match(data, start)
    word = match[0][:40] if match else b""
    readings = [f"{word.decode(name)!r} in {name}" for name in _OLDER if _decodes(word, name)]
    return (
        f"{source} is not in UTF-8: line {line} holds the byte {data[error.start]:#04x}. Its word is "
        f"{', '.join(readings) or repr(word)}; name the encoding in which it is right, such as "
        f"{remedy(encoding='cp1252')}, or save the table in UTF-8"
    )


def _decodes(word: bytes, encoding: str) -> bool:
    try:
        word.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _nul_bytes(data: bytes, source: str) -> str:
    """Say that bytes are no text, or look like UTF-16 without a mark: every other byte of plain letters is then 0."""
    sample = data[:4096]
    for encoding, zeros in (("utf-16-le", sample[1::2]), ("utf-16-be", sample[::2])):
        if zeros.count(0) * 2 > len(zeros):
            return f"{source} looks like UTF-16 without a byte-order mark; write {remedy(encoding=encoding)}"
    return f"{source} holds NUL bytes, and is no text table; export the table as .csv"

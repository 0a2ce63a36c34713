"""Errors of the operating system on files, in the words of this package."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from tokenize import TokenError
from typing import Final

from securefed.errors import StorageError

NO_NPZ: Final = (
    OSError, ValueError, KeyError, EOFError, AttributeError, SyntaxError, TokenError, RuntimeError,
    zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip
"""What `numpy.load` and the archive that it returns raise for bytes that are no .npz file, or a damaged one.

Headers of arrays are Python literals, so that errors of Python's tokenizer are among them; of `zipfile` a
`RuntimeError` says that an entry is encrypted, or compressed in another way."""


@contextmanager
def storage_errors(attempt: str, advice: str = "") -> Iterator[None]:
    """Raise a `StorageError` in place of an `OSError`: "cannot write into out: No space left on device".

    Args:
        attempt: what is tried, after "cannot".
        advice: what to do where it fails; empty for none.

    Raises:
        StorageError: the operating system refused.
    """
    try:
        yield
    except StorageError:  # an `OSError` too, which says all of it
        raise
    except OSError as error:
        raise StorageError(f"cannot {attempt}: {error.strerror}{advice and f'; {advice}'}") from error

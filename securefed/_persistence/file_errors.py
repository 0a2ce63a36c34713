"""Errors of the operating system on files, in the words of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from securefed.errors import StorageError


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

"""Find the files of a data set in the folder that SECUREFED_DATA names, or say where to get them.

Nothing is downloaded. A data set is looked for in two forms: as one `.npz` archive of arrays, as the maintainers keep
it, or as the files of the original's site. Loaders (`_images`, `_signals`, `_intrusion`) read what is found.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from securefed.errors import DataError

DATA_VARIABLE = "SECUREFED_DATA"
"""The environment variable that names the folder of data sets."""


@dataclass(frozen=True)
class DatasetFiles:
    """Files of a data set: the names under which they are looked for, and the site they come from.

    The folder is searched first for `archive`, then for the original's own files: all of them in the subfolder that
    the original unpacks into, or all of them in a subfolder called `name`, or all of them in the folder itself.

    Attributes:
        name: the set's name.
        archive: name of the set's `.npz` archive.
        files: the original's files, each a pattern of `pathlib.Path.glob`, or several patterns of which one suffices.
            A file may also have `.gz` behind its name.
        site: the official site, for the error.
        unpacked: the subfolder that the original unpacks into, if any.
    """

    name: str
    archive: str
    files: tuple[tuple[str, ...], ...]
    site: str
    unpacked: str = ""

    def archived(self) -> Path | None:
        """Return the path of the `.npz` archive if it exists; raise `DataError` where no data folder is named."""
        path = self._folder() / self.archive
        return path if path.is_file() else None

    def originals(self) -> tuple[tuple[Path, ...], ...]:
        """Find for each of `files` the paths that match it, sorted by name.

        Raises:
            DataError: one of them has none; names every file looked for, the site, and where to put them.
        """
        folder = self._folder()
        for place in (folder / (self.unpacked or self.name), folder / self.name, folder):
            found = tuple(_matches(place, choices) for choices in self.files)
            if all(found):
                return found
        raise DataError(f"{self.name} is not in {folder} (from {DATA_VARIABLE}). {self._remedy()}")

    def _folder(self) -> Path:
        """Return the folder of data sets; raise `DataError` where none is named."""
        named = os.environ.get(DATA_VARIABLE)
        if not named:
            raise DataError(
                f"{self.name} is not embedded: set {DATA_VARIABLE} to the folder that holds it. {self._remedy()}"
            )
        return Path(named)

    def _remedy(self) -> str:
        """Say which files to put where, and where they come from."""
        files = ", ".join(" or ".join(choices) for choices in self.files)
        subfolders = " or ".join(repr(name) for name in (self.unpacked, self.name) if name)
        return (
            f"Put there {self.archive}, or the original's own files: {files} (in the folder itself or in its "
            f"subfolder {subfolders}). They come from {self.site}"
        )


def _matches(place: Path, choices: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the files in `place` that the first pattern with any matches, sorted; plain ones before `.gz`."""
    for pattern in choices:
        for suffix in ("", ".gz"):
            found = tuple(sorted(path for path in place.glob(pattern + suffix) if path.is_file()))
            if found:
                return found
    return ()

"""Write all generated pages; a page is rewritten only where its text changed, so that Sphinx rebuilds little."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from docs.generators import (
    commands,
    copies,
    decision_tree,
    diagrams,
    error_names,
    figure_counts,
    licences,
    papers,
    records,
    reference,
    registries,
    which_leaks,
)

ROOT = Path(__file__).parents[2]


def write_all(folder: Path) -> None:
    """Write every generated page into a folder, and remove what is no longer generated.

    Args:
        folder: `docs/generated`; git ignores it.
    """
    texts = all_pages()
    wanted = {folder / name for name in texts}
    for name, text in texts.items():
        _write(folder / name, text)
    for name, source in copies.binary_files().items():
        wanted.add(folder / name)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists() or (folder / name).read_bytes() != source.read_bytes():
            shutil.copyfile(source, folder / name)
    for old in [path for path in folder.rglob("*") if path.is_file() and path not in wanted]:
        old.unlink()


def all_pages() -> Mapping[str, str]:
    """Return the text of every generated page, by its path in `docs/generated`."""
    return {
        **reference.pages(),
        **commands.pages(),
        **error_names.pages(),
        **registries.pages(),
        **which_leaks.pages(),
        **papers.pages(),
        **figure_counts.pages(),
        **copies.pages(),
        **records.pages(),
        **licences.pages(),
        **decision_tree.pages(),
        **diagrams.pictures(),
    }


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)

"""Point the pages' links to files outside of `docs` at the pages that the site makes of them.

The pages are read in the repository too, where `../examples/pipes` is a folder; on the site it is a generated page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|mailto:|/|#)([^)\s]+)\)")
_FOLDERS = ("examples", "extension_templates")
_COPIED = {
    "benchmarks/results": "/generated/benchmark-results.md",
    "benchmarks/results/README.md": "/generated/benchmark-results.md",
    "CONTRIBUTING.md": "/generated/contributing.md",
    "CHANGELOG.md": "/generated/changelog.md",
    "SECURITY.md": "/generated/security.md",
    "README.md": "/index.md",
}
"""Files of the repository that the site copies, by path."""


def rewrite(app: Any, docname: str, source: list[str]) -> None:
    """Rewrite the links of one page, for Sphinx's event `source-read`."""
    path = Path(os.fspath(app.env.doc2path(docname)))
    if path.suffix == ".md" and not docname.startswith("generated/"):
        source[0] = rewritten(source[0], path.parent)


def rewritten(text: str, folder: Path, *, copied: bool = False) -> str:
    """Return Markdown whose links out of `docs` lead to pages of the site, or are plain paths where there is none.

    Args:
        text: the Markdown.
        folder: where its file stands in the repository; links are relative to it.
        copied: the text will stand elsewhere, so that links to pages of the site are rewritten too.
    """

    def replacement(link: re.Match[str]) -> str:
        label, target = link.groups()
        path, _, anchor = target.partition("#")
        inside = os.path.relpath(os.path.normpath(folder / path), ROOT)
        if inside.startswith("docs/"):
            return f"[{label}](/{inside.removeprefix('docs/')}{_tail(anchor)})" if copied else link.group(0)
        page = _page(inside)
        if page is None:
            return f"`{inside}`" if label.strip("`") in (path, inside) else f"{label} (`{inside}`)"
        return f"[{label}]({page}{_tail(anchor)})"

    return _LINK.sub(replacement, text)


def _tail(anchor: str) -> str:
    return f"#{anchor}" if anchor else ""


def _page(path: str) -> str | None:
    if path in _COPIED:
        return _COPIED[path]
    if path.endswith(".ipynb"):
        return "/generated/" + path
    parts = path.split("/")
    if parts[0] in _FOLDERS:
        return f"/generated/{parts[0]}/{parts[1].removesuffix('.py') if len(parts) > 1 else 'index'}.md"
    return None

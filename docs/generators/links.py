"""Point the pages' links to files outside of `docs` at the pages that the site makes of them.

The pages are read in the repository too, where `../examples/pipes` is a folder; on the site it is a generated page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./|docs/|notebooks/|benchmarks/|examples/|extension_templates/)[^)\s]*)\)")
_FOLDERS = ("examples", "extension_templates")


def rewrite(app: Any, docname: str, source: list[str]) -> None:
    """Rewrite the links of one page, for Sphinx's event `source-read`."""
    if Path(app.env.doc2path(docname)).suffix == ".md":
        source[0] = rewritten(source[0])


def rewrite_included(app: Any, path: Path, docname: str, source: list[str]) -> None:
    """Rewrite the links of an included file, for Sphinx's event `include-read`."""
    if str(path).endswith(".md"):
        source[0] = rewritten(source[0])


def rewritten(text: str) -> str:
    """Return Markdown whose links out of `docs` lead to pages of the site, or are plain paths where there is none."""
    return _LINK.sub(_replacement, text)


def _replacement(link: re.Match[str]) -> str:
    label, target = link.groups()
    path, _, anchor = target.partition("#")
    path = re.sub(r"^(\.\./)+", "", path)
    page = _page(path.rstrip("/"))
    if page is None:
        return f"{label} (`{path}`)" if label.strip("`") != path else f"`{path}`"
    return f"[{label}]({page}{'#' + anchor if anchor else ''})"


def _page(path: str) -> str | None:
    if path.startswith("docs/"):
        return "/" + path.removeprefix("docs/")
    if path == "benchmarks/results/README.md":
        return "/generated/benchmark-results.md"
    if path == "benchmarks/results":
        return "/generated/benchmark-results.md"
    if path.endswith(".ipynb"):
        return "/generated/" + path
    parts = path.split("/")
    if parts[0] in _FOLDERS:
        return f"/generated/{parts[0]}/{parts[1] if len(parts) > 1 else 'index'}.md"
    return {"CONTRIBUTING.md": "/generated/contributing.md", "CHANGELOG.md": "/generated/changelog.md"}.get(path)

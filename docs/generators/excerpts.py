"""Give the search its excerpts where the site is read as files.

Sphinx's search fetches each page that it found, to show the words around a match. A browser fetches nothing for a page
that was opened as a file, as `make docs` suggests. So the text of all pages also lies in a script, which the search
page alone loads, and from which the excerpts come then.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any, Final

_SCRIPT: Final = "excerpts.js"
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]+>", re.DOTALL)
_READ = """
if (location.protocol === "file:")
  window.fetch = (url) => {
    const page = EXCERPTS[url.replace(/^\\.\\//, "").replace(/\\.html$/, "")] || "";
    const main = document.createElement("div");
    main.setAttribute("role", "main");
    main.textContent = page;
    return Promise.resolve({ text: () => Promise.resolve(main.outerHTML) });
  };
"""


def text_of(body: str) -> str:
    """Return the text of a page's body, with single spaces."""
    return " ".join(html.unescape(_TAGS.sub(" ", body)).split())


def script(texts: dict[str, str]) -> str:
    """Return the script: the text of each page by name, and what reads it."""
    return f"const EXCERPTS = {json.dumps(texts, ensure_ascii=False)};{_READ}"


def setup(app: Any) -> None:
    """Collect the pages' texts, and write the script when the site is built."""
    texts: dict[str, str] = {}

    def collect(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
        if page == "search":
            app.add_js_file(_SCRIPT)
        elif doctree is not None:
            texts[page] = text_of(context.get("body", ""))

    def write(app: Any, error: Exception | None) -> None:
        if error is None and texts and app.builder.format == "html":
            (Path(app.outdir) / "_static" / _SCRIPT).write_text(script(texts), encoding="utf-8")

    app.connect("html-page-context", collect)
    app.connect("build-finished", write)

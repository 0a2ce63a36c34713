"""Read a page as its reader does: text by section, and tables by cell, whatever the markup and the styles are."""

from __future__ import annotations

from html.parser import HTMLParser

UNSEEN = ("style", "script", "title", "head")


class _Reader(HTMLParser):
    """Collect the text of each section under its first heading, and the cells of each table."""

    def __init__(self) -> None:
        super().__init__()
        self.sections: dict[str, list[str]] = {}
        self.tables: list[list[list[str]]] = []
        self.text: list[str] = []
        self.unseen = 0
        self.section: list[str] | None = None
        self.heading: list[str] | None = None
        self.cell: list[str] | None = None
        self.columns = 1

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in UNSEEN:
            self.unseen += 1
        elif tag == "section":
            self.section = []
        elif tag == "h2":
            self.heading = []
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.cell, self.columns = [], int(dict(attributes).get("colspan") or 1)

    def handle_endtag(self, tag: str) -> None:
        if tag in UNSEEN:
            self.unseen -= 1
        elif tag == "h2" and self.heading is not None:
            if self.section is not None:
                self.sections[" ".join(self.heading)] = self.section
            self.heading = None
        elif tag in ("td", "th") and self.cell is not None:
            self.tables[-1][-1] += [" ".join(self.cell)] * self.columns
            self.cell = None

    def handle_data(self, data: str) -> None:
        words = data.split()
        if self.unseen or not words:
            return
        for place in (self.text, self.section, self.heading, self.cell):
            if place is not None:
                place.append(" ".join(words))


def _read(html: str) -> _Reader:
    reader = _Reader()
    reader.feed(html)
    return reader


def text(html: str) -> str:
    """Give all text of a page."""
    return " ".join(_read(html).text)


def sections(html: str) -> dict[str, str]:
    """Map each heading of a section to all text of the section, in the order of the page."""
    return {heading: " ".join(words) for heading, words in _read(html).sections.items()}


def tables(html: str) -> list[list[list[str]]]:
    """List the tables of a page; each is a list of rows of cell texts. A cell over several columns is repeated."""
    return _read(html).tables

"""Draw the site's diagrams as SVG: the overview, and message sequences with what each party learns.

The drawings have a white ground of their own, so that they read alike on the light and the dark page.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

_INK, _LINE, _SAFE, _OPEN, _PAPER = "#1c2733", "#5b6b7b", "#1f7a4d", "#b3261e", "#ffffff"
_STYLE = "font-family='system-ui,sans-serif' font-size='15'"


@dataclass(frozen=True)
class Arrow:
    """One message of a sequence.

    Attributes:
        stage: name of the stage, written at the left; empty where it goes on.
        sender: position of the sending party.
        receiver: position of the receiving party.
        text: what the message holds.
        learns: what its receiver then knows, written at the right.
    """

    stage: str
    sender: int
    receiver: int
    text: str
    learns: str = ""


MASKING = (
    ("client i", "server", "client j"),
    (
        Arrow("1 keys", 0, 1, "public keys", "server: who takes part"),
        Arrow("", 1, 2, "all public keys", "j: a secret shared with i alone"),
        Arrow("2 shares", 0, 1, "encrypted shares of i's seeds", "server: bytes that it cannot open"),
        Arrow("", 1, 2, "j's share of each seed", "j: one share, of no use alone"),
        Arrow("3 upload", 0, 1, "update + own mask + mask(i,j)", "server: uniform numbers"),
        Arrow("", 2, 1, "update + own mask - mask(i,j)", "server: masks of pairs cancel in the sum"),
        Arrow("4 unmask", 1, 2, "who uploaded, who is lost", "j: who is in the sum"),
        Arrow("", 2, 1, "shares: own masks of those that", "server: THE SUM, and nothing else"),
        Arrow("", 2, 1, "uploaded, keys of those lost", "server: no client's two secrets at once"),
    ),
)
PAILLIER = (
    ("client i", "server", "key holder"),
    (
        Arrow("1 keys", 2, 0, "public key", "i: how to encrypt"),
        Arrow("2 upload", 0, 1, "encrypted update", "server: ciphertext"),
        Arrow("3 open", 1, 2, "product of all ciphertexts", "key holder: THE SUM, no single update"),
        Arrow("", 2, 1, "the sum", "server: THE SUM"),
    ),
)


def pictures() -> dict[str, str]:
    """Return the drawings by path."""
    return {
        "pictures/overview.svg": overview(),
        "pictures/overview-narrow.svg": overview_narrow(),
        "pictures/secure-aggregation.svg": sequence(*MASKING),
        "pictures/paillier.svg": sequence(*PAILLIER),
    }


def sequence(parties: tuple[str, ...], arrows: tuple[Arrow, ...]) -> str:
    """Draw a message sequence: a line for each party, time downwards, and at the right what each message tells."""
    width, left, gap, row, top = 1090, 170, 250, 48, 70
    places = [left + gap * index for index in range(len(parties))]
    height = top + row * len(arrows) + 20
    parts = [_text(x, 34, name, anchor="middle", weight="bold") for x, name in zip(places, parties, strict=True)]
    parts += [_line(x, 46, x, height - 12, dash=True) for x in places]
    parts.append(_text(places[-1] + 80, 34, "what the receiver learns", weight="bold"))
    for index, arrow in enumerate(arrows):
        y = top + row * index + 12
        here, there = places[arrow.sender], places[arrow.receiver]
        if arrow.stage:
            parts.append(_text(14, y + 5, arrow.stage, weight="bold"))
        parts.append(_arrow(here, there, y))
        parts.append(_text((here + there) / 2, y - 8, arrow.text, anchor="middle"))
        colour = _OPEN if "THE SUM" in arrow.learns else _SAFE
        parts.append(_text(places[-1] + 80, y + 5, arrow.learns, colour=colour))
    return _svg(width, height, parts)


_OVERVIEW = (
    ("in the clear", "the update itself", "the client's data", _OPEN),
    ("secure aggregation", "uniform numbers; only the sum opens", "all clients' sum, no single client", _SAFE),
    ("with noise", "the sum, blurred", "little, by a bound: epsilon", _SAFE),
)


def overview() -> str:
    """Draw a client's message in the clear, masked, and masked with noise, and what an attack makes of each."""
    parts = [_text(x, 34, name, weight="bold") for x, name in ((20, "a client sends"), (330, "the server sees"))]
    parts.append(_text(720, 34, "an attack recovers", weight="bold"))
    for index, (sends, sees, recovers, colour) in enumerate(_OVERVIEW):
        y = 82 + 62 * index
        for x, wide, words, ink in ((14, 230, sends, _INK), (324, 310, sees, _INK), (714, 300, recovers, colour)):
            parts.append(f"<rect x='{x}' y='{y - 25}' width='{wide}' height='40' rx='7' fill='none' stroke='{ink}'/>")
            parts.append(_text(x + 12, y, words, colour=ink))
        parts += [_arrow(246, 320, y - 5), _arrow(636, 710, y - 5)]
    return _svg(1030, 240, parts)


def overview_narrow() -> str:
    """Draw the overview for a telephone: the same boxes below each other, in letters of the page's size."""
    parts = []
    for index, (sends, sees, recovers, colour) in enumerate(_OVERVIEW):
        top = 14 + 178 * index
        heads = ("a client sends", "the server sees", "an attack recovers")
        for line, (head, words, ink) in enumerate(
            zip(heads, (sends, sees, recovers), (_INK, _INK, colour), strict=True)
        ):
            y = top + 54 * line
            parts.append(f"<rect x='12' y='{y}' width='336' height='46' rx='7' fill='none' stroke='{ink}'/>")
            parts.append(_text(22, y + 18, head, weight="bold"))
            parts.append(_text(22, y + 37, words, colour=ink))
    return _svg(360, 178 * len(_OVERVIEW) + 6, parts)


def _svg(width: int, height: int, parts: list[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' {_STYLE}>"
    ground = f"<rect width='{width}' height='{height}' rx='10' fill='{_PAPER}'/>"
    return "\n".join([head, ground, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal", colour: str = _INK) -> str:
    place = f"x='{x:g}' y='{y:g}' text-anchor='{anchor}' font-weight='{weight}' fill='{colour}'"
    return f"<text {place}>{escape(words)}</text>"


def _line(x: float, y: float, x2: float, y2: float, dash: bool = False) -> str:
    dashes = " stroke-dasharray='4 5'" if dash else ""
    return f"<line x1='{x:g}' y1='{y:g}' x2='{x2:g}' y2='{y2:g}' stroke='{_LINE}'{dashes}/>"


def _arrow(x: float, x2: float, y: float) -> str:
    back = -9 if x2 > x else 9
    head = f"<path d='M{x2 + back:g},{y - 5:g} L{x2:g},{y:g} L{x2 + back:g},{y + 5:g}' fill='none' stroke='{_INK}'/>"
    return f"<line x1='{x:g}' y1='{y:g}' x2='{x2:g}' y2='{y:g}' stroke='{_INK}'/>{head}"

"""Views of a server that sees sums: all that its setting allows it to see, with what declared colluders tell it.

A setting opens sums over `threshold` clients or more, and a declared number of clients tell the server what they sent.
`SeedRun` attacks every view that these functions make of a run, and `allowed_views` lists the same views by name, from
the setting alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from securefed._messages import ClientId, Transcript
from securefed.attacks import views
from securefed.attacks._aggregates import separated
from securefed.attacks._base import View
from securefed.errors import TranscriptError


def sums_seen(transcript: Transcript, target: ClientId, clients: int, threshold: int, colluders: int) -> Iterator[View]:
    """Yield the views of a run in which the same clients take part in every round.

    The smallest sum that the setting allows holds the target and as few honest clients as the threshold leaves. A run
    sums over all clients, so the contributions of the others are subtracted.

    Args:
        transcript: the recorded run.
        target: the client attacked.
        clients: number of clients in a round.
        threshold: fewest clients over which a sum opens.
        colluders: clients that tell the server what they sent; those of highest number.
    """
    yield views.sum_only(transcript, target)
    if colluders:
        yield views.collusion(transcript, target, range(clients - colluders, clients))
    honest = max(threshold - colluders, 1)
    if honest < clients - colluders:
        yield replace(views.collusion(transcript, target, range(honest, clients)), view=views.SMALLEST_SUM)


def changing_sums(transcript: Transcript, target: ClientId, clients: int, colluders: int) -> View:
    """Return the view of a run in which clients come and go, less what declared colluders sent."""
    if not colluders:
        return replace(views.sum_only(transcript, target), view=views.CHANGING_SURVIVORS)
    seen = views.collusion(transcript, target, range(clients - colluders, clients))
    return replace(seen, view=views.CHANGING_SURVIVORS)


def one_client(observed: View) -> View | str:
    """Estimate the target's own messages from changing sums; return a view of them, or why that is impossible."""
    try:
        return separated(observed)
    except TranscriptError as error:
        return str(error)

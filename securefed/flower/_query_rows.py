"""Answer the statistics that a server asks over Flower: a site's part follows from the terms and its rows alone.

A message of type `query` asks for one of two things. Terms with a base sum the numbers in the replies of the app's
`@app.query`. Terms of a statistic (`securefed.statistics`) hold its settings, and the app's function for it computes
the site's part (`statistics`). The terms reach it from `secure_mod` alone, so that it answers nothing in the clear.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from securefed._tensors import Tensors
from securefed.errors import ConfigError, DataError
from securefed.flower._sum_messages import QUERY, arrays_of
from securefed.parties._terms import SumTerms

_PART: Final = "part"
_ASKED: ContextVar[SumTerms | None] = ContextVar("asked", default=None)
"""The terms that `secure_mod` accepted, while it calls the app for its part."""


def statistics(rows: Callable[[Context], Any]) -> Callable[[Message, Context], Message]:
    """Turn a function that reads a site's rows into the answer to the statistics of `SecureQueries.ask`.

        app = ClientApp(mods=[secure_mod])

        @app.query("statistic")
        @statistics
        def rows(context):
            return read_table(context.node_config["rows"])

    The server chooses the statistic; its settings stand in the terms, which the site's rules allowed (`SitePolicy`).
    The site's part leaves this SuperNode only inside the protected sum: without `secure_mod` there is no answer.

    Args:
        rows: returns the rows, as `Statistic.summand` takes them: a table with named columns, an array, or a pair
            (x, y). It is given Flower's context without the run's config, on which rows must not depend, since the
            server sets it.

    Returns:
        A function for `@app.query("statistic")`.
    """
    return _Answer(rows)


@dataclass(frozen=True)
class _Answer:
    """A function for `@app.query("statistic")`, in a class, since Flower's simulation engine pickles an app."""

    rows: Callable[[Context], Any]

    def __call__(self, message: Message, context: Context) -> Message:
        """Compute the part of the statistic that `secure_mod` accepted."""
        from securefed.statistics import from_terms  # noqa: PLC0415 - for apps that are asked for some

        terms = _ASKED.get()
        if terms is None:
            raise ConfigError("statistics are answered under secure_mod alone: ClientApp(mods=[secure_mod])")
        given = self.rows(Context(context.run_id, context.node_id, context.node_config, context.state, {}))
        statistic = from_terms(terms)
        part = statistic.summand(*given) if isinstance(given, tuple) else statistic.summand(given)
        arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in part.items()})
        return Message(RecordDict({_PART: arrays}), reply_to=message)


def phase_of_query(terms: bytes) -> str:
    """Return the name of a query, under which its client's state is kept: each has terms, and a sum, of its own."""
    return f"{QUERY}-{hashlib.sha256(terms).hexdigest()[:16]}"


def asks_for_statistic(terms: SumTerms, phase: str) -> bool:
    """Tell whether terms are those of a statistic, in a query."""
    return phase.startswith(QUERY) and not terms.base and terms.about is not None


def part_of(terms: SumTerms, call_app: Callable[[], Message]) -> Tensors:
    """Return this site's part of a statistic, which the app computes.

    Raises:
        DataError: the app replies with an error, or with something else.
    """
    token = _ASKED.set(terms)
    try:
        reply = call_app()
    finally:
        _ASKED.reset(token)
    if reply.has_error() or _PART not in reply.content.array_records:
        raise DataError('the app gave no part of a statistic; register @app.query("statistic") with @statistics')
    return arrays_of(reply.content.array_records[_PART])

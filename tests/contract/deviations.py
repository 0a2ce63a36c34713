"""What a deviating server may do to one client, drawn by hypothesis, and the data sets that the client may hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from securefed import Dataset, Public
from securefed._runtime.exchange_header import EVALUATE, MAX_DOUBLINGS, TRAIN

VICTIM: Final = 0
CLIENTS: Final = 3
ROWS, FEATURES, CLASSES = 5, 6, 3
PUBLIC: Final = Public(CLIENTS, CLIENTS, FEATURES, (ROWS,) * CLIENTS, CLASSES, 1.0)


def _data_sets() -> dict[str, Dataset]:
    """Data sets of one client with the same public facts: rows, features, bound, classes."""
    rng = np.random.default_rng(11)
    x, y = rng.uniform(-1, 1, (ROWS, FEATURES)), np.arange(ROWS) % CLASSES
    found = {
        "uniform": Dataset(x, y),
        "other labels": Dataset(x, np.array([2, 2, 1, 0, 2])),
        "one class": Dataset(x, np.full(ROWS, CLASSES - 1)),
        "tiny": Dataset(1e-9 * x, y),
        "zeros": Dataset(np.zeros_like(x), y),
        "corners": Dataset(np.sign(x), y),
        "ones": Dataset(np.ones_like(x), y),
        "one row": Dataset(np.repeat(x[:1], ROWS, 0), y),
        "one entry": Dataset(np.eye(ROWS, FEATURES), y),
    }
    assert {(d.rows, d.features, d.classes) for d in found.values()} == {(ROWS, FEATURES, CLASSES)}
    return found


DATA: Final = _data_sets()

# ---------------------------------------------------------------------------------------------------- schedules


@dataclass(frozen=True)
class Event:
    """What happens to the victim's message of one stage: the n-th request of the exchange."""

    request: int
    what: str
    salt: int


@dataclass(frozen=True)
class Ask:
    """One thing that the server does; the words are those of the strategies below."""

    stage: str
    kind: str
    number: str
    place: str
    doublings: int
    cohort: str
    broadcast: str
    power: int
    salt: int
    split: bool
    counted: str
    announced: str
    events: tuple[Event, ...]


EVENTS = (
    "lost request", "lost reply", "another header", "another body", "twice", "an older one before it", "upload at once",
)  # fmt: skip
BROADCASTS = (
    "honest", "zeros", "scaled", "huge", "random", "nan", "infinity", "another shape", "another type", "one missing",
    "one more", "the last one", "one entry scaled", "rank one", "negative",
)  # fmt: skip
HONEST = Ask("exchange", TRAIN, "next", "next", 0, "all", "honest", 0, 0, False, "true", "true", ())
LAST = "the last exchange"
DEVIATIONS: tuple[tuple[str, Any], ...] = (
    *(("counted", claim) for claim in (LAST, LAST, "never", "an older one", "one to come")),
    *(("number", number) for number in ("again", "jump")),
    *(("place", place) for place in ("again", "a later round", "the last attempt", "one attempt too many")),
    *(("doublings", doublings) for doublings in (1, 7, MAX_DOUBLINGS, MAX_DOUBLINGS + 1, -1)),
    *(("cohort", cohort) for cohort in ("one less", "one less", "without the victim", "a stranger")),
    *(("announced", what) for what in ("nothing", "false")),
    *(("stage", stage) for stage in ("commit", "commit", "reveal")),
    ("kind", EVALUATE), ("kind", EVALUATE), ("split", True), ("split", True),
)  # fmt: skip


def _ask(broadcast: str, power: int, salt: int, deviations: list[tuple[str, Any]], events: list[Event]) -> Ask:
    return replace(HONEST, broadcast=broadcast, power=power, salt=salt, events=tuple(events), **dict(deviations))


ASKS = st.builds(
    _ask,
    st.sampled_from(("honest", "scaled", "scaled", "huge", "huge", *BROADCASTS)),
    st.one_of(st.integers(0, 40), st.integers(-1074, 1023)),
    st.integers(0, 10**6),
    st.one_of(st.just([]), st.lists(st.sampled_from(DEVIATIONS), min_size=1, max_size=2)),
    st.one_of(
        st.just([]),
        st.lists(
            st.builds(Event, st.integers(0, 4), st.sampled_from(EVENTS), st.integers(0, 10**6)), min_size=1, max_size=2
        ),
    ),
)
SCHEDULES = st.lists(ASKS, min_size=1, max_size=4)
PAIRS = st.one_of(
    st.tuples(st.just("zeros"), st.sampled_from([name for name in sorted(DATA) if name != "zeros"])),
    st.lists(st.sampled_from(sorted(DATA)), min_size=2, max_size=2, unique=True).map(tuple),
)

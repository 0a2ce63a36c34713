"""A client that sits out voids the exchange for all; it is repeated, and the result is the one without the absence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed import Federation, InProcessTransport, LossyTransport, Message, Result
from securefed.defenses import Defense
from securefed.errors import RangeRefused
from securefed.testing._algorithm_checks import assert_same_run
from tests.combinations import of_each_family
from tests.contract.settings import CLIENTS, data, make
from tests.contract.test_parity import EXACT, NAMES, QUANTISED

ROUNDS = 3


class Absent:
    """A client's algorithm that fails in one way in the first attempt at some rounds."""

    def __init__(self, inner: Any, rounds: set[int], fails: Any) -> None:
        self.inner, self.rounds, self.fails = inner, set(rounds), fails
        self.calls = 0

    def contribute(self, client: Any, broadcast: Any, rng: Any) -> Any:
        call, self.calls = self.calls, self.calls + 1
        if call in self.rounds:
            return self.fails(self.inner.contribute(client, broadcast, rng))
        return self.inner.contribute(client, broadcast, rng)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def singular(computed: Any) -> Any:
    raise np.linalg.LinAlgError("singular matrix")


def too_large(computed: Any) -> Any:
    state, tensors = computed
    return state, {name: np.full_like(value, 1e200, np.float64) for name, value in tensors.items()}


def no_number(computed: Any) -> Any:
    state, tensors = computed
    return state, {name: np.full_like(value, np.nan, np.float64) for name, value in tensors.items()}


def refused(computed: Any) -> Any:
    raise RangeRefused("in the clear: the exchange is void, the bounds are doubled")


WAYS = {"singular": singular, "too large": too_large, "no number": no_number}
CALLS = {1: {0}, 3: {2}}
"""By client, which of its computations fail: the first of round 0, and (one was void) the first of round 1."""


def run(name: str, defense: Defense, fails: Any, lost: Any = None) -> Result:
    """Three rounds; the exchanges 0 and 2 are void."""

    def lossy(endpoints: Any) -> Any:
        return LossyTransport(InProcessTransport(endpoints), replies=lost or (lambda message: False))

    federation = Federation(make(name), data(), defense, seed=3, batched=False, transport=lossy)
    for client, calls in CALLS.items():
        node = federation.nodes[client]
        node.algorithm = Absent(node.algorithm, calls, fails)  # type: ignore[assignment]
    return federation.run(ROUNDS)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "defense"), of_each_family(NAMES, EXACT))
def test_a_run_with_clients_that_sit_out_is_the_run_with_as_many_void_exchanges(name: str, defense: str) -> None:
    """Bit for bit, with the repeats' randomness and doubled bounds, against sums in the clear of all contributions."""
    way = list(WAYS)[NAMES.index(name) % len(WAYS)]
    ours = run(name, EXACT[defense], WAYS[way])
    theirs = run(name, QUANTISED, refused)
    assert [len(entry.void) for entry in ours.history] == [1, 1, 0]
    assert [len(entry.void) for entry in theirs.history] == [1, 1, 0]
    assert [record.round for record in ours.transcript.records] == [1, 3, 4]
    assert_same_run(ours, theirs)
    assert set(ours.personal) == set(theirs.personal)
    for client, own in ours.personal.items():
        for tensor, value in own.items():
            np.testing.assert_array_equal(value, theirs.personal[client][tensor])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("defense", EXACT)
def test_the_repeat_keeps_the_survivors_of_the_void_exchange(defense: str, way: str) -> None:
    """Client 4 is lost in the void exchange: the repeat is without it, and the next round is with it again."""

    def lost(message: Message) -> bool:
        return (message.round, message.stage, message.sender) == (0, "upload", 4)

    ours = run("optimization/scaffold", EXACT[defense], WAYS[way], lost)
    everybody = tuple(range(CLIENTS))
    assert [record.cohort for record in ours.transcript.records] == [everybody[:4], everybody, everybody]
    assert [record.survivors for record in ours.transcript.records] == [everybody[:4], everybody, everybody]

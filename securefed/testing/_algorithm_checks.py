"""Checks that every algorithm must pass: it runs on five small clients, in the clear and under secure aggregation.

Each check is a function of an algorithm with small, quick settings. The clients have 4 to 8 rows of 6 features, with
three classes as labels, or with real responses if the algorithm refuses labels. A check raises `AssertionError` with
the broken rule, or an error of this package. `securefed.testing.parametrize_with_checks` runs them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from securefed._messages import SERVER, Aggregate, Message
from securefed._persistence.packing import pack, restore
from securefed._public import Public
from securefed._runtime.exchange_header import TRAIN
from securefed._runtime.federation import Federation
from securefed._runtime.history import Result
from securefed._runtime.run_options import RunOptions
from securefed._tensors import Tensors, add
from securefed._transports import InProcessTransport, LossyTransport
from securefed.algorithms._base import Algorithm, RoundOutcome
from securefed.algorithms._capabilities import SupportsBatches, SupportsPrivacyCost, supports
from securefed.algorithms._validation import check_contribution, check_object, check_packable, contribution_layout
from securefed.datasets._base import Dataset
from securefed.defenses._base import Defense, without_indicator
from securefed.defenses._chain import chain
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._secure_aggregation import secure_aggregation
from securefed.errors import DataError, SecureFedError

CLIENTS, FEATURES, CLASSES = 5, 6, 3
ROUNDS = 3
Method = Algorithm[Any, Any]
Losses = Sequence[tuple[str, tuple[int, ...]]]
"""For each exchange, the stage at which clients are lost, and these clients."""


def labelled_clients() -> list[Dataset]:
    """Return five small clients with class labels."""
    rng = np.random.default_rng(7)
    sizes = [4 + client for client in range(CLIENTS)]
    return [Dataset(rng.uniform(-1, 1, (rows, FEATURES)), np.arange(rows) % CLASSES) for rows in sizes]


def example_clients(algorithm: Method) -> list[Dataset]:
    """Return the clients on which an algorithm is checked: with real responses if it refuses labels."""
    clients = labelled_clients()
    try:
        _enrolled(algorithm, clients)
    except DataError:
        return [Dataset(data.x, data.labels() - 1.0) for data in clients]
    return clients


def check_methods(algorithm: Method) -> None:
    """Check that the object has all methods and returns a valid layout."""
    check_object(algorithm)
    contribution_layout(algorithm, Public.of(example_clients(algorithm)))


def check_contributions_match_the_layout(algorithm: Method) -> None:
    """Check that contributions of the first rounds have the layout's names and shapes, and stay within its bounds."""
    layout = contribution_layout(algorithm, Public.of(example_clients(algorithm)))
    for tensors in (tensors for step in _rounds(algorithm) for _, tensors in step.computed):
        check_contribution(algorithm, (None, tensors), layout)
        for spec in layout:
            largest = float(np.abs(np.asarray(tensors[spec.name], np.float64)).max(initial=0.0))
            assert np.isfinite(largest), f"contribute: tensor {spec.name!r} holds NaN or infinity"
            assert spec.bound is None or largest <= spec.bound, (
                f"contribute: tensor {spec.name!r} reaches {largest:g}, beyond the bound {spec.bound:g} of the layout"
            )


def check_randomness_comes_from_the_generator(algorithm: Method) -> None:
    """Check that equal random generators give equal states and contributions."""
    for ours, theirs in zip(_rounds(algorithm), _rounds(algorithm), strict=True):
        _same(ours.broadcast, theirs.broadcast, "start or combine: with equal generators, the broadcast")
        for (a, sent), (b, again) in zip(ours.computed, theirs.computed, strict=True):
            _same(sent, again, "contribute: with equal generators, the contribution")
            _same(pack(a), pack(b), "contribute: with equal generators, the state")


def check_contribute_changes_nothing_given(algorithm: Method) -> None:
    """Check that `contribute` leaves the given state and broadcast unchanged, as a round may be repeated."""
    for step in _rounds(algorithm):
        for client, state in enumerate(step.committed):
            before, sent = _copied(pack(state)), _copied(step.broadcast)
            algorithm.contribute(state, step.broadcast, np.random.default_rng([1, client]))
            _same(pack(state), before, "contribute changes the committed state in place: that state")
            _same(step.broadcast, sent, "contribute changes the broadcast in place: it")
            first = algorithm.contribute(state, step.broadcast, np.random.default_rng([1, client]))[1]
            again = algorithm.contribute(state, step.broadcast, np.random.default_rng([1, client]))[1]
            _same(first, again, "contribute remembers a call that was not committed: the contribution")


def check_states_pack_and_restore(algorithm: Method) -> None:
    """Check that a state that was stored and loaded gives the same broadcast and the same contribution.

    `pack` turns a state into tensors; `restore` lays them over a template, here the first state of the same party.
    """
    clients = example_clients(algorithm)
    server, fresh = _enrolled(algorithm, clients)
    template = server
    for number, step in enumerate(_rounds(algorithm)):
        check_packable(algorithm, step.server, "start")
        _same(algorithm.broadcast(restore(template, pack(step.server))), step.broadcast, "restored: the broadcast")
        for client, state in enumerate(step.committed):
            check_packable(algorithm, state, "enroll")
            rng = np.random.default_rng([number, client])
            sent = algorithm.contribute(restore(fresh[client], pack(state)), step.broadcast, rng)[1]
            _same(sent, step.computed[client][1], "of a restored state, the contribution")


def check_evaluation_matches_its_layout(algorithm: Method) -> None:
    """Check that `evaluate`, if the algorithm has it, returns the tensors that `evaluation_layout` names."""
    layout = algorithm.evaluation_layout(Public.of(example_clients(algorithm)))
    if not layout.specs or hasattr(algorithm, "noised_steps"):  # with noise of its own, evaluation is refused
        return
    for step in _rounds(algorithm):
        for state in step.committed:
            layout.check(algorithm.evaluate(state, step.broadcast), where=f"{type(algorithm).__name__}.evaluate")


def check_batches_agree(algorithm: Method) -> None:
    """Check that clients computed in one batch get the results of clients computed one by one, up to rounding."""
    given: Any = algorithm  # its type is not narrowed to that of the capability
    if not supports(given, SupportsBatches):
        return
    clients = example_clients(algorithm)
    together = Federation(algorithm, clients, seed=2).run(ROUNDS)
    alone = Federation(algorithm, clients, seed=2, batched=False).run(ROUNDS)
    # A batch adds in another order. Rows lie in [-1, 1]; the limits are 170 roundings of float32, 450 000 of float64.
    single = any(value.dtype == np.float32 for value in together.output.values())
    tolerance = 2e-5 if single else 1e-10
    for found, expected in [
        (together.output, alone.output),
        *((own, alone.personal[client]) for client, own in together.personal.items()),
    ]:
        for name, value in found.items():
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=tolerance)


def check_parity(algorithm: Method) -> None:
    """Check that a run under secure aggregation equals a run with quantised sums that are not masked."""
    largest_rounding(algorithm, _SECURE)


def largest_rounding(algorithm: Method, defense: Defense) -> float:
    """Check parity under an exact defence.

    Parity is two identities. Every sum differs from the floating-point sum of the same contributions by at most the
    plan's error. And the whole run equals, bit for bit, a run whose integers are summed without masks or encryption.

    Args:
        algorithm: the algorithm.
        defense: an exact defence, such as secure aggregation or Paillier.

    Returns:
        The largest difference between a sum and the sum in floating point.
    """
    worst = 0.0
    recording, clients = RecordingAlgorithm(algorithm), example_clients(algorithm)
    evaluated = algorithm.evaluation_layout(Public.of(clients)).names and not supports(algorithm, SupportsPrivacyCost)
    every = ROUNDS if evaluated else 0
    federation = Federation(recording, clients, defense, seed=3, batched=False)  # type: ignore[arg-type]
    ours = federation.run(ROUNDS, evaluate_every=every)
    trained = [record for record in ours.transcript.records if record.kind == TRAIN]
    assert len(recording.raw) == len(trained) * CLIENTS, "contribute was called once too often or seldom"
    for index, record in enumerate(trained):
        raw = recording.raw[index * CLIENTS : (index + 1) * CLIENTS]  # all clients of one exchange, one after the other
        for tensor in without_indicator(ours.plan).tensors:  # those of the algorithm, without the defence's own
            exact = sum(np.asarray(tensors[tensor.name], np.float64) for tensors in raw)
            difference = float(np.abs(record.total[tensor.name] - exact).max())
            worst = max(worst, difference)
            assert difference <= tensor.error, f"{tensor.name!r}: off by {difference:g}, planned {tensor.error:g}"
    theirs = Federation(algorithm, clients, _QUANTISED, seed=3, batched=False).run(ROUNDS, evaluate_every=every)
    assert_same_run(ours, theirs)
    return worst


def check_lost_clients(algorithm: Method) -> None:
    """Check that a run in which clients drop out at any stage equals the run of the other clients."""
    clients = example_clients(algorithm)
    stages = _SECURE.plan(algorithm.layout(Public.of(clients)), CLIENTS).stages
    losses: Losses = [(stage, lost) for stage in stages for lost in ((0,), (1, 3))]
    for lose in ("requests", "replies"):
        run_with_losses(algorithm, clients, losses, lose)


def check_odd_clients(algorithm: Method) -> None:
    """Check that unusual rows give finite results, or a named error before the first round."""
    for kind, change in ODD.items():
        clients = example_clients(algorithm)
        clients[1] = change(clients[1])
        try:
            federation = Federation(algorithm, clients, seed=2)
        except SecureFedError:
            continue
        result = federation.run(ROUNDS)
        for value in [*result.output.values(), *(v for own in result.personal.values() for v in own.values())]:
            assert np.isfinite(value).all(), f"a client with {kind} leaves NaN or infinity in the result"


CHECKS = (
    check_methods,
    check_contributions_match_the_layout,
    check_randomness_comes_from_the_generator,
    check_contribute_changes_nothing_given,
    check_states_pack_and_restore,
    check_evaluation_matches_its_layout,
    check_batches_agree,
    check_parity,
    check_lost_clients,
    check_odd_clients,
)

ODD: dict[str, Callable[[Dataset], Dataset]] = {
    "one row": lambda d: Dataset(d.x[:1], _targets(d)[:1]),
    "one class": lambda d: Dataset(d.x, np.zeros_like(_targets(d))),
    "constant features": lambda d: Dataset(np.full_like(d.x, 0.5), d.y),
    "zeros": lambda d: Dataset(np.zeros_like(d.x), d.y),
    "the same row again and again": lambda d: Dataset(np.repeat(d.x[:1], d.rows, 0), d.y),
}
"""Unusual rows of a client, by name."""
_SECURE, _QUANTISED = chain(secure_aggregation()), chain(Quantise())


@dataclass
class RecordingAlgorithm:
    """An algorithm that keeps every contribution as it is before a defence encodes it.

    Attributes:
        inner: the algorithm.
        raw: its contributions, in the order in which they were computed.
    """

    inner: Any
    raw: list[Tensors] = field(default_factory=list)

    def contribute(self, client: Any, broadcast: Tensors, rng: np.random.Generator) -> tuple[Any, Tensors]:
        """Keep what the algorithm contributes."""
        state, tensors = self.inner.contribute(client, broadcast, rng)
        self.raw.append(tensors)
        return state, tensors

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # of a copy that is being made, which has no attributes yet
            raise AttributeError(name)
        return getattr(self.inner, name)


def assert_same_run(ours: Result, theirs: Result) -> None:
    """Compare two runs bit for bit: survivors and sums of every exchange, evaluations, and all results.

    Args:
        ours: one run.
        theirs: the other.
    """
    assert len(ours.transcript.records) == len(theirs.transcript.records), "the runs have different numbers of sums"
    for a, b in zip(ours.transcript.records, theirs.transcript.records, strict=True):
        assert (a.round, a.kind, a.survivors) == (b.round, b.kind, b.survivors)
        _assert_same(a.encoded, b.encoded)
        _assert_same(a.total, b.total)
    _assert_same(ours.output, theirs.output)
    assert ours.personal.keys() == theirs.personal.keys(), "the runs have personal results of different clients"
    for client, personal in ours.personal.items():
        _assert_same(personal, theirs.personal[client])
    assert [entry.metrics for entry in ours.history] == [entry.metrics for entry in theirs.history]


def _assert_same(ours: Tensors, theirs: Tensors) -> None:
    assert ours.keys() == theirs.keys(), f"{sorted(ours)} and {sorted(theirs)} are different tensors"
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], strict=True)


def run_with_losses(algorithm: Method, clients: Sequence[Dataset], losses: Losses, lose: str) -> Result:
    """Run under secure aggregation while clients are lost, and compare with a plain run of the same survivors.

    An exchange is one attempt at a round's sum. One that loses too many clients gives none (it is void) and is
    repeated, so that there may be fewer rounds than exchanges.

    Args:
        algorithm: the algorithm.
        clients: their rows.
        losses: by number of the exchange, the stage and the clients that are lost there.
        lose: `requests` or `replies`, which messages are lost.

    Returns:
        The run under secure aggregation; it goes on until every loss was met.
    """

    def lossy(drop: Callable[[Message], bool], way: str, endpoints: Any) -> LossyTransport:
        return LossyTransport(InProcessTransport(endpoints), **{way: drop})

    with_losses = partial(lossy, partial(is_lost, losses), lose)
    # Not batched: the batches would depend on the losses. `max_void` is above the number of losses, so that many void
    # attempts at one sum do not end the run.
    settings: dict[str, Any] = {"seed": 5, "batched": False, "options": RunOptions(max_void=500)}
    ours = Federation(algorithm, clients, _SECURE, transport=with_losses, **settings)
    completed = 0

    def until_all_losses_are_met(entry: Any) -> None:
        nonlocal completed
        completed = entry.round + 1
        if entry.exchange + 1 >= len(losses):
            raise _AllLossesMet

    # All losses are met in one call of `run`: its regular end takes an exchange number (clients are told to commit the
    # last round), and a loss planned for that number would never be met. The second call has no round left to do.
    with suppress(_AllLossesMet):
        ours.run(len(losses), progress=until_all_losses_are_met)
    result = ours.run(completed)
    # The plain run: in each exchange the uploads of all but the survivors are lost; of one that gave no sum, all
    # uploads, so that it is void here too and the numbers of both runs agree.
    # `round` of records and messages is the number of the exchange.
    survivors = {record.round: record.survivors for record in result.transcript.records}

    def left_out(message: Message) -> bool:
        return message.stage == "upload" and message.sender not in survivors.get(message.round, ())

    without = partial(lossy, left_out, "replies")
    assert_same_run(result, Federation(algorithm, clients, _QUANTISED, transport=without, **settings).run(completed))
    return result


class _AllLossesMet(Exception):
    """Ends a run whose exchanges have met all the losses that were asked for."""


@dataclass(frozen=True)
class _Round:
    """One round by hand: what it started from, and what every client computed."""

    server: Any
    committed: list[Any]
    broadcast: Tensors
    computed: list[tuple[Any, Tensors]]


def _enrolled(algorithm: Method, clients: Sequence[Dataset]) -> tuple[Any, list[Any]]:
    """Return the server's first state, and each client's."""
    public, rng = Public.of(clients), np.random.default_rng
    server = algorithm.start(public, rng(0))
    return server, [algorithm.enroll(data, public, rng([0, index])) for index, data in enumerate(clients)]


def _rounds(algorithm: Method) -> Iterator[_Round]:
    """The first rounds of a run without a message layer, in which every contribution is counted."""
    server, states = _enrolled(algorithm, example_clients(algorithm))
    for number in range(ROUNDS):
        broadcast = algorithm.broadcast(server)
        rngs = [np.random.default_rng([number, client]) for client in range(CLIENTS)]
        computed = [algorithm.contribute(state, broadcast, rng) for state, rng in zip(states, rngs, strict=True)]
        yield _Round(server, states, broadcast, computed)
        total = computed[0][1]
        for _, tensors in computed[1:]:
            total = add(total, tensors)
        server = algorithm.combine(server, Aggregate(total, tuple(range(CLIENTS))))
        followed = algorithm.broadcast(server) if algorithm.needs_outcome else None
        states = [algorithm.commit(tentative, RoundOutcome(True, followed)) for tentative, _ in computed]


def is_lost(losses: Losses, message: Message) -> bool:
    """Return whether a message is lost, from the stage of its exchange and the client that sends or receives it.

    `message.round` is the number of the exchange, and not of the round, of which void exchanges are attempts too.
    """
    party = message.receiver if message.sender == SERVER else message.sender
    if message.round >= len(losses):
        return False
    stage, clients = losses[message.round]
    return message.stage == stage and party in clients


def _same(found: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    assert set(found) == set(expected), f"{what} has other fields"
    for name, value in expected.items():
        assert np.array_equal(found[name], value, equal_nan=np.asarray(value).dtype.kind == "f"), (
            f"{what} differs in {name!r}"
        )


def _copied(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.array(value) for name, value in tensors.items()}


def _targets(data: Dataset) -> Any:
    assert data.y is not None
    return data.y

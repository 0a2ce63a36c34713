"""Attacks that read a client's data off what it refuses, each beside the client as it was, which they do read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest

from securefed import SERVER, Dataset, Message, Public, Tensors, Terms, chain, identity
from securefed._messages import REFUSAL
from securefed._persistence.packing import nest
from securefed._runtime import sum_node as node_module
from securefed._runtime.client import ClientNode
from securefed._runtime.exchange_context import CountedExchanges
from securefed._runtime.exchange_header import EVALUATE, TRAIN, ExchangeHeader
from securefed._runtime.sum_memory import SumMemory
from securefed.algorithms import SSI, FedAvg
from securefed.defenses import Defense, Identities, clip, local_gaussian, secure_aggregation, skellam
from securefed.errors import ClientOut, TooFewSurvivors
from tests.combinations import first_ones
from tests.contract.deviating_server import RUN, OldOrder, World, compare, terms_of
from tests.contract.deviations import CLASSES, CLIENTS, FEATURES, HONEST, PUBLIC, ROWS, VICTIM, Event
from tests.contract.settings import make

DATA = Dataset(np.random.default_rng(2).uniform(-0.3, 0.3, (ROWS, FEATURES)), np.arange(ROWS) % CLASSES)
GRAM = DATA.x.T @ DATA.x
COHORT = tuple(range(CLIENTS))
ACTIVE = chain(secure_aggregation(identities=Identities.generate(CLIENTS), pipelined=True, verify=True))
ORDERS = pytest.mark.parametrize(("order", "reads"), [(OldOrder, True), (ClientNode, False)], ids=["old", "new"])


class AnyBasis(SSI):
    """SSI that takes any finite basis: the order of a client's steps alone must do."""

    def check_broadcast(self, broadcast: Tensors, public: Public) -> None:
        """No rule."""


def error_of(gram: np.ndarray) -> float:
    """The relative error of an estimate of the victim's Gram matrix."""
    return float(np.linalg.norm(gram - GRAM) / np.linalg.norm(GRAM))


@dataclass
class Oracle:
    """A client that is sent requests for uploads, all of one exchange, and what comes back."""

    node: ClientNode
    kind: str
    sent: int = 0
    uploads: int = 0

    def beyond(self, broadcast: Tensors) -> bool:
        """Whether the client says that it is out of range."""
        body = ExchangeHeader(COHORT, self.kind, 0).body() | nest("broadcast", broadcast)
        body |= CountedExchanges.of(COHORT, {}, None).body()
        reply = self.node.handle(Message(RUN, 0, "upload", SERVER, VICTIM, body))
        self.sent += 1
        self.uploads += reply.stage != REFUSAL
        return reply.stage == REFUSAL and reply.body["name"].tobytes() == b"RangeRefused"


def bisect(beyond: Callable[[float], bool], low: float, high: float, steps: int) -> float:
    """The scale, in powers of two, from which on something is out of range."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(2.0**middle) else (middle, high)
    return float(2.0 ** ((low + high) / 2))


def directions() -> dict[tuple[int, int], np.ndarray]:
    """One for each entry of the Gram matrix: unit vectors, and sums of two."""
    unit = np.eye(FEATURES)
    pairs = combinations_with_replacement(range(FEATURES), 2)
    return {(i, j): unit[i] if i == j else unit[i] + unit[j] for i, j in pairs}


def gram_of(forms: dict[tuple[int, int], float]) -> np.ndarray:
    """The matrix S of v' S v along `directions`, by polarisation."""
    gram = np.zeros((FEATURES, FEATURES))
    for (i, j), form in forms.items():
        value = form if i == j else (form - forms[i, i] - forms[j, j]) / 2
        gram[i, j] = gram[j, i] = value
    return gram


def client(order: type[ClientNode], terms: Terms, data: Dataset = DATA) -> ClientNode:
    return order(VICTIM, RUN, terms, data)


@ORDERS
def test_1171_messages_to_one_client_do_not_show_its_gram_matrix(order: type[ClientNode], reads: bool) -> None:
    """Binary search for the scale at which the captured energy c^2 v' S v of a basis c v leaves its bound."""
    terms = Terms.of(AnyBasis(rank=1, tolerance=0.0), PUBLIC, ACTIVE)
    oracle = Oracle(client(order, terms), TRAIN)
    bound = next(spec.bound for spec in terms.schema.layouts[TRAIN] if spec.name == "captured")
    assert bound is not None
    forms = {
        pair: bound / bisect(lambda c, v=v: oracle.beyond({"basis": c * v[:, None]}), 0, 26, 55) ** 2
        for pair, v in directions().items()
    }
    assert oracle.sent == 1155
    assert not oracle.uploads
    assert (error_of(gram_of(forms)) < 1e-12) if reads else (error_of(gram_of(forms)) >= 0.5)


@ORDERS
def test_evaluations_that_nobody_planned_do_not_show_the_loss(order: type[ClientNode], reads: bool) -> None:
    """Binary search for the scale of a model at which the client's loss leaves its bound."""
    algorithm = FedAvg(learning_rate=0.02, local_steps=2)
    terms = Terms.of(algorithm, PUBLIC, ACTIVE)
    oracle = Oracle(client(order, terms), EVALUATE)
    bound = next(spec.bound for spec in terms.schema.layouts[EVALUATE] if spec.name == "loss")
    assert bound is not None
    rng = np.random.default_rng(3)
    model = {"weight": rng.normal(size=(CLASSES, FEATURES)), "bias": np.zeros(CLASSES)}
    scaled: Callable[[float], Tensors] = lambda c: {name: c * value for name, value in model.items()}  # noqa: E731
    found = bisect(lambda c: oracle.beyond(scaled(c)), 0, 40, 60)
    loss = float(algorithm.evaluate(oracle.node.state.committed, scaled(found))["loss"])
    assert not oracle.uploads
    assert (abs(loss / bound - 1) < 1e-9) if reads else (abs(loss / bound - 1) >= 0.5)


class Indicator:
    """A server and all clients but one, in exchanges that follow the protocol: they read who was out off the sum."""

    def __init__(self, terms: Terms, algorithm_data: Dataset = DATA) -> None:
        self.world = World(terms, algorithm_data)
        self.exchanges = self.out = 0
        self.declined = False

    def beyond(self, broadcast: Tensors) -> bool:
        """Whether the sum, less what the colluding clients know of it, is noise."""
        number, self.exchanges = self.exchanges, self.exchanges + 1
        header = ExchangeHeader(COHORT, TRAIN, 0, (), number // 8, number % 8)
        try:
            summed = self.world.exchange(number, header, broadcast, CountedExchanges.of(COHORT, {}, None), {})
        except ClientOut:
            self.out += 1
            return True
        except TooFewSurvivors:
            self.declined = True
            return False
        self.declined |= VICTIM not in summed.record.survivors
        return False


@pytest.mark.parametrize("limit", first_ones([node_module.MOST_OUT, 10**6]), ids=["with the limit", "without it"])
def test_void_exchanges_read_with_all_other_clients_end_after_eight_absences(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit an exchange, to a server with all other clients: 44 of them show one entry, 210 the Gram matrix."""
    monkeypatch.setattr(
        node_module, "MOST_OUT", limit
    )  # of the run; the ledger's limits are those of a base and in all
    monkeypatch.setattr(SumMemory, "checked_absences", lambda self, source: self)
    terms = Terms.of(AnyBasis(rank=1, tolerance=0.0), PUBLIC, chain(secure_aggregation()))
    server = Indicator(terms)
    bound = next(spec.bound for spec in terms.schema.layouts[TRAIN] if spec.name == "captured")
    assert bound is not None
    vectors = directions()
    brackets = dict.fromkeys(vectors, (0.0, 10.0))

    def narrow(pair: tuple[int, int]) -> None:
        low, high = brackets[pair]
        middle = (low + high) / 2
        beyond = server.beyond({"basis": 2.0**middle * vectors[pair][:, None]})
        brackets[pair] = (low, middle) if beyond else (middle, high)

    def form(pair: tuple[int, int]) -> float:
        return bound / 2.0 ** sum(brackets[pair])  # at the bracket's middle

    for _ in range(10):
        for pair in vectors:
            if not server.declined:  # what it learned so far is all that it will
                narrow(pair)
    error = error_of(gram_of({pair: form(pair) for pair in vectors}))
    if limit > 8:
        assert not server.declined
        assert error < 0.03
        for _ in range(34):
            narrow((0, 0))
        assert abs(form((0, 0)) / GRAM[0, 0] - 1) < 1e-9  # 44 exchanges for this one
    else:
        assert (server.out, server.declined) == (8, True)
        assert error >= 0.5


NOISED: dict[str, Defense] = {
    "clip and skellam": chain(clip(1.0), skellam(1.0), secure_aggregation()),
    "local noise": chain(clip(1.0), local_gaussian(1.0)),
}


@ORDERS
@pytest.mark.parametrize("defense", NOISED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_under_noise_no_refusal_depends_on_the_data(order: type[ClientNode], reads: bool, defense: str) -> None:
    """The product of a basis of 1e308 with one row overflows; without the row it is zeros, and uploaded."""
    terms = Terms.of(AnyBasis(rank=1, tolerance=0.0), PUBLIC, NOISED[defense])
    shown = []
    for x in (np.zeros_like(DATA.x), np.ones_like(DATA.x)):
        world = World(terms, Dataset(x, DATA.y), order)
        broadcast = {"basis": np.full((FEATURES, 1), 1e308)}
        world.play(0, ExchangeHeader(COHORT, TRAIN, 0), broadcast, CountedExchanges.of(COHORT, {}, None), {})
        shown.append(world.wire.seen)
    assert (shown[0] != shown[1]) is reads


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("scale", "stage"), [(1.0, "upload"), (9e11, "upload"), (1e38, REFUSAL)])
def test_a_private_method_in_the_clear_refuses_no_row(scale: float, stage: str) -> None:
    """DP-SGD adds its noise whatever the rows' gradients are; models that no server sends are refused unseen."""
    terms = terms_of(make("private/fedavg"), identity())
    start = terms.algorithm.broadcast(terms.algorithm.start(PUBLIC, np.random.default_rng(0)))
    broadcast = {name: np.full_like(value, scale) for name, value in start.items()}
    shown = []
    for x in (np.zeros_like(DATA.x), np.ones_like(DATA.x), np.sign(DATA.x)):
        world = World(terms, Dataset(x, DATA.y))
        world.play(0, ExchangeHeader(COHORT, TRAIN, 0), broadcast, CountedExchanges.of(COHORT, {}, None), {})
        shown.append(world.wire.seen)
    assert shown[0] == shown[1] == shown[2]
    assert [reply[2] for reply in shown[0]] == [stage]


def test_the_bits_that_are_left_are_few() -> None:
    """Which of n exchanges a client was out of: at most 8, so less than 8 log2(n) bits for n from 8 on."""
    for n in (8, 44, 1171, 10**6):
        assert math.log2(sum(math.comb(n, k) for k in range(node_module.MOST_OUT + 1))) <= 8 * math.log2(n)


OUT = replace(HONEST, broadcast="random", power=-6)
CLAIMS = [
    replace(HONEST, counted="the last exchange"),
    replace(HONEST, counted="the last exchange", announced="nothing"),
    replace(HONEST, counted="the last exchange", stage="commit"),
]


def failing(name: str) -> Any:
    """A method whose computation fails for data other than zeros, at one broadcast."""
    made = make(name)

    class Failing(type(made)):  # type: ignore[misc]
        def contribute(self, client, broadcast, rng):
            if broadcast["weight"].any() and np.abs(client.data.x).max() > 0:
                raise np.linalg.LinAlgError("of this client's data")
            return super().contribute(client, broadcast, rng)

    return Failing(**vars(made))


@pytest.mark.parametrize("defense", [ACTIVE, chain(secure_aggregation())], ids=["active", "curious"])
@pytest.mark.parametrize("name", first_ones(["optimization/scaffold", "personalized/fedadmm"]))
def test_a_claim_that_a_client_was_counted_does_not_show_whether_it_was_out(name: str, defense: Defense) -> None:
    """The server alone: it asks for an upload, leaves the sum closed, and says that it counted the client."""
    terms = terms_of(failing(name), defense)
    for claim in CLAIMS:
        for out in (OUT, replace(OUT, events=(Event(3, "lost reply", 0),))):
            world = compare(terms, ("uniform", "zeros"), [HONEST, out, claim])
            assert world.wire.nodes[VICTIM].state.out == 1  # the other data set's client was not


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_settling_fails_without_a_word_under_noise_alone() -> None:
    """Local noise hides nothing else: what raises while a client settles its last round must not be seen either."""

    class Unsettled(type(make("optimization/scaffold"))):  # type: ignore[misc]
        def commit(self, client, outcome):
            if np.abs(client.data.x).max() > 0:
                raise np.linalg.LinAlgError("of this client's data")
            return super().commit(client, outcome)

    terms = terms_of(Unsettled(**vars(make("optimization/scaffold"))), NOISED["local noise"])
    for second in (replace(HONEST, stage="commit"), HONEST):
        compare(terms, ("zeros", "uniform"), [HONEST, second])

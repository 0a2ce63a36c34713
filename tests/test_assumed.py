"""What the threat model assumes, shown: what happens where an assumption does not hold, and that nothing notices."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from securefed import Dataset, Federation, InProcessTransport, Layout, Message, RunOptions, TensorSpec, chain
from securefed import _catalogue as catalogue
from securefed._persistence.packing import nest, unnest
from securefed._transports import Transport
from securefed.defenses import Defense, secure_aggregation, sum_once, threshold_paillier
from securefed.defenses._homomorphic import insecure_deal, lattice
from securefed.defenses._secure_aggregation import SecureAggregation, verification
from securefed.defenses._secure_aggregation.graph import design_sparse_graph
from securefed.errors import RoundVoid

RNG = np.random.default_rng(9)
DATA = [Dataset(RNG.standard_normal((10, 4)), np.arange(10) % 2) for _ in range(4)]
VERIFIED = chain(secure_aggregation(verify=True))


def federation(defense: Defense, **options: Any) -> Federation:
    return Federation(catalogue.algorithms.make("optimization/fedavg", learning_rate=0.1), DATA, defense, **options)


def test_the_in_process_transport_opens_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(socket.socket):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", Closed)
    with pytest.raises(AssertionError, match="was opened"):  # positive control
        socket.create_server(("127.0.0.1", 0))
    federation(VERIFIED).run(2)


class OtherModel:
    """A server whose broadcast to some clients is another model than to the rest."""

    def __init__(self, inner: Transport, victims: tuple[int, ...]) -> None:
        self.inner, self.victims = inner, victims

    def exchange(self, outgoing: Mapping[int, bytes], timeout: float | None = None) -> Mapping[int, bytes]:
        sent = {party: self._altered(data) if party in self.victims else data for party, data in outgoing.items()}
        return self.inner.exchange(sent, timeout)

    @staticmethod
    def _altered(data: bytes) -> bytes:
        message = Message.decode(data)
        broadcast = unnest("broadcast", message.body)
        other = nest("broadcast", {n: v + np.arange(v.size).reshape(v.shape) for n, v in broadcast.items()})
        return replace(message, body={**message.body, **other}).encode()


@pytest.mark.parametrize("victims", [(0,), (0, 1, 2, 3)])
def test_in_the_clear_a_broadcast_that_is_not_the_models_is_not_noticed(victims: tuple[int, ...]) -> None:
    """To one client, or to all: a sum in the clear does not speak of what contributions start from."""
    honest = federation(chain()).run(3).output
    deceived = federation(chain(), transport=lambda endpoints: OtherModel(InProcessTransport(endpoints), victims)).run(
        3
    )
    assert deceived.uncommitted == ()
    assert any(np.abs(deceived.output[name] - value).max() > 1e-3 for name, value in honest.items())


def test_a_model_that_the_server_chooses_and_sends_to_all_clients_is_not_noticed() -> None:
    """What clients are told is bound to be the same for all, not to be right."""
    honest = federation(VERIFIED).run(3).output
    chosen = federation(VERIFIED)
    vectors = chosen.state.vectors
    chosen.state = replace(chosen.state, vectors={name: value + 1 for name, value in vectors.items()})
    assert any(np.abs(chosen.run(3).output[name] - value).max() > 1e-3 for name, value in honest.items())


class Slow(InProcessTransport):
    """Takes the time from one reply to the next, on a clock that contributions move; client 0 is slow."""

    def arrivals(self, outgoing: Mapping[int, bytes], timeout: float | None = None) -> Iterator[tuple[int, bytes]]:
        started = NOW[0]
        for party, data in super().arrivals(outgoing, timeout):
            SECONDS.setdefault(party, []).append(NOW[0] - started)
            yield party, data
            started = NOW[0]


SECONDS: dict[int, list[float]] = {}
NOW = [0.0]


def test_how_long_a_client_computes_shows_in_when_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    SECONDS.clear()
    run = federation(chain(secure_aggregation()), transport=Slow, batched=False)
    kind = type(run.algorithm)
    contribute = kind.contribute

    def slowly(self: Any, client: Any, *arguments: Any, **options: Any) -> Any:
        NOW[0] += 0.3 if np.array_equal(client.data.x, DATA[0].x) else 0.01
        return contribute(self, client, *arguments, **options)

    monkeypatch.setattr(kind, "contribute", slowly)
    run.run(1)
    assert max(SECONDS[0]) > 0.2 > max(max(SECONDS[client]) for client in (1, 2, 3))


@dataclass(frozen=True)
class RolledBack(SecureAggregation):
    """Client 0 is put back to before its upload and uploads something else."""

    shown: ClassVar[list[np.ndarray]] = []

    def client_step(self, state: Any, request: Message, encoded: Any) -> Any:
        if request.stage == self.upload and state.client == 0:
            RolledBack.shown += [
                super(RolledBack, self).client_step(state, request, {**encoded, "w": value})[1]["masked/w"]
                for value in (encoded["w"], encoded["w"] + np.arange(5))
            ]
        return super().client_step(state, request, encoded)


def test_a_state_that_is_used_for_two_uploads_shows_their_difference() -> None:
    RolledBack.shown.clear()
    values = {client: {"w": RNG.uniform(-1, 1, 5)} for client in range(3)}
    sum_once(chain(RolledBack()), Layout((TensorSpec("w", (5,), 1.0, 32),)), values)
    first, second = RolledBack.shown
    assert np.array_equal(second - first, np.arange(5, dtype=first.dtype))
    assert not np.array_equal(first[1:], first[:-1])  # masked, each by itself


@pytest.mark.parametrize("tries", [0, 8, 20])
def test_security_that_is_raised_by_g_bits_withstands_so_many_tries(tries: int) -> None:
    """The union bound; and what was found without them does not withstand the tries."""
    assert design_sparse_graph(100, 0.1, 0.1, security=40 + tries).insecure + tries <= -40
    assert design_sparse_graph(100, 0.1, 0.1).insecure + 20 > -40


def test_a_wrong_tag_of_one_client_fails_the_check_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    made = verification.TagModuli.tag

    def wrong(moduli: verification.TagModuli, key: bytes, client: int, *arguments: Any) -> tuple[int, int]:
        tag = made(moduli, key, client, *arguments)
        return tag if client != 1 else (tag[0] ^ 1, tag[1] ^ 1)

    monkeypatch.setattr(verification.TagModuli, "tag", wrong)
    run = federation(VERIFIED, options=RunOptions(max_void=2))
    with pytest.raises(RoundVoid, match=r"not that of the contributions of clients \[0, 1, 2, 3\]"):
        run.run(2)
    assert all(node.state.tentative_round == 0 for node in run.nodes.values())  # no client committed it


def test_lattice_parameters_are_within_the_standard_for_128_bits() -> None:
    """homomorphicencryption.org, 2018, table 1: at degree 8192 the modulus has 218 bits at most, at 4096 109."""
    assert lattice.DEGREE == 8192
    assert 109 < sum(lattice.PRIMES) <= 218


def test_the_plan_of_threshold_decryption_states_what_its_proofs_rest_on() -> None:
    plan = chain(threshold_paillier(keys=insecure_deal(2, 3))).plan(Layout((TensorSpec("w", (5,), 1.0),)), 3)
    assert any("SHA-256 as a random oracle" in sentence for sentence in plan.assumptions)
    assert any("RSA with public exponent n" in sentence for sentence in plan.assumptions)

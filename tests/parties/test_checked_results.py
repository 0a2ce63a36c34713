"""Clients check the published result of a sum, the last or only one of a run included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed._tensors import encode
from securefed.defenses import Identities, new_identity, public_identity, secure_aggregation
from securefed.defenses._secure_aggregation import verification
from securefed.errors import ConfigError, DataError, MalformedError, SumRefused
from securefed.parties import SumClient, SumResult, SumServer, SumTerms
from tests.combinations import each_value

CLIENTS = 4
KEYS = [new_identity() for _ in range(CLIENTS)]
PUBLIC = Identities({client: public_identity(key) for client, key in enumerate(KEYS)})
VERIFIED = secure_aggregation(identities=PUBLIC, verify=True)
BASE = {"w": np.full(3, 0.5)}


def agreed(defense: Any = VERIFIED, **options: Any) -> SumTerms:
    given = {"base": False, "largest_weight": 8.0, "metrics": ["rows"]} | options
    return SumTerms.like({"w": np.zeros(3)}, clients=CLIENTS, defense=defense, **given)


ANNOUNCE = verification.announce


def lying(total: Any, *more: Any) -> Any:
    return ANNOUNCE({name: np.full_like(values, 12345) for name, values in total.items()}, *more)


def played(
    terms: SumTerms, rounds: int = 1, lie: int = -1, given_up: bool = False
) -> tuple[list[SumClient], SumResult]:
    """Play rounds; in round `lie` the server announces another sum. A round before them may be given up."""
    clients, server = [SumClient(terms, i, identity=KEYS[i]) for i in range(CLIENTS)], SumServer(terms)
    base = BASE if terms.base else None
    if given_up:
        requests = server.open(base)
        server.receive({i: clients[i].receive(data) for i, data in requests.items()})
        server.abandon()
    for round in range(rounds):
        with pytest.MonkeyPatch.context() as patched:
            if round == lie:
                patched.setattr(verification, "announce", lying)
            server.open(base)
            while server.result is None:
                given = [({"w": np.arange(3.0) + i}, i + 1, {"rows": i + 1.0}) for i in range(CLIENTS)]
                server.receive({
                    i: clients[i].receive(data, given[i][0], weight=given[i][1], metrics=given[i][2], base=base)
                    for i, data in server.outgoing.items()
                })  # fmt: skip
    return clients, server.result


@pytest.mark.parametrize(("differences", "rounds"), each_value([None, False, True], [1, 2]))
def test_every_client_checks_what_the_user_reads(rounds: int, differences: bool | None) -> None:
    terms = agreed(base=differences is not None, differences=differences)
    clients, result = played(terms, rounds)
    base = BASE if differences is not None else None
    for client in clients:
        found = client.check(result, base=base)
        np.testing.assert_array_equal(found.mean["w"], result.mean["w"])
    np.testing.assert_allclose(result.mean["w"], np.arange(3.0) + 2.0, atol=1e-9)
    lies: list[tuple[type[Exception], dict[str, Any]]] = [
        (SumRefused, {"mean": {"w": result.mean["w"] + 1e-6}}),
        (SumRefused, {"total": {"w": 2 * result.total["w"]}}),
        (SumRefused, {"metrics": {"rows": 11.0}}),
        (SumRefused, {"metrics": {}}),
        (SumRefused, {"metrics": {"columns": result.metrics["rows"]}}),
        (SumRefused, {"weight": 11.0}),
        (SumRefused, {"error": {"w": 0.0}}),
        (SumRefused, {"survivors": (0, 1, 2)}),
        (SumRefused, {"announced": result.announced[:-1] + bytes([result.announced[-1] ^ 1])}),
        (MalformedError, {"announced": b""}),
        (MalformedError, {"announced": result.announced[:-9]}),
    ]
    for error, lie in lies:
        with pytest.raises(error):
            clients[0].check(replace(result, **lie), base=base)


def test_a_result_is_checked_after_a_round_that_was_given_up() -> None:
    """Results count completed rounds, and clients those that were given up, too."""
    clients, result = played(agreed(), given_up=True)
    assert result.round == 0
    for client in clients:
        np.testing.assert_array_equal(client.check(result).mean["w"], result.mean["w"])


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_server_that_lies_about_the_last_sum_is_found_out(rounds: int) -> None:
    clients, result = played(agreed(), rounds, lie=rounds - 1)
    for client in clients:
        with pytest.raises(SumRefused, match="not that of the contributions"):
            client.check(result)


def test_what_cannot_be_checked_is_said() -> None:
    clients, result = played(agreed(secure_aggregation(identities=PUBLIC)))
    assert result.announced == b""
    with pytest.raises(ConfigError, match="verify=True"):
        clients[0].check(result)
    clients, result = played(agreed(), 2)
    with pytest.raises(ConfigError, match="waits for the result of round 1"):
        clients[0].check(replace(result, round=0))
    with pytest.raises(ConfigError, match="holds no key"):
        SumClient(agreed(), 0, identity=KEYS[0]).check(result)


def test_a_result_travels_as_bytes_and_is_checked() -> None:
    for options in ({}, {"base": True, "differences": True}):
        terms = agreed(**options)
        clients, result = played(terms, 2)
        base = BASE if terms.base else None
        read = SumResult.from_bytes(result.to_bytes(terms), terms)
        for client in clients:
            np.testing.assert_array_equal(client.check(read, base=base).mean["w"], result.mean["w"])
        assert (read.survivors, read.round, read.weight) == (result.survivors, result.round, result.weight)
        with pytest.raises(DataError, match="of other terms"):
            SumResult.from_bytes(result.to_bytes(terms), agreed(metrics=[], base=False))
        for data in (b"", b"{}", result.to_bytes(terms)[:-3], bytes(2**23), encode({"mean/w": np.zeros(3)})):
            with pytest.raises(DataError):
                SumResult.from_bytes(data, terms)


def test_a_result_of_differences_is_checked_with_the_model_of_its_round_alone() -> None:
    terms = agreed(base=True, differences=True)
    clients, result = played(terms)
    thawed = SumClient.thaw(terms, 1, clients[1].freeze(), identity=KEYS[1])
    for client in (clients[0], thawed):
        client.check(result, base=BASE)
        with pytest.raises(ConfigError, match="not the one that this client computed its update from"):
            client.check(result, base={"w": np.zeros(3)})


def test_a_restored_server_and_client_still_check(tmp_path: Path) -> None:
    terms = agreed()
    clients, server = [SumClient(terms, i, identity=KEYS[i]) for i in range(CLIENTS)], SumServer(terms)
    server.open()
    while server.result is None:
        given = {"metrics": {"rows": 1.0}}
        server.receive({i: clients[i].receive(d, {"w": np.ones(3)}, **given) for i, d in server.outgoing.items()})
    again = SumServer.thaw(terms, server.freeze())
    client = SumClient.thaw(terms, 2, clients[2].freeze(), identity=KEYS[2])
    assert again.result is not None
    np.testing.assert_array_equal(client.check(again.result).mean["w"], server.result.mean["w"])

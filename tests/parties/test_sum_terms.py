"""What parties agree on before a sum, and whom they refuse."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securefed import SERVER, Message, _messages, chain
from securefed.defenses import (
    Identities,
    ckks,
    clip,
    gaussian,
    new_identity,
    public_identity,
    quantise,
    secure_aggregation,
    skellam,
)
from securefed.defenses._differential_privacy import CentralGaussian, InsecureGaussian
from securefed.defenses._homomorphic import InsecurePaillier
from securefed.errors import (
    ConfigError,
    DataError,
    MalformedError,
    MessageRefused,
    PlanError,
    RangeRefused,
    RoundVoid,
    TermsDiffer,
    VersionRefused,
)
from securefed.parties import SumClient, SumHelper, SumServer, SumTerms
from securefed.parties._envelope import unwrap, wrap
from tests.parties.helpers import play
from tests.parties.sums import (
    BASE,
    CLIENTS,
    check,
    given,
    parties,
    private_terms,
    terms_of,
)


def test_messages_of_other_versions_terms_and_runs_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = terms_of(secure_aggregation())
    client, server = SumClient(terms, 0), SumServer(terms)
    request = server.open(BASE)[0]
    with pytest.raises(MalformedError, match="no message of securefed"):
        client.receive(b"hello")
    with pytest.raises(TermsDiffer, match="give all parties the same SumTerms"):
        SumClient(terms_of(secure_aggregation(), rounds=3), 0).receive(request)
    monkeypatch.setattr(_messages, "PROTOCOL_VERSION", 2)
    with pytest.raises(VersionRefused, match="speaks version 1"):
        client.receive(request)
    server.receive({0: request}, more=True)
    assert "speaks version 1" in server.refusals[0]
    monkeypatch.undo()
    client.receive(request)  # positive control, and the client now belongs to this run
    assert b"refusal" in client.receive(SumServer(terms).open(BASE)[0])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_message_may_arrive_in_any_type_that_holds_bytes(kind: Any) -> None:
    terms = terms_of(secure_aggregation())
    request = SumServer(terms).open(BASE)[0]
    assert b"refusal" not in SumClient(terms, 0).receive(kind(request))
    assert unwrap(terms.digest, kind(wrap(terms.digest, b"message")), 0) == b"message"
    with pytest.raises(MalformedError, match="no message of securefed"):
        unwrap(terms.digest, kind(b"x" * 100), 0)


def test_identities_are_given_by_the_site_and_rotate_between_runs() -> None:
    keys = {i: new_identity() for i in range(CLIENTS)}
    public = Identities({i: public_identity(key) for i, key in keys.items()})
    terms = terms_of(secure_aggregation(identities=public))
    members = {i: SumClient(terms, i, identity=key) for i, key in keys.items()}
    check(play(SumServer(SumTerms.from_bytes(terms.to_bytes())), members, given(), base=BASE), range(CLIENTS))
    with pytest.raises(ConfigError, match="give client 0 its private identity"):
        SumClient(terms, 0)
    with pytest.raises(ConfigError, match="not that of its public identity"):
        SumClient(terms, 0, identity=keys[1])
    with pytest.raises(ConfigError, match="no public identities"):
        SumClient(terms_of(secure_aggregation()), 0, identity=keys[0])
    keys[0] = new_identity()  # a new run with new terms
    rotated = terms_of(secure_aggregation(identities=Identities({i: public_identity(k) for i, k in keys.items()})))
    assert rotated.digest != terms.digest
    members = {i: SumClient(rotated, i, identity=key) for i, key in keys.items()}
    check(play(SumServer(rotated), members, given(), base=BASE), range(CLIENTS))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"largest_weight": 0}, "largest_weight"),
        ({"bounds": {"x": 1.0}}, "no summed tensors"),
        ({"local": ("*",)}, "at least one tensor"),
        ({"cohort": 9}, "cohort"),
        ({"base": False, "differences": True}, "differences"),
        ({"epsilon": 1.0}, "adds none"),
        ({"defense": chain(clip(1.0), skellam(1.0), secure_aggregation())}, "leave largest_weight and metrics out"),
    ],
)
def test_terms_that_do_not_fit_together_are_refused(settings: Any, words: str) -> None:
    settings = {"defense": secure_aggregation()} | settings
    with pytest.raises((ConfigError, DataError), match=words):
        terms_of(**settings).plan  # noqa: B018


def test_the_plan_says_what_no_model_means() -> None:
    assert "different models is not noticed" in str(terms_of(secure_aggregation(), base=False).plan)
    assert "different models is not noticed" not in str(terms_of(secure_aggregation()).plan)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("rounds", value) for value in (float("nan"), 2.5, "3", True, -1)],
        *[("max_void", value) for value in (float("inf"), float("nan"), 0, "8", None)],
        *[("epsilon", value) for value in (float("nan"), "1", 0.0)],
        *[("base", value) for value in ("no", 0, None)],
        *[("differences", "no"), ("weighted", "no"), ("clients", "5"), ("cohort", 2.5), ("largest_weight", "1")],
        *[("metrics", 1), ("metrics", [["loss", "1"]]), ("local", [1]), ("no_such_key", 1)],
        *[("tensors/shape", value) for value in ([-1], "3", [2.5])],
        *[("tensors/bound", value) for value in ("1", None, float("nan"))],
        *[("tensors/ring", "64"), ("tensors/integer", "no"), ("tensors/name", 3), ("tensors/no_such_key", 1)],
        *[
            ("local", "seen"),
            ("metrics", "loss"),
            ("tensors", {}),
            ("defense/verify", "no"),
            ("defense/no_such_key", 1),
        ],
    ],
)
def test_terms_that_were_edited_by_hand_are_read_or_refused_by_name(field: str, value: Any) -> None:
    content = json.loads(private_terms(rounds=3, epsilon=1e3).to_bytes())
    assert SumTerms.from_bytes(json.dumps(content).encode()).digest == private_terms(rounds=3, epsilon=1e3).digest
    content["terms"]["largest_weight"] = 1  # an integer for a float: the same terms
    assert SumTerms.from_bytes(json.dumps(content).encode()).digest == private_terms(rounds=3, epsilon=1e3).digest
    place, _, key = field.rpartition("/")
    facts = content["terms"]
    {"": facts, "tensors": facts["tensors"][0], "defense": facts["defense"][-1]}[place][key] = value
    with pytest.raises((ConfigError, DataError)):
        SumTerms.from_bytes(json.dumps(content).encode())


def test_parties_refuse_bytes_for_terms_and_say_how_to_read_them() -> None:
    for party in (SumClient, SumServer):
        with pytest.raises(ConfigError, match=r"SumTerms.from_bytes\(data\)"):
            party(
                SumTerms.like({"w": np.zeros(3)}, clients=3, defense=None).to_bytes(),
                *(() if party is SumServer else (0,)),
            )


def test_floats_for_an_integer_of_the_terms_are_summed_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    terms = SumTerms.like({"b": 0}, clients=3, defense=None, base=False)
    for value in (1, 0.9):
        assert not caplog.text
        server = SumServer(terms)
        server.open()
        SumClient(terms, 0).receive(server.outgoing[0], {"b": value})
    assert "'b' is of type float64, and the terms say integers" in caplog.text


def test_bytes_that_are_no_terms_are_refused_by_name() -> None:
    for data in (b"", b"\xff", b"null", b"[" * 100_000, b'{"format": 1}'):
        with pytest.raises(DataError):
            SumTerms.from_bytes(data)


@pytest.mark.parametrize(
    "settings",
    [
        {"bounds": 0.0},
        {"bounds": "3"},
        {"largest_weight": "x"},
        {"largest_weight": 1e308},
        {"local": "seen"},
        {"metrics": "loss"},
        {"clients": 2.5},
        {"rounds": 1.5},
    ],
)
def test_settings_of_another_type_are_named(settings: Any) -> None:
    with pytest.raises(ConfigError):
        SumTerms.like(BASE, **{"clients": 5, "defense": None} | settings)


def test_numpy_s_numbers_make_the_same_terms() -> None:
    ours = SumTerms.like(BASE, clients=5, defense=None, rounds=2, bounds=3.0, metrics={"loss": 2.0})
    numpy_s = SumTerms.like(
        BASE,
        clients=np.int64(5),
        defense=None,
        rounds=np.int32(2),
        bounds=np.float32(3),
        metrics={"loss": np.float32(2)},
    )
    assert SumTerms.from_bytes(numpy_s.to_bytes()).digest == ours.digest
    with pytest.raises(PlanError, match="at least 3"):
        SumTerms.like(BASE, clients=2, defense=secure_aggregation())


def test_numpy_s_numbers_in_a_defence_make_the_same_terms() -> None:
    """A server that builds its terms in code and clients that read them from a file have one digest."""

    def terms(number: Any) -> SumTerms:
        noised = chain(clip(number(0.5)), skellam(number(2.0)), secure_aggregation(threshold=4))
        return SumTerms.like(BASE, clients=5, bounds=1.0, defense=noised, local=("seen",))

    ours = terms(float)
    for number in (np.float64, np.float32):
        numpy_s = terms(number)
        assert numpy_s.digest == SumTerms.from_bytes(numpy_s.to_bytes()).digest == ours.digest


@pytest.mark.parametrize("change", [{"receiver": 1}, {"round": -1}, {"stage": "nonsense"}, {"body": {}}])
def test_a_stray_message_does_not_bind_a_client_to_its_run(change: Any, tmp_path) -> None:
    terms = terms_of(secure_aggregation())
    members, server = parties(terms), SumServer(terms)
    members[0] = SumClient(terms, 0, file=tmp_path / "client")
    request = Message.decode(unwrap(terms.digest, SumServer(terms).open(BASE)[0], SERVER))
    assert b"refusal" in members[0].receive(wrap(terms.digest, replace(request, **change).encode()))
    assert members[0].run is None
    members[0] = SumClient(terms, 0, file=tmp_path / "client")
    check(play(server, members, given(), base=BASE), range(CLIENTS))
    assert members[0].run == server.run


def test_a_key_holder_answers_in_one_run_and_an_empty_name_is_none() -> None:
    terms = terms_of(InsecurePaillier(bits=512))
    helper = SumHelper(terms)

    def ask(run: str) -> bytes:
        return helper.receive(wrap(terms.digest, Message(run, 0, "key", SERVER, helper.party, {}).encode()))

    with pytest.raises(MessageRefused, match="names no run"):
        ask("")
    assert ask("first")  # the control
    for other in ("second", ""):
        with pytest.raises(MessageRefused):
            ask(other)


COARSE_SUMS: dict[str, Any] = {
    "ckks": {"defense": ckks()},
    "32 bits": {"defense": secure_aggregation(), "ring": 32},
    "16 bits": {"defense": chain(quantise(16), secure_aggregation())},
}


@pytest.mark.parametrize("name", COARSE_SUMS)
def test_coarse_sums_need_declared_bounds_and_are_then_as_near_as_the_plan_says(name: str) -> None:
    """Under default bounds and weights of 2^20 a mean of entries of .3 was 212 off under CKKS."""
    update, coarse = {"w": np.linspace(-0.3, 0.3, 7), "seen": np.array(3)}, COARSE_SUMS[name]
    declared = {"w": 0.5, "seen": 8.0}
    for bounds in (None, {"seen": 8.0}):
        with pytest.raises(
            ConfigError, match=r"sums 'w' with an error .* not declared .* give SumTerms.like bounds=8.0"
        ):
            SumTerms.like(update, clients=3, base=False, bounds=bounds, **coarse)
    if name != "32 bits":  # where integers and metrics keep 64 bits
        with pytest.raises(ConfigError, match="sums 'seen'"):
            SumTerms.like(update, clients=3, base=False, bounds={"w": 0.5}, **coarse)
        with pytest.raises(ConfigError, match=r"sums 'loss' .* give SumTerms.like metrics={'loss': 10.0, ...}"):
            SumTerms.like(update, clients=3, base=False, bounds=declared, metrics=("loss",), **coarse)
    terms = SumTerms.like(update, clients=3, base=False, bounds=declared, metrics={"loss": 2.0}, **coarse)
    mine = {i: {"update": update, "metrics": {"loss": 1.0}} for i in range(3)}
    result = play(SumServer(terms), parties(terms), mine)
    assert np.abs(result.mean["w"] - update["w"]).max() <= result.error["w"] < (1e-3 if name == "16 bits" else 1e-8)
    private = SumTerms.like({"w": update["w"]}, clients=3, defense=chain(clip(1.0), coarse["defense"]))
    assert not private.weighted  # a clip bounds all


def test_the_plan_says_what_weights_below_the_largest_cost() -> None:
    update = {"w": np.linspace(-1, 1, 7)}
    for weight in (1.0, 2.0**20):
        terms = SumTerms.like(
            update, clients=3, defense=secure_aggregation(), bounds=1.0, ring=32, largest_weight=weight
        )
        (said,) = (line for line in terms.plan.assumptions if "where every client's weight is 1" in line)
        promised = float(said.partition("at most ")[2].partition(" ")[0])
        assert (promised < 1e-7) == (weight == 1.0)
        assert (promised > 1e-4) == (weight == 2.0**20)


@pytest.mark.parametrize("weight", [600, 1, 1.0, lambda: 1.0])
def test_terms_without_a_largest_weight_weigh_all_alike_and_refuse_a_weight(weight: Any) -> None:
    """Entries of 1e-6 came back 13 % off, divided by a default largest weight of 2^20."""
    terms = SumTerms.like({"w": np.zeros(4)}, clients=3, defense=secure_aggregation(), base=False)
    assert not terms.weighted and SumTerms(terms.tensors, 3, 3, terms.defense).weighted is False
    server, members = SumServer(terms), parties(terms)
    small = {i: {"update": {"w": np.full(4, (i + 1) * 1e-6)}} for i in range(3)}
    with pytest.raises(ConfigError, match=r"SumTerms.like\(..., largest_weight=...\), .* or leave "):
        play(server, members, {i: {**mine, "weight": weight} for i, mine in small.items()})
    server.abandon()
    result = play(server, parties(terms), small)
    np.testing.assert_allclose(result.mean["w"], 2e-6, rtol=1e-5)
    assert result.error["w"] < 1e-9


def test_statistics_of_batch_norm_are_refused_under_noise() -> None:
    model = {"w": np.zeros(3), "bn.running_var": np.ones(3)}
    noise = chain(clip(1.0), skellam(1.0), secure_aggregation())
    with pytest.raises(ConfigError, match=r"may make the variance 'bn.running_var' negative.*GroupNorm"):
        SumTerms.like(model, clients=30, defense=noise)
    SumTerms.like(model, clients=30, defense=noise, local=("*running_*",))
    SumTerms.like(model, clients=30, defense=secure_aggregation())


@pytest.mark.parametrize(("clients", "says"), [(4, True), (400, False)])
def test_noise_longer_than_an_update_is_said(clients: int, says: bool) -> None:
    """4 clients, 30 000 entries, z = 1 for 3 survivors: sqrt(30 000 * 4 / 3) / 4 = 50 clips."""
    noise = chain(clip(1.0), skellam(1.0), secure_aggregation())
    plan = SumTerms.like({"w": np.zeros(30_000)}, clients=clients, defense=noise).plan
    assert any("about 50 times as long as a clipped update" in line for line in plan.assumptions) == says
    assert any("The noise of the mean is about" in line for line in plan.assumptions) == says


def test_a_budget_on_noise_that_is_not_accounted_for_is_refused_with_the_terms() -> None:
    """Not only when the server starts. Noise from a seed hides nothing from a party that knows it."""
    seeded = chain(clip(1.0), InsecureGaussian(CentralGaussian(2.0), 1))
    with pytest.raises(ConfigError, match=r"adds noise that is not accounted for"):
        SumTerms.like(BASE, clients=5, defense=seeded, local=("seen",), epsilon=3.0)
    with pytest.raises(ConfigError, match=r"adds none"):
        SumTerms.like(BASE, clients=5, defense=chain(clip(1.0)), local=("seen",), epsilon=3.0)
    secret = chain(clip(1.0), gaussian(2.0))  # positive control
    assert SumTerms.like(BASE, clients=5, defense=secret, local=("seen",), epsilon=30.0).budget() is not None


def test_terms_of_more_clients_than_memory_holds_are_refused_by_name() -> None:
    """A server proposes terms to the sites of `secure_mod`: a kilobyte of them must not take gigabytes."""
    few = terms_of(cohort=CLIENTS).to_bytes()

    def proposed(clients: int) -> bytes:
        return few.replace(b'"clients": 5', b'"clients": %d' % clients)

    assert SumTerms.from_bytes(proposed(10**6)).clients == 10**6  # the control
    tracemalloc.start()
    for clients in (2**20 + 1, 10**9, 10**12, 10**30):
        with pytest.raises(ConfigError, match=f"clients must be an integer between 1 and {2**20}; got {clients}"):
            SumTerms.from_bytes(proposed(clients))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_sum_in_the_clear_has_to_be_written_out() -> None:
    with pytest.raises(TypeError, match="'defense'"):
        SumTerms.like(BASE, clients=3)  # type: ignore[call-arg]
    in_the_clear = SumTerms.like(BASE, clients=3, defense=None)
    assert "every contribution in the clear" in str(in_the_clear.plan)


@pytest.mark.parametrize("hidden", [False, True])
def test_values_far_beyond_a_bound_end_the_round_by_name_as_far_as_the_server_may_know(hidden: bool) -> None:
    """In the clear a client says so; where uploads are hidden the server learns that some client sat out."""
    defense = secure_aggregation() if hidden else chain(quantise())
    terms = SumTerms.like({"w": np.zeros(2)}, clients=3, defense=defense, base=False, bounds=1.0)
    error, says = (RoundVoid, "a client sat out of an attempt: its own log says why") if hidden else (
        RangeRefused, "void 8 times, .* declare larger bounds, or look for the client that diverges"
    )  # fmt: skip
    mine = {i: {"update": {"w": np.full(2, 1e12 if i == 1 else 0.5)}} for i in range(3)}
    with pytest.raises(error, match=says):
        play(SumServer(terms), parties(terms), mine)

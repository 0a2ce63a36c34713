"""A transcript is attacked as it stands: what is missing is named with its cost, wrong hyper-parameters are told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits

from securefed import Dataset, Federation, Transcript, audit_transcript, chain
from securefed._auditing.registered.transcript_finding import (
    OPEN_DIRECTIONS,
    OTHER_RUN,
    RECOVERED,
    TranscriptFinding,
)
from securefed.algorithms import DSGD, SSI, FedAvg
from securefed.attacks import Reconstruction, Target, View
from securefed.attacks._diagnosis import EXPLAINED, diagnose, explained
from securefed.defenses import secure_aggregation
from securefed.errors import ConfigError, TranscriptError
from securefed.problems import SoftmaxRegression
from securefed.recording import Recording
from securefed.recording._recording import public_of

RNG = np.random.default_rng(3)
ROWS = [Dataset(RNG.uniform(0, 1, (5, 6))) for _ in range(4)]
LABELLED = [Dataset(RNG.uniform(0, 1, (1, 6)), np.array([k % 3])) for k in range(3)]
SOFTMAX = SoftmaxRegression(l2=0.0)


def fedavg(rate: float = 0.1, steps: int = 3) -> FedAvg:
    return FedAvg(problem=SOFTMAX, learning_rate=rate, local_steps=steps)


def run(algorithm, clients, defense=None, rounds=5) -> Transcript:
    return Federation(algorithm, clients, defense, seed=0).run(rounds).transcript


def test_our_own_run_from_its_file_with_and_without_the_truth(tmp_path) -> None:
    run(SSI(rank=2), ROWS).save(tmp_path / "run.transcript")
    transcript = Transcript.load(tmp_path / "run.transcript")
    found = audit_transcript(transcript, SSI(rank=2), clients=ROWS, target=1)
    server = next(item for item in found.findings if item.view == "server")
    assert (server.word, server.attack) == (RECOVERED, "gram/power")
    assert server.leakage > 1 - 1e-6
    blind = audit_transcript(transcript, SSI(rank=2), target=1)
    assert np.isnan(blind.findings[0].leakage)
    assert "server, gram by gram/power from 5 rounds: recovered" in str(blind)
    assert found.to_json()["findings"][0]["leakage"] > 0.99
    assert blind.to_json()["findings"][0]["leakage"] is None


def test_under_secure_aggregation_the_servers_view_is_named_as_closed() -> None:
    found = audit_transcript(run(SSI(rank=2), ROWS, chain(secure_aggregation())), SSI(rank=2))
    assert {item.view for item in found.findings} == {"sum only"}
    assert any(line.startswith("server: ") and "not in the clear" in line for line in found.skipped)


@pytest.mark.exhaustive
def test_wrong_hyper_parameters_are_told_from_an_attack_that_fails() -> None:
    transcript = run(fedavg(), LABELLED)
    chosen = {"attacks": ["gradient_inversion/fit"], "classes": 3}
    right = audit_transcript(transcript, fedavg(), **chosen).findings[0]
    assert (right.word, right.control, right.lacks) == (RECOVERED, None, ())
    for wrong in (fedavg(rate=0.11), fedavg(steps=4)):
        item = audit_transcript(transcript, wrong, **chosen).findings[0]
        assert (item.explained, item.control, item.word) == (False, True, OTHER_RUN)
        assert any("not those given" in line for line in item.lacks)
    # the control's own control: what no attack solves is not blamed on the hyper-parameters
    hard = replace(fedavg(), batch_size=1, local_steps=3)
    many = [Dataset(RNG.uniform(0, 1, (4, 6)), np.arange(4) % 3) for _ in range(3)]
    item = audit_transcript(run(hard, many, rounds=2), hard, **chosen).findings[0]
    assert item.word != OTHER_RUN


@pytest.mark.exhaustive
def test_of_candidates_the_one_that_explains_the_messages_is_chosen() -> None:
    transcript = run(fedavg(), LABELLED)
    rates = [0.05, 0.1, 0.2]
    found = audit_transcript(
        transcript, [fedavg(rate) for rate in rates], attacks=["gradient_inversion/fit"], classes=3, target=2
    )
    assert found.algorithm == fedavg(0.1)
    misfits = dict(zip(rates, (misfit for _, misfit in found.tried), strict=True))
    assert misfits[0.1] < 1e-6
    assert min(misfits[0.05], misfits[0.2]) > 1e-3


def imported(broadcasts: set[int], kind: type = np.float64) -> Recording:
    ours = run(SSI(rank=2), ROWS)
    out = Recording(rows=[5] * 4, features=6)
    for k, record in enumerate(ours.records):
        sent = record.broadcast if k in broadcasts else {}
        updates = {i: ours.contributions[record.round, i] for i in record.survivors}
        out.round(sent, {i: {n: np.asarray(v, kind) for n, v in update.items()} for i, update in updates.items()})
    return out


def test_an_incomplete_transcript_is_attacked_as_far_as_it_goes() -> None:
    some = audit_transcript(imported({0, 1, 3, 4}).finish({}), SSI(rank=2), attacks=["gram/power"])
    assert any("1 of 5 rounds" in line and "left out" in line for line in some.findings[0].lacks)
    none = audit_transcript(imported(set()).finish({}), SSI(rank=2))
    assert none.findings == ()
    assert any("gram/power" in line and "no broadcast" in line for line in none.skipped)
    coarse = audit_transcript(imported(set(range(5)), np.float32).finish({}), SSI(rank=2), attacks=["gram/power"])
    assert coarse.findings[0].explained
    assert any("7 digits, not 16" in line for line in coarse.findings[0].lacks)


def test_a_method_that_follows_its_clients_is_attacked_up_to_the_gap() -> None:
    from securefed.algorithms import FedPG  # noqa: PLC0415 - one test needs it

    method = FedPG(rank=2, rho=1.0, step_size=0.01, local_steps=1)
    ours = run(method, ROWS, rounds=12)
    out = Recording(rows=[5] * 4, features=6)
    for k, record in enumerate(ours.records):
        updates = {i: ours.contributions[record.round, i] for i in record.survivors}
        out.round({} if k == 9 else record.broadcast, updates)
    item = audit_transcript(out.finish({}), method, attacks=["duals/fedpg"]).findings[0]
    assert item.rounds == 9
    assert any("exchange 9" in line and "only the 9" in line for line in item.lacks)


def test_bad_input_is_refused_by_name() -> None:
    transcript = run(DSGD(problem=SOFTMAX), LABELLED, rounds=1)
    with pytest.raises(ConfigError, match="numbered 0 to 2"):
        audit_transcript(transcript, DSGD(problem=SOFTMAX), target=3)
    with pytest.raises(ConfigError, match="candidates"):
        audit_transcript(transcript, [])
    with pytest.raises(ConfigError, match=r"must number \[1, 1, 1\]"):
        audit_transcript(transcript, DSGD(problem=SOFTMAX), clients=ROWS)
    with pytest.raises(ConfigError, match="nearest known one"):
        audit_transcript(transcript, DSGD(problem=SOFTMAX), attacks=["gradient_inversion/fi"])
    del transcript.meta["rows"]
    with pytest.raises(TranscriptError, match="does not state rows"):
        audit_transcript(transcript, DSGD(problem=SOFTMAX))


def test_what_cannot_be_one_run_is_refused_before_it_is_attacked() -> None:
    def spoilt(change) -> Transcript:
        transcript = run(SSI(rank=2), ROWS, rounds=2)
        change(transcript)
        return transcript

    def record(**fields):
        return lambda t: t.records.__setitem__(1, replace(t.records[1], **fields))

    def meta(**facts):
        return lambda t: t.meta.update(facts)

    for change, words in (
        (record(round=0), "exchange 0 follows exchange 0"),
        (record(survivors=(0, 0, 1)), "each once"),
        (record(survivors=(0, 9)), "numbered 0 to 3"),
        (record(broadcast={"basis": np.zeros((3, 3))}), "exchange 1, broadcast.*shape"),
        (lambda t: t.contributions[1, 2].update(product=np.full((6, 2), np.nan)), "client 2.*NaN"),
        (lambda t: t.sent.extend(s for s in tuple(t.sent) if s.message.sender == 1), "client 1 uploads twice"),
        (meta(rows=[5, 5, 5]), "4 clients, and no list"),
        (meta(rows=[5, 5, 5, -5]), "-5 as its rows of client 3"),
        (meta(features=0), "features"),
        (meta(feature_bound=float("inf")), "feature_bound"),
    ):
        with pytest.raises(TranscriptError, match=words):
            audit_transcript(spoilt(change), SSI(rank=2))
    assert audit_transcript(spoilt(lambda t: None), SSI(rank=2)).findings  # the control


@pytest.mark.parametrize(("method", "words"), [(SSI(rank=3), r"product \(6, 2\)"), (fedavg(), "classes")])
def test_messages_of_another_algorithm_are_told_by_their_shapes(method, words) -> None:
    found = audit_transcript(run(SSI(rank=2), ROWS), method)
    assert any(line.startswith("every attack that replays") for line in found.skipped)
    assert {item.word for item in found.findings} <= {"not checked"}
    right = audit_transcript(run(SSI(rank=2), ROWS), SSI(rank=2))  # the control
    assert not any(line.startswith("every attack") for line in right.skipped)


def test_broadcasts_of_another_shape_and_stated_sizes_beyond_the_messages_are_told() -> None:
    transcript = run(SSI(rank=2), ROWS)
    transcript.records = [replace(r, broadcast={"basis": np.zeros((3, 3))}) for r in transcript.records]
    assert "broadcasts are basis (3, 3)" in audit_transcript(transcript, SSI(rank=2)).skipped[0]
    huge = run(SSI(rank=2), ROWS)
    huge.meta["features"] = 10**9
    assert "messages are" in audit_transcript(huge, SSI(rank=2)).skipped[0]
    long = run(fedavg(), LABELLED)
    long.meta["rows"] = [10**10] * 3
    found = audit_transcript(long, fedavg(rate=0.11), classes=3)  # wrong, so that a control would be run
    assert all(item.control is None for item in found.findings)
    assert any("generic/probe" in line and "the limit is 1 GiB" in line for line in found.skipped)


def test_a_search_that_fails_is_not_blamed_on_hyper_parameters_that_explain_another_view() -> None:
    rng = np.random.default_rng(0)
    rng.uniform(0, 1, (4, 5, 6))
    clients = [Dataset(rng.uniform(0, 1, (1, 6)), np.array([k % 3])) for k in range(3)]
    found = audit_transcript(run(fedavg(), clients, rounds=4), fedavg(), classes=3)
    words = {item.view: item.word for item in found.findings}
    assert words["server"] == RECOVERED
    assert words["sum only"] != OTHER_RUN


def test_what_was_learned_of_a_clients_draws_is_said() -> None:
    def said(**diagnostics) -> str:
        found = Reconstruction("samples", np.zeros((3, 2)), residual=1e-15, diagnostics=diagnostics)
        return TranscriptFinding("server", "gradient_inversion/fit", 2, found, True, None, ()).draws

    assert said() == ""
    batches = (((0, 2), (0, 1)), ((1, 2), (0, 2)))
    assert "(numbered as recovered): 0+2 then 0+1; 1+2 then 0+2." in said(draws="found", batches=batches)
    assert said(draws="found", batches=batches * 2).endswith("; and so on, 4 rounds in all.")
    assert "draws batches, not searched for: many; full ones stand in" in said(draws="not searched for: many")


def test_what_rounding_leaves_at_a_high_condition_is_not_blamed_on_hyper_parameters() -> None:
    """The README's own run: digits have columns without variance, so that later rounds of SSI stand still."""
    x = load_digits().data / 16
    clients = [Dataset(part) for part in (x[:600], x[600:1200], x[1200:])]
    transcript = run(SSI(rank=5), clients, chain(secure_aggregation()), rounds=10)
    (found,) = audit_transcript(transcript, SSI(rank=5), attacks=["gram/power"]).findings
    assert (found.word, found.control) == (OPEN_DIRECTIONS, None)  # the misfit is 1.6e-6, which alone said otherwise
    exact, target = View("server", 0, (), {}), Target(SSI(rank=5), public_of(transcript))
    cases = ((1e12, 9e-5, True), (1e30, 2e-4, False), (1e9, 2e-6, False), (np.nan, 2e-6, False), (1e12, 1e-7, True))
    for condition, misfit, known in cases:
        estimate = Reconstruction("gram", np.eye(2), residual=misfit, condition=condition)
        assert explained(estimate, exact) is known
        said = " ".join(diagnose(estimate, exact, target))
        assert ("rounding leaves at a condition of" in said) == (known and misfit > EXPLAINED)

"""The round loop: commit and roll-back, void rounds, refusals, checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securefed import (
    SERVER,
    Dataset,
    Federation,
    InProcessTransport,
    Layout,
    LossyTransport,
    Message,
    Public,
    RunOptions,
    TensorSpec,
    chain,
)
from securefed.algorithms import DSGD, SSI, FedAvg, FedPG, LoSAC
from securefed.defenses import Budget, PoissonSampling, clip, gaussian, secure_aggregation
from securefed.defenses._fixed_point import Quantise
from securefed.errors import (
    BudgetSpent,
    ConfigError,
    DataError,
    DivergenceError,
    RangeRefused,
    RoundVoid,
    StorageError,
)
from tests.combinations import each_value


def data(clients: int = 4, seed: int = 0) -> list[Dataset]:
    rng = np.random.default_rng(seed)
    return [Dataset(rng.uniform(-1, 1, (5 + i, 6)), np.arange(5 + i) % 3) for i in range(clients)]


def outputs_equal(a: Any, b: Any) -> None:
    assert set(a.output) == set(b.output)
    for name in a.output:
        np.testing.assert_array_equal(a.output[name], b.output[name])


# --- what a federation refuses before anything runs -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "error", "says"),
    [
        ([], DataError, "at least one client"),
        ([np.zeros((0, 3))], DataError, "non-empty"),
        ([np.array([[1.0, np.nan]])], DataError, "NaN"),
        ([np.ones((2, 3)), np.ones((2, 4))], DataError, "client 1 has 4 features"),
    ],
)
def test_bad_data_is_refused_by_name(clients, error, says) -> None:
    with pytest.raises(error, match=says):
        Federation(SSI(rank=1), [Dataset(x) for x in clients])


def test_a_rank_above_the_features_and_a_cohort_above_the_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match="rank"):
        Federation(SSI(rank=7), data())
    with pytest.raises(DataError, match=r"client 1 is a ndarray; give securefed\.Dataset"):
        Federation(SSI(rank=2), [data()[0], np.ones((5, 6))])  # type: ignore[list-item]
    for seed in (-1, 0.5, "a", None):
        with pytest.raises(ConfigError, match="seed must be an integer"):
            Federation(SSI(rank=2), data(), seed=seed)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"cohort must be an integer between"):
        Federation(SSI(rank=2), data(), cohort=5)
    with pytest.raises(ConfigError, match=r"threshold|clients"):
        Federation(SSI(rank=2), data(2), chain(secure_aggregation()))


def test_an_entry_beyond_the_declared_range_is_refused() -> None:
    with pytest.raises(DataError, match="feature_bound"):
        Public.of(data(), feature_bound=0.5)


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    def run(seed: int) -> Any:
        return Federation(FedAvg(local_steps=3, batch_size=2), data(), seed=seed, cohort=2).run(4)

    outputs_equal(run(1), run(1))
    assert not np.array_equal(run(1).output["weight"], run(2).output["weight"])


def test_a_lost_request_and_a_lost_reply_lead_to_the_same_run() -> None:
    """The client that never heard and the client that was never counted both resume from their committed state."""

    def lossy(**kind: Any) -> Any:
        return lambda endpoints: LossyTransport(InProcessTransport(endpoints), **kind)

    def lost(message: Message) -> bool:
        party = message.receiver if message.sender == SERVER else message.sender
        return message.round in (1, 2, 4) and party == 2

    algorithm = LoSAC(learning_rate=0.002, local_steps=2, blocks=2)
    runs = [
        Federation(algorithm, data(), seed=1, transport=lossy(**{kind: lost})).run(6)
        for kind in ("requests", "replies")
    ]
    outputs_equal(*runs)
    assert [entry.survivors for entry in runs[0].history][1] == (0, 1, 3)


def test_values_beyond_the_plan_void_the_round_and_double_the_range() -> None:
    class Narrow(SSI):
        def layout(self, public: Public) -> Layout:
            return Layout(tuple(replace(spec, bound=spec.bound / 64) for spec in super().layout(public)))

    wide = Federation(SSI(rank=2, tolerance=0.0), data(), chain(secure_aggregation())).run(3)
    narrow = Federation(Narrow(rank=2, tolerance=0.0), data(), chain(secure_aggregation()))
    result = narrow.run(3)
    assert "bounds doubled" in result.history[0].void[0]
    assert not result.history[1].void
    np.testing.assert_allclose(result.output["basis"], wide.output["basis"], atol=1e-9)
    assert not [s.message for s in result.transcript.sent if s.message.stage == "refusal"]
    assert [entry.survivors for entry in result.history] == [(0, 1, 2, 3)] * 3

    clear = Federation(Narrow(rank=2, tolerance=0.0), data(), chain(Quantise())).run(3)  # here a client says so
    assert "bounds doubled" in clear.history[0].void[0]
    refusals = [s.message for s in clear.transcript.sent if s.message.stage == "refusal"]
    assert refusals
    assert all(message.body["text"].size == 0 for message in refusals)  # and sends no value


def test_a_client_that_sat_out_of_eight_exchanges_declines_all_others() -> None:
    class Narrow(SSI):
        def layout(self, public: Public) -> Layout:
            return Layout(tuple(replace(spec, bound=spec.bound / 2**40) for spec in super().layout(public)))

    federation = Federation(Narrow(rank=2), data(), chain(secure_aggregation()), options=RunOptions(max_void=20))
    with pytest.raises(RangeRefused, match=r"RangeRefused: 'product' reaches .* takes no further part"):
        federation.run(1)
    assert {node.state.out for node in federation.nodes.values()} == {8}


@pytest.mark.parametrize("defense", [Quantise(), secure_aggregation()])
def test_values_far_beyond_a_bound_end_a_simulated_run_by_name(defense: Any) -> None:
    """Under masks the server sees that clients sat out, and the simulation knows why."""

    class Narrow(SSI):
        def layout(self, public: Public) -> Layout:
            return Layout(tuple(replace(spec, bound=spec.bound / 2**40) for spec in super().layout(public)))

    with pytest.raises(RangeRefused, match=r"'product' reaches .* What the server saw: round 0: void 8 times") as ended:
        Federation(Narrow(rank=2), data(), chain(defense)).run(1)
    assert ended.value.result is None  # no round was complete


def test_a_round_that_cannot_complete_is_named_and_leaves_the_state_alone(tmp_path) -> None:
    def dead(endpoints: Any) -> LossyTransport:
        return LossyTransport(InProcessTransport(endpoints), replies=lambda m: m.round >= 2 and m.sender != 0)

    path = tmp_path / "run"
    federation = Federation(
        DSGD(),
        data(),
        chain(secure_aggregation()),
        transport=dead,
        options=RunOptions(max_void=3, checkpoint=path, checkpoint_every=1),
    )
    with pytest.raises(RoundVoid, match="void 3 times"):
        federation.run(5)
    resumed = Federation(
        DSGD(), data(), chain(secure_aggregation()), options=RunOptions(checkpoint=path, checkpoint_every=1)
    ).run(5)
    outputs_equal(resumed, Federation(DSGD(), data(), chain(Quantise())).run(5))


def test_an_absence_that_is_over_is_not_blamed_for_a_later_void_round() -> None:
    def dead(endpoints: Any) -> LossyTransport:
        return LossyTransport(InProcessTransport(endpoints), replies=lambda m: m.round >= 60 and m.sender != 0)

    class Narrow(SSI):
        def layout(self, public: Public) -> Layout:
            return Layout(tuple(replace(spec, bound=spec.bound / 8) for spec in super().layout(public)))

    federation = Federation(Narrow(rank=2, tolerance=0.0), data(), chain(secure_aggregation()), transport=dead)
    assert any(entry.void for entry in federation.run(5).history)  # some client was out of an attempt
    with pytest.raises(RoundVoid, match=r"^round \d+: void") as found:
        federation.run(100)
    assert "had no contribution" not in str(found.value)


def test_divergence_is_named_with_the_remedy() -> None:
    with pytest.raises(DivergenceError, match="lower"):
        Federation(FedAvg(learning_rate=1e200, local_steps=3), data()).run(50)


def test_evaluation_goes_through_the_defence() -> None:
    federation = Federation(DSGD(), data(), chain(secure_aggregation()))
    result = federation.run(2, evaluate_every=2)
    metrics = result.history[1].metrics
    assert metrics["clients"] == 4
    assert metrics["count"] == pytest.approx(sum(d.rows for d in data()), abs=1e-3)
    assert not result.history[0].metrics
    kinds = [record.kind for record in result.transcript.records]
    assert kinds == ["train", "train", "evaluate"]


def test_a_spent_budget_stops_the_run_with_its_state_saved(tmp_path) -> None:
    defense = chain(clip(1.0), gaussian(2.0), secure_aggregation())
    path = tmp_path / "run"
    budget = Budget(epsilon=3.0, delta=1e-5, noise_multiplier=2.0)
    federation = Federation(
        DSGD(), data(), defense, options=RunOptions(budget=budget, checkpoint=path, checkpoint_every=1)
    )
    with pytest.raises(BudgetSpent) as ended:
        federation.run(1000)
    assert path.exists()
    result = ended.value.result  # what was trained is handed over, and why it is no more
    assert len(result.history) == len(federation.history) and result.stopped.startswith("BudgetSpent: after")
    again = federation.run(len(federation.history))
    assert all(np.array_equal(result.output[name], value) for name, value in again.output.items())
    done = len(federation.history)
    assert done >= 1
    assert budget.spend(done).spent <= 3.0
    with pytest.raises(BudgetSpent):  # a resumed run does not start with a fresh budget
        Federation(DSGD(), data(), defense, options=RunOptions(budget=budget, checkpoint=path, checkpoint_every=1)).run(
            1000
        )


# --- checkpoints ------------------------------------------------------------------------------------------------------

METHODS = [
    SSI(rank=2, tolerance=0.0),
    FedPG(rank=2, tolerance=0.0, local_steps=2),
    LoSAC(learning_rate=0.002, local_steps=2, blocks=2),
    FedAvg(local_steps=2, batch_size=2),
]


@pytest.mark.parametrize(("method", "defense"), each_value(METHODS, [chain(Quantise()), chain(secure_aggregation())]))
def test_a_killed_run_resumes_with_the_same_result(tmp_path, method, defense) -> None:
    """Killed in the middle of a round, with clients whose contributions of the round before are not settled."""
    whole = Federation(method, data(6), chain(Quantise()), seed=4, cohort=4).run(9)

    class Killed(Exception):
        pass

    def dies(endpoints: Any) -> Any:
        inner = InProcessTransport(endpoints)

        class Dying:
            def exchange(self, outgoing: Any, timeout: Any = None) -> Any:
                if Message.decode(next(iter(outgoing.values()))).round == 5:
                    raise Killed
                return inner.exchange(outgoing, timeout)

        return Dying()

    path = tmp_path / "run"
    arguments: dict[str, Any] = {"seed": 4, "cohort": 4, "options": RunOptions(checkpoint=path, checkpoint_every=2)}
    with pytest.raises(Killed):
        Federation(method, data(6), defense, transport=dies, **arguments).run(9)
    resumed = Federation(method, data(6), defense, **arguments).run(9)
    assert [entry.round for entry in resumed.history] == list(range(9))
    outputs_equal(resumed, whole)


@pytest.mark.parametrize("when", ["before anyone", "after two clients", "after everybody"])
def test_a_run_interrupted_inside_an_exchange_resumes_with_every_client(tmp_path, when) -> None:
    """Clients that had answered the interrupted exchange answer it again in the resumed run."""
    method = LoSAC(learning_rate=0.002, local_steps=2, blocks=2)
    whole = Federation(method, data(), seed=4).run(6)

    def dies(endpoints: Any) -> Any:
        inner = InProcessTransport(endpoints)

        class Dying:
            def exchange(self, outgoing: Any, timeout: Any = None) -> Any:
                if Message.decode(next(iter(outgoing.values()))).round == 3:
                    reached = {"before anyone": 0, "after two clients": 2, "after everybody": 4}[when]
                    inner.exchange(dict(list(outgoing.items())[:reached]))
                    raise KeyboardInterrupt
                return inner.exchange(outgoing, timeout)

        return Dying()

    with pytest.raises(KeyboardInterrupt):
        Federation(method, data(), seed=4, transport=dies, options=RunOptions(checkpoint=tmp_path / "run")).run(6)
    resumed = Federation(method, data(), seed=4, options=RunOptions(checkpoint=tmp_path / "run")).run(6)
    assert all(entry.survivors == (0, 1, 2, 3) for entry in resumed.history)
    outputs_equal(resumed, whole)


def test_a_failed_evaluation_does_not_lose_or_repeat_its_round(tmp_path) -> None:
    def no_evaluation(endpoints: Any) -> LossyTransport:
        return LossyTransport(InProcessTransport(endpoints), replies=lambda m: m.round == 2)

    method = SSI(rank=2, tolerance=0.0)
    arguments: dict[str, Any] = {"seed": 1, "options": RunOptions(checkpoint=tmp_path / "run")}
    once = {"seed": 1, "options": RunOptions(checkpoint=tmp_path / "run", max_void=1)}
    with pytest.raises(RoundVoid):
        Federation(method, data(), transport=no_evaluation, **once).run(4, evaluate_every=2)
    resumed = Federation(method, data(), **arguments)
    assert len(resumed.history) == 2
    np.testing.assert_allclose(
        resumed.run(2).output["basis"], Federation(method, data(), seed=1).run(2).output["basis"], atol=0
    )


def test_what_a_killed_run_released_stays_spent(tmp_path) -> None:
    """The budget is on disk before the exchange that spends it."""
    noise = gaussian(2.0)
    path = tmp_path / "run"

    def dies(endpoints: Any) -> Any:
        class Dying:
            def exchange(self, outgoing: Any, timeout: Any = None) -> Any:
                raise KeyboardInterrupt

        return Dying()

    budget = noise.budget(30.0)
    arguments: dict[str, Any] = {"options": RunOptions(budget=budget, checkpoint=path, checkpoint_every=100)}
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            Federation(DSGD(), data(), chain(clip(1.0), noise), transport=dies, **arguments).run(5)
    resumed = Federation(DSGD(), data(), chain(clip(1.0), noise), **arguments)
    assert resumed._budget is not None
    assert resumed._budget.exchanges == 3


def test_a_budget_of_other_noise_and_a_sampler_that_is_not_drawn_are_refused() -> None:
    with pytest.raises(ConfigError, match="noise multiplier"):
        Federation(
            DSGD(), data(), chain(clip(1.0), gaussian(1.0)), options=RunOptions(budget=gaussian(100.0).budget(1.0))
        )
    with pytest.raises(ConfigError, match="fixed size"):
        Federation(DSGD(), data(), chain(clip(1.0), gaussian(1.0, sampler=PoissonSampling(0.01))))
    with pytest.raises(ConfigError, match=r"counts the defence's noise, and 'plain' adds none"):
        Federation(DSGD(), data(), options=RunOptions(budget=gaussian(1.0).budget(1.0)))
    with pytest.raises(ConfigError, match="adds none"):
        Federation(
            DSGD(), data(), chain(clip(1.0), secure_aggregation()), options=RunOptions(budget=gaussian(1.0).budget(1.0))
        )


def test_evaluation_under_a_clip_is_refused_before_a_round_is_paid_for() -> None:
    for links in ((clip(1.0),), (clip(1.0), gaussian(1.0))):
        federation = Federation(DSGD(), data(), chain(*links))
        with pytest.raises(ConfigError, match="clip"):
            federation.run(5, evaluate_every=2)
        assert not federation.history
        assert len(federation.run(2).history) == 2


def test_a_checkpoint_of_another_run_or_a_damaged_one_is_refused(tmp_path) -> None:
    path = tmp_path / "run"
    Federation(DSGD(), data(), options=RunOptions(checkpoint=path)).run(2)
    with pytest.raises(StorageError, match="seed"):
        Federation(DSGD(), data(), seed=1, options=RunOptions(checkpoint=path))
    with pytest.raises(StorageError, match="algorithm"):
        Federation(DSGD(learning_rate=0.2), data(), options=RunOptions(checkpoint=path))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(StorageError, match="truncated or corrupt"):
        Federation(DSGD(), data(), options=RunOptions(checkpoint=path))


def test_schedules_outside_the_federation_are_refused() -> None:
    with pytest.raises(ConfigError, match="schedule"):
        Federation(DSGD(), data(), options=RunOptions(schedule=lambda k: [0, 9])).run(1)


def test_layouts_without_bounds_are_refused_by_exact_defences() -> None:
    layout = Layout((TensorSpec("x", (3,)),))
    chain().plan(layout, 4)
    with pytest.raises(ConfigError, match="clip"):
        chain(secure_aggregation()).plan(layout, 4)

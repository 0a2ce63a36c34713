"""Distributed noise in whole runs: dropouts, a budget that stops them, void exchanges, other aggregations."""

import numpy as np
import pytest

from securefed import Dataset, Federation, InProcessTransport, Layout, LossyTransport, RunOptions, TensorSpec, chain
from securefed.algorithms import DSGD
from securefed.defenses import clip, discrete_gaussian, paillier, secure_aggregation, skellam, sum_once
from securefed.errors import BudgetSpent


def data(clients=5):
    rng = np.random.default_rng(0)
    return [Dataset(rng.uniform(-1, 1, (8, 6)), np.arange(8) % 3) for _ in range(clients)]


def ddp(multiplier, **kwargs):
    return chain(clip(0.3), skellam(multiplier, **kwargs), secure_aggregation())


@pytest.mark.parametrize("make", [skellam, discrete_gaussian])
def test_a_run_with_little_noise_ends_where_the_clipped_run_does(make):
    noised = Federation(DSGD(), data(), chain(clip(0.3), make(1e-5), secure_aggregation())).run(3)
    clipped = Federation(DSGD(), data(), chain(clip(0.3))).run(3)
    for name, value in clipped.output.items():
        np.testing.assert_allclose(noised.output[name], value, atol=1e-5)
        assert np.abs(value).max() > 1e-3
    assert noised.plan.privacy.noise_survivors == noised.plan.threshold == 3


def test_a_budget_of_the_mechanism_stops_the_run_with_its_state_saved(tmp_path):
    defense = ddp(4.0, colluding=1)
    plan = Federation(DSGD(), data(), defense).plan
    budget = defense.transforms[1].budget(3.0, plan)
    arguments = {"options": RunOptions(budget=budget, checkpoint=tmp_path / "run", checkpoint_every=1)}
    with pytest.raises(BudgetSpent):
        Federation(DSGD(), data(), defense, **arguments).run(1000)
    done = next(k for k in range(1, 1000) if budget.after(k + 1) > 3.0)
    assert done > 3
    resumed = Federation(DSGD(), data(), defense, **arguments)
    assert resumed.run(done).plan.epsilon == plan.epsilon  # all rounds are there, and no further one is
    with pytest.raises(BudgetSpent, match=f"after {done} rounds: {done + 1} exchanges"):
        resumed.run(done + 1)


def test_too_few_survivors_void_the_exchange_and_the_next_attempt_is_paid_for_too():
    defense = ddp(4.0)
    budget = defense.transforms[1].budget(50.0, Federation(DSGD(), data(), defense).plan)

    def lost(message):  # three of five are lost at the upload of exchange 1, one at that of exchange 2
        return message.stage == "upload" and message.receiver < {1: 3, 2: 1}.get(message.round, 0)

    federation = Federation(
        DSGD(),
        data(),
        defense,
        transport=lambda ends: LossyTransport(InProcessTransport(ends), requests=lost),
        options=RunOptions(budget=budget),
    )
    history = federation.run(2).history
    assert [len(entry.void) for entry in history] == [0, 1]
    assert "the round is void" in history[1].void[0]
    assert history[1].survivors == (1, 2, 3, 4)
    assert federation._budget.exchanges == 3


def test_paillier_sums_noisy_integers_exactly():
    layout = Layout((TensorSpec("x", (40,)),))
    value = {"x": np.full(40, 0.1)}
    found = sum_once(chain(clip(1.0), skellam(1e-6), paillier(bits=2048)), layout, {i: value for i in range(4)})  # noqa: C420
    np.testing.assert_allclose(found.total["x"], 0.4, atol=1e-4)

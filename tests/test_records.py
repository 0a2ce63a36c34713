"""Record-level privacy of torch clients: opacus does the steps, the accountant outlives rounds and processes."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from opacus.grad_sample import GradSampleModule
from torch import nn

from securefed import (
    Dataset,
    Federation,
    InProcessTransport,
    Ledger,
    Limits,
    LossyTransport,
    RunOptions,
    chain,
    secure_mean,
)
from securefed import _catalogue as catalogue
from securefed._runtime.privacy_cost import cost_of
from securefed.algorithms import FedAvg, PrivateFedAvg, SupportsPrivacyCost
from securefed.algorithms._private.dp_fedavg import _quiet, named_like
from securefed.defenses import secure_aggregation
from securefed.errors import BudgetSpent, ConfigError, RangeRefused, RoundVoid
from securefed.problems import TorchModule
from tests.combinations import first_ones


def network(features: int = 4, classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 6), nn.Tanh(), nn.Linear(6, classes))


PROBLEM = TorchModule(module=network, precision="float64")


def data(clients: int = 3, rows: int = 20) -> list[Dataset]:
    rng = np.random.default_rng(3)
    out = []
    for _ in range(clients):
        x = rng.normal(size=(rows, 4))
        out.append(Dataset(x, x[:, :3].argmax(axis=1)))
    return out


def private(**settings: Any) -> PrivateFedAvg:
    return PrivateFedAvg(**{"problem": PROBLEM, "local_steps": 4, "batch_size": 5, "learning_rate": 0.2} | settings)


def spent(federation: Federation) -> list[float]:
    return [federation.algorithm.spent(node.state.committed) for node in federation.nodes.values()]


@cache
def renyi(noise: float, rate: float, steps: int) -> float:
    """dp-accounting's Renyi accountant, at opacus' orders."""
    accountant = RdpAccountant(RDPAccountant.DEFAULT_ALPHAS, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(event, steps)
    return float(accountant.get_epsilon(1e-5))


def test_without_noise_clip_or_sampling_it_is_fedavg() -> None:
    settings: dict[str, Any] = {"problem": TorchModule(module=network, precision="float64", l2=0.1)}
    plain = FedAvg(local_steps=4, learning_rate=0.2, **settings)
    close = private(max_grad_norm=1e4, noise_multiplier=1e-13, batch_size=None, **settings)
    runs = [Federation(algorithm, data(), seed=1).run(3).output for algorithm in (plain, close)]
    for name, value in runs[0].items():
        np.testing.assert_allclose(runs[1][name], value, atol=1e-7)


def test_a_row_moves_a_step_by_no_more_than_the_clip_and_the_noise_is_as_planned() -> None:
    # One full-batch step: y = x - eta (sum + C z N) / n. 20 rows of gradients clipped to C = .01.
    settings: dict[str, Any] = {"local_steps": 1, "batch_size": None, "max_grad_norm": 0.01, "learning_rate": 1.0}
    rows = data(1)
    odd = [Dataset(np.vstack([rows[0].x[:-1], 1e6 * np.ones(4)]), rows[0].y)]

    def upload(clients: list[Dataset], noise: float) -> np.ndarray:
        federation = Federation(private(noise_multiplier=noise, **settings), clients, seed=1)
        start, after = (federation.algorithm.broadcast(federation.state), federation.run(1).output)
        return np.concatenate([(after[name] - start[name]).ravel() for name in start])

    moved = upload(rows, 1e-12) - upload(odd, 1e-12)
    assert np.linalg.norm(moved) <= 2 * 0.01 / 20 * (1 + 1e-6)  # one row goes, another comes
    assert np.linalg.norm(moved) > 0.2 * 0.01 / 20
    still = upload(rows, 1e-12)
    # 60 uploads of 51 parameters: standard error 1.3 %
    noise = np.stack([upload(rows, 3.0) - still for _ in range(60)])
    assert noise.std() == pytest.approx(3.0 * 0.01 / 20, rel=0.08)
    assert noise.std() != pytest.approx(2.0 * 0.01 / 20, rel=0.08)


def test_a_million_draws_have_the_planned_variance_within_one_percent() -> None:
    # Rows of zeros have no gradient without a bias: what is left is C z N / n. Relative standard error .14 %.
    wide = TorchModule(module=partial(nn.Linear, 1000, 1000, bias=False), precision="float64")
    algorithm = private(problem=wide, local_steps=1, batch_size=None, noise_multiplier=3.0, learning_rate=1.0)
    clients = [Dataset(np.zeros((4, 1000)), np.arange(4) % 2)]
    federation = Federation(algorithm, clients)
    start = algorithm.broadcast(federation.state)["weight"]
    noise = federation.run(1).output["weight"] - start
    assert noise.size == 10**6
    assert noise.var() == pytest.approx((3.0 / 4) ** 2, rel=0.01)
    assert noise.var() != pytest.approx((2.9 / 4) ** 2, rel=0.01)


def test_noise_and_draws_do_not_come_from_a_generator_that_a_seed_repeats() -> None:
    outputs = []
    for _ in range(2):
        torch.manual_seed(0)
        before = torch.random.get_rng_state()
        outputs.append(Federation(private(), data(), seed=0).run(1).output["0.weight"])
        assert torch.equal(before, torch.random.get_rng_state())
    assert not np.array_equal(*outputs)
    # Sampling alone: without noise, different rows are drawn.
    drawn = [Federation(private(noise_multiplier=1e-13), data(), seed=0).run(1).output["0.weight"] for _ in range(2)]
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-6


@pytest.mark.parametrize(("noise", "batch"), first_ones([(1.0, 5), (2.0, None), (0.7, 2)], 2))
def test_epsilon_is_what_another_accountant_says_of_the_steps_that_ran(noise: float, batch: int | None) -> None:
    federation = Federation(private(noise_multiplier=noise, batch_size=batch), data(), chain(secure_aggregation()))
    federation.run(3)
    rate = 1.0 if batch is None else batch / 20
    expected = renyi(noise, rate, 3 * 4)
    assert spent(federation) == pytest.approx([expected] * 3, abs=0.01)
    assert renyi(1.1 * noise, rate, 12) < expected - 0.05
    exact = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    exact.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), 12)
    assert exact.get_epsilon(1e-5) <= expected  # the exact loss is below the Renyi bound


def test_a_ledger_counts_the_steps_that_run() -> None:
    """What a client's ledger is charged before each round is what the accountant found afterwards."""
    federation = Federation(private(), data(), chain(secure_aggregation()))
    federation.run(3)
    node = federation.nodes[0]
    steps = federation.algorithm.noised_steps(node.state.committed)
    assert node.state.committed.spent == ((*steps[:2], 3 * steps[2]),)
    cost = cost_of(federation.defense, federation.plan, steps)
    assert cost.epsilon(3, unit="record") == pytest.approx(spent(federation)[0], abs=0.01)
    assert abs(cost.epsilon(4, unit="record") - spent(federation)[0]) > 0.05
    ledger = Ledger.in_memory(Limits(epsilon=cost.epsilon(3, unit="record"), unit="record"))
    for number in range(3):
        ledger.charge("run", number, cost)
    with pytest.raises(BudgetSpent):
        ledger.charge("run", 3, cost)


def test_the_plan_says_what_a_round_costs() -> None:
    federation = Federation(private(epsilon=9.0), data())
    assert isinstance(federation.algorithm, SupportsPrivacyCost)
    words = " ".join(federation.plan.assumptions)
    assert f"epsilon {renyi(1.0, 0.25, 4):.4g} for one round and at most 9 in the run" in words
    assert federation.plan.assumptions == federation.run(1).plan.assumptions
    assert "row" not in " ".join(Federation(FedAvg(problem=PROBLEM), data()).plan.assumptions)


def test_what_was_spent_survives_a_process_and_a_lost_upload(tmp_path: Any) -> None:
    arguments: dict[str, Any] = {"options": RunOptions(checkpoint=tmp_path / "run", checkpoint_every=1)}

    def lost(message: Any) -> bool:  # client 1's upload of exchange 1: trained, sent, not counted
        return message.stage == "upload" and message.round == 1 and message.sender == 1

    lossy = Federation(
        private(), data(), transport=lambda ends: LossyTransport(InProcessTransport(ends), replies=lost), **arguments
    )
    history = lossy.run(2).history
    assert history[1].survivors == (0, 2)
    assert spent(lossy) == pytest.approx([renyi(1.0, 0.25, 8)] * 3, abs=0.01)
    resumed = Federation(private(), data(), **arguments)
    assert spent(resumed) == spent(lossy)
    resumed.run(3)
    assert spent(resumed) == pytest.approx([renyi(1.0, 0.25, 12)] * 3, abs=0.01)


def test_what_was_computed_counts_though_its_message_was_refused() -> None:
    problem = TorchModule(module=network, precision="float64", gradient_bound=1e-12)
    algorithm = private(problem=problem, noise_multiplier=1e-12)
    federation = Federation(algorithm, data(), chain(secure_aggregation()), options=RunOptions(max_void=3))
    with pytest.raises(RangeRefused, match="beyond the planned bound"):
        federation.run(1)
    for node in federation.nodes.values():
        assert node.state.committed.spent == ((1e-12, 0.25, 3 * 4),)


def test_the_range_has_room_for_the_noise_so_that_no_round_is_paid_for_twice() -> None:
    loud: dict[str, Any] = {"noise_multiplier": 20.0, "batch_size": 2, "local_steps": 1}
    history = Federation(private(**loud), data(), chain(secure_aggregation())).run(5).history
    assert not any(entry.void for entry in history)

    class Narrow(PrivateFedAvg):
        factors = FedAvg.factors

    tight = Federation(Narrow(**vars(private(**loud))), data(), chain(secure_aggregation())).run(1)
    assert tight.history[0].void  # positive control: gradients alone do not fill it


def test_by_name_it_is_a_perceptron_of_the_given_widths_or_any_module() -> None:
    made = catalogue.algorithms.make("private/fedavg", widths=(4, 6, 3), local_steps=4)
    names = Federation(made, data()).run(1).output
    assert {name: value.shape for name, value in names.items()} == {
        "0.weight": (6, 4),
        "0.bias": (6,),
        "2.weight": (3, 6),
        "2.bias": (3,),
    }
    assert catalogue.algorithms.make("private/fedavg", problem=PROBLEM, batch_size=5).problem is PROBLEM
    with pytest.raises(ConfigError, match="widths must be two or more"):
        catalogue.algorithms.make("private/fedavg", widths=(4,))


def test_a_client_stops_before_the_round_that_exceeds_its_budget() -> None:
    limit = renyi(1.0, 0.25, 8) + 0.01
    federation = Federation(private(epsilon=limit), data(), options=RunOptions(max_void=2))
    with pytest.raises(RoundVoid, match=r"BudgetSpent: another round would cost a row epsilon"):
        federation.run(5)
    assert len(federation.history) == 2
    assert max(spent(federation)) <= limit


def test_convolutions_and_other_targets_work_and_what_opacus_cannot_do_is_named() -> None:
    def image() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(2, 3))

    shaped = TorchModule(module=image, input_shape=(1, 2, 2))
    rebuilt = TorchModule(module=partial(nn.Linear, 4, 4), criterion="squared_error", compared_with="rows")
    for problem in (shaped, rebuilt):
        result = Federation(private(problem=problem), data(), chain(secure_aggregation())).run(2)
        assert all(np.isfinite(value).all() for value in result.output.values())

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(4, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cells(x[:, None])[0][:, 0]

    algorithm = private(problem=TorchModule(module=Recurrent))
    with pytest.raises(ConfigError, match="opacus cannot take gradients of single rows"):
        algorithm.contribute(*contributing(algorithm))


def contributing(algorithm: PrivateFedAvg) -> tuple[Any, Any, Any]:
    federation = Federation(algorithm, data())
    return federation.nodes[0].state.committed, algorithm.broadcast(federation.state), np.random.default_rng(0)


def test_draws_that_take_no_row_still_make_a_step_of_noise() -> None:
    algorithm = private(batch_size=1, local_steps=1, noise_multiplier=5.0)
    for _ in range(12):  # each of 20 rows with probability 1 / 20: nobody in 36 % of the steps
        client, broadcast, rng = contributing(algorithm)
        tentative, sent = algorithm.contribute(client, broadcast, rng)
        assert all(np.abs(value).max() > 0 for value in sent.values())
        assert tentative.spent == ((5.0, 0.05, 1),)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"problem": FedAvg().problem}, "TorchModule"),
        ({"local_epochs": 2}, "no epochs"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"max_grad_norm": math.inf}, "max_grad_norm"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_parameters_outside_their_domain_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        private(**settings)


# Existing loops


def test_a_loop_of_its_own_keeps_opacus_engines_and_averages_their_models_through_a_defence() -> None:
    """Two rounds, three clients whose engines live as long as the run; names with and without opacus' prefix."""
    torch.manual_seed(0)
    plain = network().double()
    engines, trained, optimizers, loaders = [], [], [], []
    for part in data():
        rows = torch.utils.data.TensorDataset(torch.from_numpy(part.x), torch.from_numpy(part.y))
        model = network().double()
        with _quiet():
            engine = PrivacyEngine(accountant="rdp")
            made = engine.make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                data_loader=torch.utils.data.DataLoader(rows, batch_size=5),
                noise_multiplier=1.0,
                max_grad_norm=1.0,
            )
        engines.append(engine)
        for into, one in zip((trained, optimizers, loaders), made, strict=True):
            into.append(one)
    for _ in range(2):
        for model, optimizer, loader in zip(trained, optimizers, loaders, strict=True):
            assert isinstance(model, GradSampleModule)
            model.load_state_dict(named_like(plain.state_dict(), model.state_dict()))
            with _quiet():
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
        states = [model.state_dict() for model in trained]
        assert all(name.startswith("_module.") for name in states[0])
        mean = secure_mean(states, defense=chain(secure_aggregation()))
        plain.load_state_dict(named_like(mean, plain.state_dict()))
        expected = sum(state["_module.0.weight"] for state in states) / 3
        torch.testing.assert_close(plain.state_dict()["0.weight"], expected, atol=1e-9, rtol=0)
    with _quiet():
        for engine in engines:
            assert engine.get_epsilon(1e-5) == pytest.approx(renyi(1.0, 0.25, 8), abs=0.01)


def test_names_are_matched_by_the_prefix_alone() -> None:
    assert named_like({"_module.a": 1, "_module.b": 2}, {"a": 0, "b": 0}) == {"a": 1, "b": 2}
    assert named_like({"a": 1}, {"_module.a": 0}) == {"_module.a": 1}
    with pytest.raises(ConfigError, match="not of one model"):
        named_like({"a": 1}, {"b": 0})

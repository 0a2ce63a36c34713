"""Attacks by a server that chooses its broadcasts: what they read from sums, and what is chance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from securefed import Dataset, DeviatingServer, Layout, chain
from securefed.algorithms import DSGD, FLAME, SSI, FedAvg, FedPE, FedPG, Scaffold
from securefed.attacks import (
    ActiveAttack,
    ChosenBases,
    ChosenBroadcast,
    ClassThresholds,
    Dialogue,
    Reconstruction,
    Target,
    TrapWeights,
    active_attacks,
    broadcast_signs,
)
from securefed.attacks._active.trap_network import DenseChain
from securefed.defenses import clip, local_gaussian, quantise, secure_aggregation
from securefed.errors import TranscriptError
from securefed.problems import DenseNetwork, LogisticRegression, SoftmaxRegression, SupportVectorMachine, TorchModule
from tests.combinations import first_ones

FEATURES, CLASSES = 12, 4
MLP = DenseNetwork(hidden=(60,))
DEEP = DenseNetwork(hidden=(60, 20))


def perceptron() -> torch.nn.Module:
    linear = torch.nn.Linear
    return torch.nn.Sequential(
        linear(FEATURES, 60), torch.nn.ReLU(), linear(60, 8), torch.nn.ReLU(), linear(8, CLASSES)
    )


def clients(count: int, rows: int = 1, seed: int = 0) -> list[Dataset]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count * rows) % CLASSES
    x = rng.uniform(0, 1, (count * rows, FEATURES))
    return [Dataset(x[i::count], labels[i::count]) for i in range(count)]


def recovered(estimate: Any, data: list[Dataset], within: float = 1e-2) -> float:
    """Share of all clients' rows that the estimate holds to a hundredth of their length."""
    truth = np.concatenate([own.x for own in data])
    distance = np.linalg.norm(truth[:, None] - estimate.value[None], axis=2) / np.linalg.norm(truth, axis=1)[:, None]
    return float((distance.min(axis=1) < within).mean())


def deceive(problem: Any, attack: ActiveAttack, data: list[Dataset], defense: Any = None, **options: Any) -> Any:
    method = options.pop("method", partial(FedAvg, local_steps=2))(problem=problem, learning_rate=0.05)
    return DeviatingServer(method, data, chain(quantise()) if defense is None else defense, attack, **options).deceive()


@pytest.mark.parametrize("problem", [MLP, DEEP, TorchModule(module=perceptron)], ids=["one layer", "two", "torch"])
def test_trap_weights_read_every_row_and_its_label_from_sums(problem: Any) -> None:
    data = clients(10)
    run = deceive(problem, TrapWeights(rounds=5), data, chain(secure_aggregation()))
    assert recovered(run.estimate, data) == 1.0
    assert run.estimate.diagnostics["single rows"] == 10
    truth, labels = np.concatenate([own.x for own in data]), np.concatenate([own.y for own in data])  # type: ignore[misc]
    nearest = [int(np.argmin(np.linalg.norm(truth - row, axis=1))) for row in run.estimate.value]
    assert list(labels[nearest]) == list(run.estimate.labels)


def test_a_server_that_knows_how_bright_rows_are_reads_more_in_one_round() -> None:
    """Of 30 rows under 150 thresholds in equal shares, exp(-30 / 150) = .82 are alone on average."""
    data, wide = clients(30), DenseNetwork(hidden=(150,))
    means = np.concatenate([own.x for own in clients(200, seed=1)]).mean(axis=1)
    told = TrapWeights(rounds=1, brightness=(float(means.mean()), float(means.std())))
    label_0 = np.mean([own.y[0] == 0 for own in data])  # type: ignore[index]  # predicted in this round: no slope
    share = recovered(deceive(wide, told, data).estimate, data)
    assert share > 0.8 * (1 - label_0)
    assert share > recovered(deceive(wide, TrapWeights(rounds=1), data).estimate, data)


def test_a_server_that_is_wrong_about_brightness_reads_rows_from_the_second_round_on() -> None:
    data = clients(10)
    assert recovered(deceive(MLP, TrapWeights(rounds=5, brightness=(0.99, 0.001)), data).estimate, data) > 0.9


def test_rows_that_do_not_show_in_a_message_are_an_error_and_no_estimate() -> None:
    """A model's entries round off a gradient of 1e-30."""
    with pytest.raises(TranscriptError, match="raise `slope`"):
        deceive(MLP, TrapWeights(slope=1e-30), clients(4), method=partial(FedAvg, local_steps=1))


@pytest.mark.parametrize("classes", first_ones([4, 200]))
def test_labels_are_right_after_several_local_steps(classes: int) -> None:
    """Steps raise what rows activate and change their slopes; with 200 classes codes are .0045 from each other."""
    rng = np.random.default_rng(0)
    labels = np.append(rng.integers(0, classes, 19), classes - 1)
    data = [Dataset(rng.uniform(0, 1, (1, FEATURES)), labels[i : i + 1]) for i in range(20)]
    run = deceive(DenseNetwork(hidden=(200,)), TrapWeights(), data, method=partial(FedAvg, local_steps=5))
    assert run.estimate.diagnostics["single rows"] == 20
    truth = np.concatenate([own.x for own in data])
    nearest = [int(np.argmin(np.linalg.norm(truth - row, axis=1))) for row in run.estimate.value]
    assert list(labels[nearest]) == list(run.estimate.labels)


def test_a_layer_of_any_width_leaves_the_predicted_class_as_it_is() -> None:
    """All outputs add up before the logits; rows of class 0, which is predicted, do not show in one round."""
    data = clients(10)
    run = deceive(DenseNetwork(hidden=(20_000,)), TrapWeights(rounds=1), data, method=partial(FedAvg, local_steps=1))
    assert run.estimate.diagnostics["single rows"] == sum(own.labels()[0] != 0 for own in data)


def test_chance_reads_no_row() -> None:
    data = clients(10)
    for problem, attack in ((MLP, TrapWeights()), (SoftmaxRegression(), ClassThresholds())):
        assert recovered(deceive(problem, attack, data, shuffled=True).estimate, data, within=0.1) == 0.0


def test_several_rows_of_a_client_are_read_where_it_makes_one_step() -> None:
    data = clients(4, rows=8)
    run = deceive(DenseNetwork(hidden=(120,)), TrapWeights(), data, method=DSGD)
    assert recovered(run.estimate, data) > 0.9
    single = run.estimate.diagnostics["single rows"]
    assert single > 16
    truth = [Dataset(row[None], np.zeros(1, int)) for row in run.estimate.value[:single]]
    rows = type(run.estimate)("samples", np.concatenate([own.x for own in data]))
    assert recovered(rows, truth) == 1.0  # what it calls a single row is one


def test_one_clients_own_messages_give_its_row() -> None:
    data = clients(4)
    for problem, attack in ((MLP, TrapWeights(rounds=2)), (SoftmaxRegression(), ClassThresholds())):
        run = deceive(problem, attack, data, chain(), alone=True, victim=2)
        assert recovered(run.estimate, [data[2]]) == 1.0
        assert recovered(run.estimate, [data[1]]) == 0.0


@dataclass(frozen=True)
class Repeat:
    """Send one broadcast twice; the estimate holds the sums of both rounds."""

    counted: bool

    name: ClassVar[str] = "active/repeat"
    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: Dialogue) -> str | None:
        return None

    def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Reconstruction:
        name, sums = next(iter(observed.honest)), []
        for _ in range(2):
            seen = observed.ask(ChosenBroadcast(observed.honest, counted=self.counted))
            sums.append(np.ravel(seen.message[f"dx.{name}"]))
        return Reconstruction("samples", np.asarray(sums))


@pytest.mark.parametrize("verify", [False, True])
def test_a_server_that_says_it_counted_nobody_finds_every_memory_as_it_was(verify: bool) -> None:
    method, defense = partial(Scaffold, local_steps=2), chain(secure_aggregation(verify=verify))
    lied, honest = (deceive(MLP, Repeat(told), clients(6), defense, method=method).estimate for told in (False, True))
    np.testing.assert_array_equal(lied.value[0], lied.value[1])
    assert np.abs(honest.value[0] - honest.value[1]).max() > 1e-3


def test_methods_with_memory_are_read_over_several_rounds() -> None:
    data, defense = clients(10), chain(secure_aggregation())
    run = deceive(MLP, TrapWeights(rounds=5), data, defense, method=partial(Scaffold, local_steps=2))
    assert len(run.broadcasts) == 5
    assert recovered(run.estimate, data) == 1.0


@pytest.mark.parametrize("rows", first_ones([1, 4]))
def test_flames_rows_are_read_where_its_models_follow_the_broadcast(rows: int) -> None:
    data, defense = clients(8, rows), chain(secure_aggregation())
    flame = partial(FLAME, local_steps=3, anchor="global")
    run = deceive(SoftmaxRegression(), ClassThresholds(rounds=40), data, defense, method=flame)
    assert recovered(run.estimate, data) == 1.0
    assert run.estimate.diagnostics["single rows"] == 8 * rows
    with pytest.raises(TranscriptError, match="depend on what they keep"):
        deceive(SoftmaxRegression(), ClassThresholds(), data, method=partial(FLAME, local_steps=3))
    with pytest.raises(TranscriptError, match="first step at a model that they keep"):
        deceive(MLP, TrapWeights(), data, method=flame)


@dataclass(frozen=True, kw_only=True)
class Undeclared(FLAME):
    """FLAME whose messages have no declared bounds, as a method of a user's own may be."""

    def layout(self, public: Any) -> Layout:
        return Layout(tuple(replace(spec, bound=None) for spec in super().layout(public)))


def test_without_declared_bounds_the_classes_may_be_as_sharp_as_rounding_allows() -> None:
    data, method = clients(8), partial(Undeclared, local_steps=3, anchor="global")
    run = deceive(SoftmaxRegression(), ClassThresholds(rounds=40), data, chain(), method=method)
    assert recovered(run.estimate, data) == 1.0


@pytest.mark.parametrize("count", first_ones([6, 30]))
def test_classes_as_thresholds_read_every_row_from_sums(count: int) -> None:
    data = clients(count)
    defense = chain(secure_aggregation()) if count < 10 else None
    run = deceive(SoftmaxRegression(), ClassThresholds(rounds=40), data, defense)
    assert recovered(run.estimate, data) == 1.0
    assert run.estimate.diagnostics["single rows"] == count


def test_in_single_precision_large_weights_cost_the_update_its_digits() -> None:
    """w - (w - eta g) loses as many digits as w is larger: rows are read to some percent."""
    data = clients(6)
    run = deceive(SoftmaxRegression(precision="float32"), ClassThresholds(rounds=40), data)
    assert recovered(run.estimate, data, within=0.05) > 0.6


def test_two_classes_are_one_threshold() -> None:
    data = [Dataset(own.x, own.y % 2) for own in clients(5)]  # type: ignore[operator]
    run = deceive(LogisticRegression(), ClassThresholds(rounds=40), data)
    assert recovered(run.estimate, data) == 1.0


def test_clip_and_noise_stop_both_attacks() -> None:
    data = clients(10)
    noised = chain(clip(0.01), local_gaussian(1.0), secure_aggregation())
    for problem, attack in ((MLP, TrapWeights()), (SoftmaxRegression(), ClassThresholds())):
        assert recovered(deceive(problem, attack, data).estimate, data) > 0.9  # positive control
        assert recovered(deceive(problem, attack, data, noised).estimate, data) == 0.0


def test_rows_that_weigh_less_in_a_sum_than_others_are_not_counted() -> None:
    """Client 2 has six rows and client 0 one: with equal weights, a mean of rows would be called a single row."""
    rng = np.random.default_rng(0)
    data = [Dataset(rng.uniform(size=(n, FEATURES)), rng.integers(0, CLASSES, n)) for n in (1, 4, 6)]
    uniform = partial(FedAvg, local_steps=1, weighting="uniform")
    with pytest.raises(TranscriptError, match="weigh less"):
        deceive(SoftmaxRegression(), ClassThresholds(rounds=40), data, method=uniform)
    run = deceive(SoftmaxRegression(), ClassThresholds(rounds=40), data, chain(), method=uniform, alone=True, victim=2)
    assert recovered(run.estimate, [data[2]]) == 1.0
    assert run.estimate.diagnostics["single rows"] == 6


REFUSED = [
    (MLP, ClassThresholds(), "linear classifier"),
    (SoftmaxRegression(), TrapWeights(), "fully connected"),
    (SoftmaxRegression(l2=0.1), ClassThresholds(), "regulariser"),
    (SoftmaxRegression(bias=False), ClassThresholds(), "bias"),
    (SupportVectorMachine(), ClassThresholds(), "cross entropy|linear classifier"),
]


@pytest.mark.parametrize(("problem", "attack", "reason"), REFUSED)
def test_it_says_why_it_does_not_apply(problem: Any, attack: ActiveAttack, reason: str) -> None:
    with pytest.raises(TranscriptError, match=reason):
        deceive(problem, attack, clients(4))


def test_methods_without_gradients_and_with_other_batches_are_refused() -> None:
    data = clients(4, rows=4)
    with pytest.raises(TranscriptError, match="no gradients"):
        DeviatingServer(SSI(rank=2), data, None, TrapWeights())
    with pytest.raises(TranscriptError, match="other rows"):
        deceive(SoftmaxRegression(), ClassThresholds(), data, method=partial(FedAvg, batch_size=2))
    tanh = torch.nn.Sequential
    module = partial(tanh, torch.nn.Linear(FEATURES, 60), torch.nn.Tanh(), torch.nn.Linear(60, CLASSES))
    with pytest.raises(TranscriptError, match="other slopes"):
        deceive(TorchModule(module=module), TrapWeights(), data)


def test_a_chain_of_layers_is_found_by_shapes() -> None:
    chain_ = DenseChain.of(dict(DEEP.shapes(public())), FEATURES, CLASSES)
    assert chain_ is not None
    assert (chain_.weights, chain_.outputs) == (("weight1", "weight2", "weight3"), 60)
    assert DenseChain.of({"weight": (CLASSES, FEATURES), "bias": (CLASSES,)}, FEATURES, CLASSES) is None


def public() -> Any:
    from securefed import Public  # noqa: PLC0415

    return Public.of(clients(4))


def test_chosen_bases_read_the_pooled_gram_matrix_exactly_and_no_clients_own() -> None:
    data = [Dataset(own.x) for own in clients(5, rows=6)]
    run = DeviatingServer(SSI(rank=3), data, chain(secure_aggregation()), ChosenBases()).deceive()
    assert run.estimate is not None
    assert len(run.broadcasts) == FEATURES // 3
    pooled = sum(own.x.T @ own.x for own in data)
    np.testing.assert_allclose(run.estimate.value, pooled, rtol=1e-6, atol=1e-5)
    alone = DeviatingServer(SSI(rank=3), data, None, ChosenBases(), alone=True, victim=1).deceive()
    np.testing.assert_allclose(alone.estimate.value, data[1].x.T @ data[1].x, rtol=1e-6, atol=1e-5)  # type: ignore[union-attr]


@pytest.mark.parametrize("method", [FedPG, FedPE])
def test_chosen_means_read_one_clients_gram_matrix_up_to_a_multiple_of_the_identity(method: Any) -> None:
    """A step along the Grassmannian does not change if a multiple of the identity is added to S."""
    data = [Dataset(own.x - 0.5) for own in clients(4, rows=20)]
    algorithm = method(rank=3, rho=1.0, step_size=0.01, local_steps=1, normalise=True)
    run = DeviatingServer(algorithm, data, None, ChosenBases(), alone=True).deceive()
    assert run.estimate is not None
    own = data[0].x.T @ data[0].x
    difference = run.estimate.value - own
    shift = np.trace(difference) / FEATURES * np.eye(FEATURES)
    np.testing.assert_allclose(difference, shift, atol=1e-3 * np.linalg.norm(own))
    with pytest.raises(TranscriptError, match="no closed form"):
        DeviatingServer(algorithm, data, chain(quantise()), ChosenBases())


def test_trap_weights_are_seen_by_their_rows() -> None:
    run = deceive(MLP, TrapWeights(rounds=1), clients(4))
    assert (
        broadcast_signs(run.broadcasts[0], run.honest).alike > 0.999 > 2 * broadcast_signs(run.honest, run.honest).alike
    )


def test_every_active_attack_is_registered_with_its_source() -> None:
    assert len(active_attacks) >= 2
    for entry in active_attacks:
        made = entry.make()
        assert isinstance(made, ActiveAttack)
        assert made.name == entry.name
        assert entry.source
        assert entry.details["reads"]

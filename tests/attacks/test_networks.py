"""The cascade and its attack: what it must recover, what it must refuse, what it must say of what does not fit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from securefed import Dataset, Federation, Public
from securefed.algorithms import DSGD, FedAvg, LoSAC, Scaffold
from securefed.algorithms._optimization.method import GradientMethod
from securefed.attacks import (
    InversionEffort,
    LocalSteps,
    NetworkInversion,
    Target,
    View,
    invert,
    psnr,
    tabular_accuracy,
    views,
)
from securefed.attacks._networks.client_simulations import OneGradient
from securefed.attacks._networks.flat_network import FlatNetwork
from securefed.attacks._networks.gradient_matching import GradientMatching, InversionProblem, RowPrior
from securefed.attacks._networks.row_parametrisations import AllEntries
from securefed.attacks._networks.smoothed_relu import SmoothedReLU
from securefed.attacks.scores import sample_error
from securefed.defenses import chain, clip
from securefed.errors import ConfigError, TranscriptError
from securefed.problems import Autoencoder, DenseNetwork, LogisticRegression

FAST = InversionEffort(restarts=1, evaluations=400)
PLAIN = replace(FAST, exact=False)


def losses(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target, reduction="none")


def squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean(dim=1)


def model(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), activation()]
    return nn.Sequential(*layers[:-1]).double()


def convolution(activation: type[nn.Module] = nn.Sigmoid) -> nn.Module:
    torch.manual_seed(2)
    out = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), activation(), nn.Flatten(), nn.Linear(6 * 36, 4)).double()
    for parameter in out.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return out


def rows(count: int, *shape: int, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    x = torch.rand(count, *shape, generator=generator, dtype=torch.float64)
    return x, torch.arange(count) % classes


def gradient(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(losses(net(x), y).mean(), list(net.parameters())))


def update(net: nn.Module, x: torch.Tensor, y: torch.Tensor, local: LocalSteps) -> dict[str, torch.Tensor]:
    """What torch's own optimiser makes of the rows."""
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    optimiser = torch.optim.SGD(net.parameters(), lr=local.learning_rate)
    for _ in range(local.steps):
        optimiser.zero_grad()
        losses(net(x), y).mean().backward()
        optimiser.step()
    sent = {name: value.detach() - before[name] for name, value in net.named_parameters()}
    net.load_state_dict(before)
    return sent


@pytest.mark.parametrize("count", [1, 3])
def test_rows_and_labels_are_read_off_the_first_layer(count: int) -> None:
    net, (x, y) = model(20, 400, 4), rows(count, 20)
    found, labels = invert(net, losses, gradient(net, x, y), rows=count, row_shape=(20,), classes=4, effort=FAST)
    assert found.stage in ("ratio", "separation")
    assert sample_error(found.rows, x.numpy()) < 1e-8
    np.testing.assert_array_equal(labels, np.sort(y.numpy()))


def test_where_no_output_is_cut_off_rows_are_fitted_in_their_span() -> None:
    net, (x, y) = model(30, 40, 4, activation=nn.Tanh), rows(3, 30)
    found, _ = invert(net, losses, gradient(net, x, y), rows=3, row_shape=(30,), labels=y.numpy(), effort=FAST)
    assert found.stage == "coordinates"
    assert sample_error(found.rows, x.numpy()) < 1e-4


def test_an_image_is_found_behind_convolutions_after_local_steps_but_not_by_other_steps() -> None:
    net, (x, y), local = convolution(), rows(1, 1, 6, 6), LocalSteps(0.2, 3)
    sent = update(net, x, y, local)
    found, _ = invert(net, losses, sent, rows=1, row_shape=(1, 6, 6), labels=[0], local=local, effort=PLAIN)
    assert found.residual < 1e-4
    assert float(psnr(found.rows, x.numpy())[0]) > 40
    other = LocalSteps(0.4, 3)
    little = replace(PLAIN, evaluations=40)
    wrong, _ = invert(net, losses, sent, rows=1, row_shape=(1, 6, 6), labels=[0], local=other, effort=little)
    assert wrong.residual > 1e-2  # hyper-parameters that are not the client's show


@pytest.mark.exhaustive
def test_smoothed_kinks_lead_to_an_image_that_plain_descent_does_not_find() -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for channels, stride in ((1, 2), (6, 2), (6, 1)):
        layers += [nn.Conv2d(channels, 6, 5, padding=2, stride=stride), nn.ReLU()]
    net, (x, y) = nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * 4, 4)).double(), rows(1, 1, 8, 8)
    plain, smoothed = (
        invert(
            net, losses, gradient(net, x, y), rows=1, row_shape=(1, 8, 8), labels=[0],
            effort=replace(PLAIN, widths=widths, balance=0.0, evenness=0.0),
        )[0]
        for widths in ((), (0.3, 0.1, 0.03, 0.01))
    )  # fmt: skip
    assert (plain.stage, smoothed.stage) == ("descent", "smoothed")
    assert smoothed.evaluations <= PLAIN.evaluations
    assert smoothed.residual < 0.1 * plain.residual
    assert float(psnr(smoothed.rows, x.numpy())[0]) > 30 > float(psnr(plain.rows, x.numpy())[0])


@pytest.mark.exhaustive
def test_total_variation_while_smoothed_leads_to_pictures_of_a_batch() -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for channels, stride in ((1, 1), (6, 2)):
        layers += [nn.Conv2d(channels, 6, 3, padding=1, stride=stride), nn.ReLU()]
    net, y = nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * 16, 4)).double(), torch.arange(2)
    x = torch.zeros(2, 1, 8, 8, dtype=torch.float64)
    x[0, :, 2:6, 1:4], x[1, :, 1:3, 3:7] = 1.0, 0.8
    uneven, even = (
        invert(
            net, losses, gradient(net, x, y), rows=2, row_shape=(1, 8, 8), labels=[0, 1],
            effort=replace(PLAIN, evaluations=280, evenness=evenness),
        )[0]
        for evenness in (0.0, 10.0)
    )  # fmt: skip
    assert psnr(even.rows, x.numpy()).min() > psnr(uneven.rows, x.numpy()).min() + 3.0
    assert even.residual < uneven.residual


def test_the_smoothed_network_tends_to_the_network_and_starts_race() -> None:
    z = torch.linspace(-2.0, 2.0, 41, dtype=torch.float64)
    for act in (torch.relu, nn.functional.relu, nn.LeakyReLU(0.2)):
        gaps = []
        for width in (0.3, 0.03):
            with SmoothedReLU(width):
                smooth = act(z)
            gaps.append(float((smooth - act(z)).abs().max()))
        assert 0.0 < gaps[1] < 0.11 * gaps[0]
    net, (x, y) = convolution(nn.ReLU), rows(1, 1, 6, 6)
    effort = replace(PLAIN, evaluations=12, widths=(0.3, 0.1, 0.03), restarts=3)
    found, _ = invert(net, losses, gradient(net, x, y), rows=1, row_shape=(1, 6, 6), labels=[0], effort=effort)
    assert found.evaluations == 3 * 3 + 3 * 3 + 3 + 3  # all starts for two widths, then the best alone


def test_tables_of_mixed_types_are_found() -> None:
    generator = np.random.default_rng(0)
    numbers, groups = generator.random((2, 4)), [(4, 5, 6), (7, 8)]
    x = np.hstack([numbers, np.eye(3)[[0, 2]], np.eye(2)[[1, 0]]])
    net, y = model(9, 30, 4, activation=nn.Sigmoid), torch.tensor([0, 1])
    sent = gradient(net, torch.tensor(x), y)
    effort = replace(PLAIN, evaluations=800)
    found, _ = invert(net, losses, sent, rows=2, row_shape=(9,), labels=[0, 1], categories=groups, effort=effort)
    features, whole = tabular_accuracy(found.rows, x, groups)
    assert features.shape == (6,)
    assert whole == 1.0
    assert set(np.unique(found.rows[:, 4:])) == {0.0, 1.0}


def test_real_targets_work_as_labels_do() -> None:
    net, (x, _) = model(10, 40, 2), rows(1, 10)
    aims = torch.ones(1, 2, dtype=torch.float64)
    sent = torch.autograd.grad(squares(net(x), aims).mean(), list(net.parameters()))
    found, _ = invert(net, squares, sent, rows=1, row_shape=(10,), targets=aims.numpy(), effort=FAST)
    assert sample_error(found.rows, x.numpy()) < 1e-8


def test_candidates_together_and_one_by_one_agree_and_slopes_are_derivatives() -> None:
    net, (x, y) = convolution(), rows(2, 36)
    network = FlatNetwork.of(net, losses, input_shape=(1, 6, 6))
    point = network.flatten(dict(net.named_parameters()))
    weights = torch.full((2,), 0.5, dtype=torch.float64)
    problem = InversionProblem(point, network.gradient(point, x, y, weights), y)
    candidates = np.random.default_rng(0).random((5, 72))
    prior = RowPrior(0.2, 0.8, box=0.1, variation=0.1, image=(1, 6, 6))
    for balance in (0.0, 1.5):
        alone, together = (
            GradientMatching(
                network, OneGradient(), problem, AllEntries(36), prior, balance=balance,
                batched=batched,
            )
            for batched in (False, True)
        )  # fmt: skip
        (values, slopes), (others, more) = alone(candidates), together(candidates)
        np.testing.assert_allclose(values, others, rtol=1e-10)
        np.testing.assert_allclose(slopes, more, atol=1e-12)
        step = np.zeros((5, 72))
        step[:, 7] = 1e-6
        rise = (alone(candidates + step)[0] - alone(candidates - step)[0]) / 2e-6
        np.testing.assert_allclose(rise, slopes[:, 7], rtol=1e-5, atol=1e-9)


def test_plain_autograd_and_the_transformed_gradient_are_the_same() -> None:
    net, (x, y) = convolution(), rows(2, 36)
    network = FlatNetwork.of(net, losses, input_shape=(1, 6, 6))
    point = network.flatten(dict(net.named_parameters()))
    cotangent = torch.randn(network.size, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for simulation in (OneGradient(), LocalSteps(0.3, 2)):
        found = []
        for one in (network, network.plain):
            own = x.clone().requires_grad_()
            sent = simulation(one, point, own, y)
            found.append((sent.detach(), torch.autograd.grad(sent @ cotangent, own)[0]))
        for expected, other in zip(*found, strict=True):
            torch.testing.assert_close(other, expected, rtol=1e-12, atol=1e-14)
    assert not network.plain.gradient(point, x, y, torch.ones(2, dtype=torch.float64)).requires_grad


@cache
def seen(
    method: GradientMethod, count: int, norm: float | None = None
) -> tuple[Target, View, View, tuple[Dataset, ...]]:
    """The target's and the sum's view of one round of 2 clients, whose messages are clipped to `norm`."""
    generator = np.random.default_rng(0)
    clients = tuple(Dataset(generator.random((count, 16)), np.arange(count) % 3) for _ in range(2))
    public = Public(2, 2, 16, (count, count), 3, 1.0)
    defense = None if norm is None else chain(clip(norm))
    transcript = Federation(method, clients, defense, public=public, seed=0).run(1).transcript
    return Target(method, public), views.server(transcript, 0), views.sum_only(transcript, 0), clients


NETWORK = DenseNetwork(hidden=(80,), precision="float64")
METHODS = [
    DSGD(problem=NETWORK),
    FedAvg(problem=NETWORK, learning_rate=0.1, local_steps=3),
    Scaffold(problem=NETWORK, learning_rate=0.1, local_steps=3),
    LoSAC(problem=NETWORK, learning_rate=0.1),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_the_attack_simulates_every_replayable_method(method: GradientMethod) -> None:
    target, server, _, clients = seen(method, 1)
    found = NetworkInversion(low=0.0).run(server, target, np.random.default_rng(0))
    assert found.residual < 1e-6
    assert sample_error(found.value, clients[0].x) < 1e-6
    np.testing.assert_array_equal(found.labels, clients[0].labels())


def test_a_sum_over_clients_hides_no_rows() -> None:
    target, _, total, clients = seen(METHODS[0], 1)
    found = NetworkInversion(low=0.0).run(total, target, np.random.default_rng(0))
    assert found.members == frozenset({0, 1})
    assert sample_error(found.value, np.concatenate([c.x for c in clients])) < 1e-4


def test_networks_without_labels_are_inverted() -> None:
    method = FedAvg(problem=Autoencoder(layers=(24, 4), precision="float64"), learning_rate=0.05, local_steps=2)
    target, server, _, clients = seen(method, 1)
    found = NetworkInversion(low=0.0).run(server, target, np.random.default_rng(0))
    assert found.labels is None
    assert sample_error(found.value, clients[0].x) < 1e-6


def test_noise_is_not_taken_for_rows() -> None:
    target, server, _, clients = seen(METHODS[0], 1)
    null = views.shuffled(server, np.random.default_rng(0))
    found = NetworkInversion(low=0.0, evaluations=50).run(null, target, np.random.default_rng(0))
    assert found.residual > 0.1
    assert sample_error(found.value, clients[0].x) > 0.1


def test_a_view_that_lacks_what_is_needed_is_named() -> None:
    target, server, _, _ = seen(METHODS[0], 1)
    attack, rng = NetworkInversion(), np.random.default_rng(0)
    observation = server.rounds[0]
    for part, word in (("broadcast", "broadcast lacks"), ("message", "message lacks")):
        tensors = dict(getattr(observation, part))
        tensors.pop(next(name for name in tensors if name.endswith("weight1")))
        broken = replace(server, rounds=(replace(observation, **{part: tensors}),))
        with pytest.raises(TranscriptError, match=f"exchange 0: the {word} tensor .*weight1"):
            attack.run(broken, target, rng)
    with pytest.raises(TranscriptError, match="at most 16 rows"):
        attack.run(*_of(seen(DSGD(problem=NETWORK), 20)), rng)
    with pytest.raises(TranscriptError, match="no messages"):
        attack.run(replace(server, rounds=()), target, rng)
    linear = replace(target, algorithm=DSGD(problem=LogisticRegression()))
    assert "linear models" in str(attack.applies(linear, server))


def _of(found: tuple[Target, View, View, tuple[Dataset, ...]]) -> tuple[View, Target]:
    return found[1], found[0]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rows": 0}, "at least 1"),
        ({"bounds": (1.0, 0.0)}, "low < high"),
        ({"labels": [0, 1]}, "as many labels"),
        ({"labels": None}, "pass labels"),
        ({"effort": InversionEffort(memory=1000)}, "2 searches .* MiB, beyond the limit of 0 MiB"),
        ({"effort": InversionEffort(restarts=10**9)}, "lower restarts"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(change: dict[str, object], word: str) -> None:
    net, (x, y) = model(20, 30, 4), rows(1, 20)
    settings: dict[str, object] = {"rows": 1, "row_shape": (20,), "labels": [0]} | change
    with pytest.raises(ConfigError, match=word):
        invert(net, losses, gradient(net, x, y), **settings)  # type: ignore[arg-type]


def test_messages_that_do_not_fit_the_model_are_refused() -> None:
    net, (x, y) = model(20, 30, 4), rows(1, 20)
    sent = gradient(net, x, y)
    with pytest.raises(ConfigError, match="3 tensors, the model trains 4"):
        invert(net, losses, sent[:3], rows=1, row_shape=(20,), labels=[0])
    with pytest.raises(ConfigError, match=r"'0\.weight' has shape"):
        invert(net, losses, [sent[0].T, *sent[1:]], rows=1, row_shape=(20,), labels=[0])
    with pytest.raises(ConfigError, match="not finite"):
        invert(net, losses, [sent[0] * torch.nan, *sent[1:]], rows=1, row_shape=(20,), labels=[0])
    normed = nn.Sequential(nn.BatchNorm1d(20), nn.Linear(20, 4))
    with pytest.raises(ConfigError, match="batch normalisation"):
        invert(normed, losses, sent, rows=1, row_shape=(20,), labels=[0])


def test_settings_are_checked() -> None:
    for settings in ({"restarts": 0}, {"evaluations": 0}, {"evenness": -1.0}, {"solved": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            InversionEffort(**settings)
    with pytest.raises(ConfigError, match="learning_rate"):
        LocalSteps(0.0, 5)
    with pytest.raises(ConfigError, match="steps"):
        LocalSteps(0.1, 0)


def test_quality_does_not_depend_on_the_order_of_rows() -> None:
    truth = np.random.default_rng(0).random((3, 2, 2))
    assert (psnr(truth[::-1], truth) > 100).all()
    np.testing.assert_allclose(psnr(truth + 0.1, truth), 20.0, atol=1e-9)
    features, whole = tabular_accuracy(np.eye(3), np.eye(3)[[2, 0, 1]], [(0, 1, 2)])
    assert features.tolist() == [1.0]
    assert whole == 1.0
    assert tabular_accuracy(np.eye(3)[[0, 0, 0]], np.eye(3), [(0, 1, 2)])[1] == pytest.approx(1 / 3)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_rows_of_a_fit_are_those_that_were_simulated(precision: torch.dtype) -> None:
    """The residual is that of rows in the network's precision, so the rows are returned in it."""
    own, (x, y) = model(30, 8, 4).to(precision), rows(2, 30)
    sent = torch.autograd.grad(losses(own(x.to(precision)), y).mean(), list(own.parameters()))
    found, _ = invert(own, losses, sent, rows=2, row_shape=(30,), labels=y.numpy(), effort=FAST)
    assert found.stage == "coordinates"
    assert torch.as_tensor(found.rows).dtype == precision


def test_rows_that_enter_a_layer_without_a_bias_are_not_read_off_it() -> None:
    """Neither the ratio nor the separation works without one, so that no slope by the bias is asked for."""
    first = nn.Linear(20, 60, bias=False)
    own, (x, y) = nn.Sequential(first, nn.ReLU(), nn.Linear(60, 4)).double(), rows(2, 20)
    sent = [g.detach() for g in torch.autograd.grad(losses(own(x), y).mean(), list(own.parameters()))]
    for known in (y.numpy(), None):
        found, _ = invert(own, losses, sent, rows=2, row_shape=(20,), labels=known, classes=4, effort=FAST)
        assert found.stage == "coordinates" and sample_error(found.rows, x.numpy()) < 1e-6

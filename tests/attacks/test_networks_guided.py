"""Local steps of one row told apart in the last layer's update, and the search that they guide."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from securefed.attacks.networks import Effort, LocalSteps, invert, psnr
from securefed.attacks.networks.guided import Guided
from securefed.attacks.networks.last_layer import Known, told
from securefed.attacks.networks.matching import Prior, Problem
from securefed.attacks.networks.network import Network

LOSS = partial(nn.functional.cross_entropy, reduction="none")
LOCAL = LocalSteps(0.2, 3)
SHAPE, FEATURES, CLASSES, LABEL = (1, 8, 8), 64, 5, 3


def model(dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(96, CLASSES),
        ).to(dtype)  # fmt: skip


def picture(dtype: torch.dtype = torch.float64) -> Tensor:
    across = torch.linspace(0, 3, 8, dtype=dtype)
    return (0.5 + 0.5 * torch.sin(across[:, None] * across + across)).reshape(1, *SHAPE)


def trained(start: nn.Module, x: Tensor, local: LocalSteps = LOCAL) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The update, and of each step what entered the last layer and the slope of the loss at its outputs."""
    own, y = copy.deepcopy(start), torch.tensor([LABEL])
    optimiser = torch.optim.SGD(own.parameters(), lr=local.learning_rate)
    inputs, slopes = [], []
    for _ in range(local.steps):
        optimiser.zero_grad()
        inputs.append(own[:-1](x)[0].detach())
        slopes.append((own(x).softmax(1) - nn.functional.one_hot(y, CLASSES))[0].detach())
        LOSS(own(x), y).mean().backward()
        optimiser.step()
    return [(a - b).detach() for a, b in zip(own.parameters(), start.parameters(), strict=True)], inputs, slopes


def setting(dtype: torch.dtype = torch.float64, local: LocalSteps = LOCAL) -> tuple[Network, Problem]:
    start = model(dtype)
    network = Network.of(start, LOSS, input_shape=SHAPE)
    update, _, _ = trained(start, picture(dtype), local)
    sent = network.flatten(dict(zip(network.shapes, update, strict=True)))
    return network, Problem(network.flatten(dict(start.named_parameters())), sent, torch.tensor([LABEL]))


def guide(network: Network, problem: Problem, local: LocalSteps = LOCAL) -> Guided | None:
    return Guided.of(network, local, problem, Prior(0.0, 1.0), FEATURES, np.random.default_rng(0))


def test_inputs_and_slopes_of_each_step_are_read_off_the_update() -> None:
    network, problem = setting()
    found = guide(network, problem)
    assert found is not None
    _, inputs, slopes = trained(model(), picture())
    torch.testing.assert_close(found.told.inputs, torch.stack(inputs), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.told.slopes, torch.stack(slopes), rtol=1e-4, atol=1e-6)
    assert (inputs[0] - inputs[2]).norm() > 0.1 * inputs[0].norm()  # they do differ


@pytest.mark.exhaustive
def test_last_steps_that_are_alike_count_as_one() -> None:
    local = LocalSteps(3.0, 5)  # after one step the slope is 1e-7
    network, problem = setting(local=local)
    found = guide(network, problem, local)
    assert found is not None
    _, inputs, slopes = trained(model(), picture(), local)
    torch.testing.assert_close(found.told.inputs, torch.stack(inputs[:2]), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(found.told.slopes[0], slopes[0], rtol=1e-4, atol=1e-6)
    x, seen = picture().reshape(1, -1), found.problem(network, problem).message
    torch.testing.assert_close(found(network.plain, problem.point, x, problem.targets), seen, rtol=1e-2, atol=1e-4)


def test_the_row_sends_what_was_seen_and_slopes_are_right() -> None:
    network, problem = setting()
    found = guide(network, problem)
    assert found is not None
    seen = found.problem(network, problem).message
    x = picture().reshape(1, -1)
    torch.testing.assert_close(found(network.plain, problem.point, x, problem.targets), seen, rtol=1e-4, atol=1e-6)

    other = (0.9 * x + 0.05).requires_grad_()
    value = (found(network.plain, problem.point, other, problem.targets) - seen).square().sum()
    (slope,) = torch.autograd.grad(value, other)
    direction = torch.cos(torch.arange(FEATURES, dtype=torch.float64)).reshape(1, -1)
    ends = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            gap = found(network.plain, problem.point, other + step * direction, problem.targets) - seen
        ends.append(float(gap.square().sum()))
    assert float(value.detach()) > 1e-3
    assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(float((slope * direction).sum()), rel=1e-4)


def test_what_does_not_tell_steps_apart_gives_no_guide() -> None:
    network, problem = setting()
    assert guide(network, problem, LocalSteps(0.2, 1)) is None
    many = LocalSteps(0.2, CLASSES)
    assert guide(*setting(local=many), many) is None  # beyond what the layer's rank tells
    assert guide(network, replace(problem, targets=torch.tensor([0, LABEL]))) is None
    assert guide(network, replace(problem, targets=torch.zeros(1, CLASSES))) is None


@pytest.mark.exhaustive
def test_no_steps_explain_an_update_of_another_rate() -> None:
    start, local = model(), LocalSteps(0.2, 2)
    update, inputs, _ = trained(start, picture(), local)
    weight, bias = (part.detach() for part in list(start.parameters())[-2:])
    rng = np.random.default_rng(0)

    def near() -> Tensor:
        return torch.stack(inputs) * torch.tensor(rng.uniform(0.8, 1.25, (2, 1)))

    def misfit(rate: float) -> float:
        known = Known(weight, bias, -update[-2] / rate, -update[-1] / rate, LABEL, rate, 2)
        found = told(known, near, rounds=1, together=8)
        return np.inf if found is None else found.misfit

    assert misfit(0.2) < 1e-6
    assert misfit(0.1) == np.inf


def test_a_network_that_computes_its_last_layer_otherwise_gives_no_guide() -> None:
    class Own(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            last = self.inner[-1]
            return self.inner[:-1](x) @ last.weight.T + last.bias

    network, problem = setting()
    assert guide(Network.of(Own(model()), LOSS, input_shape=SHAPE), problem) is None
    assert guide(network, problem) is not None


def test_an_image_is_found_by_its_guide() -> None:
    x = picture()
    update, _, _ = trained(model(), x)
    effort = Effort(exact=False, restarts=2, evaluations=240, signed_steps=0, widths=(0.3, 0.1, 0.03, 0.01, 0.001))
    found, _ = invert(
        model(), LOSS, update, rows=1, row_shape=SHAPE, labels=[LABEL], local=LOCAL, effort=effort
    )  # fmt: skip
    assert found.stage == "guided"
    assert found.residual < 0.03
    assert psnr(found.rows.reshape(1, -1), x.reshape(1, -1).numpy())[0] > 30.0
    other, _ = invert(
        model(), LOSS, update, rows=1, row_shape=SHAPE, labels=[LABEL], local=LOCAL,
        effort=replace(effort, guided=False, evaluations=6),
    )  # fmt: skip
    assert other.stage == "smoothed"

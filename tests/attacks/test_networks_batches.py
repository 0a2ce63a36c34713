"""Mini-batches of the simulated first round: the client's own, where the rows' order is the only thing not known."""

from __future__ import annotations

from functools import partial
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from securefed import Dataset, Federation, Public
from securefed.algorithms import FLAME, FedAvg
from securefed.attacks import LocalSteps, Target, views
from securefed.attacks._networks.client_simulations import mean_weights
from securefed.attacks._networks.first_round import network_of, read_first_round
from securefed.attacks._networks.flat_network import FlatNetwork
from securefed.attacks._personal.flame_simulation import FLAMESimulation
from securefed.errors import ConfigError
from securefed.problems import Autoencoder, DenseNetwork

PROBLEM = Autoencoder(layers=(5, 3), precision="float64")


@pytest.mark.parametrize("sizes", [(10, 10), (10, 3)], ids=["alike", "one of fewer rows than a batch"])
@pytest.mark.parametrize("batch", [5, 4, 3, 10])
def test_one_pass_over_rows_in_the_drawn_order_is_the_message_also_with_a_smaller_last_batch(
    sizes: tuple[int, int], batch: int
) -> None:
    method = FedAvg(problem=PROBLEM, learning_rate=0.3, local_epochs=1, batch_size=batch)
    rng = np.random.default_rng(0)
    clients = [Dataset(rng.random((size, 6))) for size in sizes]
    public = Public(2, 2, 6, sizes, 0, 1.0)
    transcript = Federation(method, clients, public=public, seed=0).run(1).transcript
    for client, data in enumerate(clients):
        drawn = method.draw(data.rows, np.random.default_rng([0, client, 1])).parts  # as the client draws in round 0
        x = torch.as_tensor(np.concatenate([data.x[part] for part in drawn]))
        first = read_first_round(views.server(transcript, client), Target(method, public))
        message = first.simulation(first.network, first.point, x, x)
        assert float((message - first.message).norm() / first.message.norm()) < 1e-12
        in_order = first.simulation(first.network, first.point, torch.as_tensor(data.x), x)
        if len(drawn) > 1:  # in another order the batches are others
            assert float((in_order - first.message).norm() / first.message.norm()) > 1e-6


def test_a_path_of_flame_uses_the_rows_of_a_smaller_last_batch() -> None:
    """Two passes over 5 rows in batches of 2: steps of 2, 2 and 1 rows, as the rule of FLAME's docstring makes them."""
    problem = DenseNetwork(hidden=(5,), precision="float64")
    method = FLAME(problem=problem, learning_rate=0.1, local_epochs=2, batch_size=2)
    public = Public(2, 2, 6, (5, 5), 3, 1.0)
    network = network_of(problem, public)  # type: ignore[arg-type]
    torch.manual_seed(0)
    start, anchor = torch.rand(2, network.size, dtype=torch.float64)
    x, y = torch.rand(5, 6, dtype=torch.float64), torch.arange(5) % 3
    memory = (start[None], anchor[None], torch.zeros(1, network.size, dtype=torch.float64))
    simulation = FLAMESimulation(method, public, 5, start[None], memory, 6)
    moved = start
    for rows in (slice(0, 2), slice(2, 4), slice(4, 5)) * 2:
        slope = network.gradient(moved, x[rows], y[rows], mean_weights(x[rows]))
        moved = moved - method.learning_rate * (slope + method.attraction * (moved - anchor))
    expected = simulation.mean_gradients(network, (moved - start)[None]).reshape(-1)
    torch.testing.assert_close(simulation(network, start, x, y), expected)


@pytest.mark.parametrize("drop_last", [False, True])
def test_local_steps_take_the_batches_of_a_data_loader(drop_last: bool) -> None:
    """Five steps over 8 rows in batches of 3, which torch's loader ends by 2 rows unless told to drop them."""
    torch.manual_seed(0)
    model, rate = nn.Linear(6, 3).double(), 0.3
    x, y = torch.rand(8, 6, dtype=torch.float64), torch.arange(8) % 3
    network = FlatNetwork.of(model, partial(cross_entropy, reduction="none"))
    start = network.flatten(dict(model.named_parameters())).detach()
    loader = DataLoader(TensorDataset(x, y), batch_size=3, drop_last=drop_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    for rows, targets in islice(chain(loader, loader, loader), 5):
        optimiser.zero_grad()
        cross_entropy(model(rows), targets).backward()
        optimiser.step()
    sent = network.flatten(dict(model.named_parameters())).detach() - start
    simulated = LocalSteps(rate, 5, batch_size=3, drop_last=drop_last)(network, start, x, y)
    torch.testing.assert_close(simulated.detach(), sent)


def test_a_batch_larger_than_the_rows_is_refused_where_a_data_loader_would_yield_none() -> None:
    network = FlatNetwork.of(nn.Linear(6, 3).double(), partial(cross_entropy, reduction="none"))
    start, x, y = torch.zeros(network.size, dtype=torch.float64), torch.ones(3, 6, dtype=torch.float64), torch.arange(3)
    assert not list(DataLoader(TensorDataset(x, y), batch_size=4, drop_last=True))
    with pytest.raises(ConfigError, match="no batch of 4 with drop_last=True"):
        LocalSteps(0.3, 5, batch_size=4, drop_last=True)(network, start, x, y)
    whole = LocalSteps(0.3, 5, batch_size=3, drop_last=True)(network, start, x, y)  # the control
    torch.testing.assert_close(whole, LocalSteps(0.3, 5, batch_size=4)(network, start, x, y))

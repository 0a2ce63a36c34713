"""Mini-batches of the simulated first round: the client's own, where the rows' order is the only thing not known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed.algorithms._optimization import FedAvg
from securefed.attacks import views
from securefed.attacks._base import Target
from securefed.attacks._networks.first_round import read_first_round
from securefed.datasets._base import Dataset
from securefed.problems import Autoencoder

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

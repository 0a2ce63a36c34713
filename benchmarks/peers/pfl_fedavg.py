"""The peer of `benchmarks.peers.cohort`: the same FedAvg round simulated by pfl-research, in an environment of its own.

Imports nothing of ours and prints one JSON object: CPU seconds of each round after the first. Evaluation and
metrics are switched off; users' rows are tensors already.

    .venv-pfl/bin/python benchmarks/peers/pfl_fedavg.py USERS ROWS BATCH STEPS ROUNDS
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel


class TwoLayers(torch.nn.Sequential):
    """2NN on 784 features and 10 classes."""

    def __init__(self) -> None:
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        super().__init__(linear(784, 200), relu(), linear(200, 200), relu(), linear(200, 10))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {}


class Clock(TrainingProcessCallback):
    """When each round ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.ends.append(time.process_time())
        return False, type(aggregate_metrics)()


def main() -> None:
    users, rows, batch, steps, rounds = map(int, sys.argv[1:])
    torch.set_num_threads(1)  # several threads take longer on products of this size (measured)
    rng = np.random.default_rng(0)
    x, y = rng.random((users, rows, 784), dtype=np.float32), rng.integers(0, 10, (users, rows))
    data = [
        PyTorchTensorDataset((torch.from_numpy(x[k]), torch.from_numpy(y[k])), user_id=str(k)) for k in range(users)
    ]
    order = iter(range(10**9))
    federated = FederatedDataset(lambda user: data[int(user)], lambda: str(next(order) % users))
    module = TwoLayers()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    epochs = steps if batch == 0 else -(-steps * batch // rows)
    training = NNTrainHyperParams(
        local_batch_size=batch or None, local_num_epochs=epochs, local_learning_rate=0.01, local_num_steps=None
    )
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(rounds + 1, 10**9, users, None), SimulatedBackend(federated, federated), model, training,
        callbacks=[clock],
    )  # fmt: skip
    print(json.dumps({"seconds": list(np.diff(clock.ends))}))


if __name__ == "__main__":
    main()

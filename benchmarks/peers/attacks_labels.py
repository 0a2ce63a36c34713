"""Labels behind one gradient: by the mean row, and by iLRG's equations. `python -m benchmarks attacks_labels`.

MNIST digits (SECUREFED_DATA; else scikit-learn's, enlarged), the mean gradient of a batch. A seed counts where the
estimate is the true number of rows of every class; else the true one comes after others in the order of trial. Both
are of the last layer's gradient alone and round to the same integers: they differ in the means that p is taken at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import nn

from benchmarks.peers.attacks_networks import CLASSES, dense, drawn, lenet, sent
from benchmarks.rows import Row, row, write
from securefed._tensors import Array
from securefed.attacks._fitting.label_counts import minimum_counts, nearest_counts
from securefed.attacks._networks.last_layer_labels import plausible_label_counts

SEEDS, BATCHES, MOST = range(20), (4, 8, 12, 24, 48), 400


def _flat(widths: tuple[int, ...], seed: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), dense(widths, seed, torch.float64))


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "softmax 784-10, torch's default weights": partial(_flat, (784, 10)),
    "784-64-10 ReLU, torch's default weights": partial(_flat, (784, 64, 10)),
    "LeNet ReLU, torch's default weights": partial(lenet, "relu"),
    "LeNet sigmoid, U(-.5, .5)": partial(lenet, "sigmoid"),
}


def ilrg(rows: int, weight: Array, bias: Array, at_weight: Array, at_bias: Array) -> Array:
    """Counts by iLRG (Ma et al. 2023), rounded as ours are, which loses it nothing (its own rounding: as many or one
    seed fewer).

    Rows of class i have about p_i, at what enters the layer in about gW_i / gb_i: so sum_i n_i p_ic - n_c = B gb_c for
    every class c, and sum_i n_i = B, which the pseudo-inverse solves.
    """
    logits = weight / bias[:, None] @ at_weight.T + at_bias
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    p = powers / powers.sum(axis=1, keepdims=True)
    equations = np.vstack([np.ones(len(bias)), p.T - np.eye(len(bias))])
    estimate = np.linalg.pinv(equations) @ (rows * np.append(1.0, bias))
    return next(nearest_counts(estimate, minimum_counts(rows * bias), rows))


def measured(make: Callable[[int], nn.Module], rows: int, seed: int) -> tuple[float, float, float]:
    """Whether the estimate is right, whether the peer's is, and how many counts came before the true one."""
    model = make(seed)
    x, y = drawn(rows, seed)
    message = [part.numpy() for part in sent(model, x, y, None)[-2:]]
    point = [part.detach().numpy() for part in list(model.parameters())[-2:]]
    true = np.bincount(y.numpy(), minlength=CLASSES)
    tried = islice(plausible_label_counts(rows, *message, *point), MOST)
    place = next((k for k, counts in enumerate(tried) if (counts == true).all()), MOST)
    return float(place == 0), float((ilrg(rows, *message, *point) == true).all()), float(place)


def main() -> None:
    """Measure and write `results/attacks_labels.json`."""
    out: list[Row] = []
    for name, make in MODELS.items():
        for rows in BATCHES:
            ours, peers, places = zip(*(measured(make, rows, seed) for seed in SEEDS), strict=True)
            setting = f"{name}, one gradient of {rows} digits"
            right, peer = sum(ours) / len(ours), sum(peers) / len(peers)
            out += [
                Row("labels counted rightly", setting, right, "share", len(ours), (min(ours), max(ours)), peer, "iLRG"),
                row("counts tried before the true one", setting, places, "counts"),
            ]
            print(f"{setting:72} {sum(ours):3.0f} {sum(peers):3.0f} of {len(ours)}, at most {max(places):.0f} before")
    print(write("attacks_labels", out))


if __name__ == "__main__":
    main()

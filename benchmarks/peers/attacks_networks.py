"""Gradient inversion for networks: `python -m benchmarks attacks_networks`.

LeNet with sigmoid and weights uniform in +-0.5, and with ReLU and torch's default start, on MNIST digits
(SECUREFED_DATA; else scikit-learn's digits, enlarged). The message is one gradient, or the update of 5 local steps.
Exact shortcuts are off, labels known, every seed draws its images and its weights. Then the exact stages, whose labels
are unknown, and searches together against one by one. A cell is kept in `results/cells/attacks_networks.json`, and what
is there is not run again; `NETWORKS_SECONDS` ends a run early, the next one goes on.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.rows import RESULTS, Row, row, show, write
from securefed._tensors import Array
from securefed.attacks._networks.client_simulations import LocalSteps
from securefed.attacks._networks.module_inversion import invert
from securefed.attacks._networks.reconstruction_quality import psnr
from securefed.attacks._networks.staged_inversion import InversionEffort
from securefed.datasets._dataset_files import DATA_VARIABLE
from securefed.datasets._loaders import load

CELLS = RESULTS / "cells" / "attacks_networks.json"
SIDE, CLASSES, GOOD = 28, 10, 30.0
EXACT_SEEDS = 10
LOCAL = LocalSteps(0.1, 5)
LOSS = partial(nn.functional.cross_entropy, reduction="none")
KINDS = (("single", 1), ("fedavg", 1), ("batch", 4), ("batch", 8))
SEEDS = {"sigmoid": (20, 20, 10, 10), "relu": (20, 20, 10, 10)}
"""Of each kind."""
DESCENT = InversionEffort(exact=False, restarts=1, evaluations=3000)
EFFORTS: dict[tuple[str, str, int], InversionEffort] = {
    ("relu", "single", 1): replace(
        DESCENT, evaluations=2000, restarts=2, widths=(0.3, 0.1, 0.03, 0.01, 0.001), balance=0.0, evenness=0.0
    ),
    ("relu", "fedavg", 1): replace(DESCENT, evaluations=1000, restarts=8),
    ("relu", "batch", 4): replace(DESCENT, evaluations=2000),
    ("relu", "batch", 8): replace(DESCENT, evaluations=2600),
}
"""By activation, kind and n_i; `DESCENT` where none is named."""


@cache
def images() -> tuple[Array, Array]:
    """Rows in [0, 1] of 28 x 28 pixels, and labels."""
    if os.environ.get(DATA_VARIABLE):
        data = load("mnist").data
        return data.x, data.labels()
    data = load("digits").data
    large = np.kron(data.x.reshape(-1, 8, 8), np.ones((1, 3, 3)))
    return np.pad(large, ((0, 0), (2, 2), (2, 2))).reshape(len(large), -1), data.labels()


def lenet(activation: str, seed: int) -> nn.Module:
    """Three convolutions 5x5 of 12 channels, strides 2, 2, 1, then 10 logits: 13,426 parameters, float64."""
    act: Callable[[], nn.Module] = nn.Sigmoid if activation == "sigmoid" else nn.ReLU
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for channels, stride in ((1, 2), (12, 2), (12, 1)):
            layers += [nn.Conv2d(channels, 12, 5, padding=2, stride=stride), act()]
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * 7 * 7, CLASSES)).double()
        if activation == "sigmoid":
            for parameter in model.parameters():
                nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def drawn(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (count, 1, 28, 28) and labels of one client."""
    x, y = images()
    chosen = np.random.default_rng(seed).choice(len(x), count, replace=False)
    return torch.tensor(x[chosen].reshape(count, 1, SIDE, SIDE)), torch.tensor(y[chosen].astype(np.int64))


def sent(model: nn.Module, x: torch.Tensor, y: torch.Tensor, local: LocalSteps | None) -> list[torch.Tensor]:
    """What the client sends."""
    if local is None:
        return [g.detach() for g in torch.autograd.grad(LOSS(model(x), y).mean(), list(model.parameters()))]
    own = copy.deepcopy(model)
    optimiser = torch.optim.SGD(own.parameters(), lr=local.learning_rate)
    for _ in range(local.steps):
        optimiser.zero_grad()
        LOSS(own(x), y).mean().backward()
        optimiser.step()
    return [(a - b).detach() for a, b in zip(own.parameters(), model.parameters(), strict=True)]


def attack(activation: str, kind: str, count: int, seed: int) -> dict[str, Any]:
    """One cell."""
    local = LOCAL if kind == "fedavg" else None
    model, (x, y) = lenet(activation, seed), drawn(count, seed)
    effort, start = EFFORTS.get((activation, kind, count), DESCENT), time.process_time()
    found, _ = invert(
        model,
        LOSS,
        sent(model, x, y, local),
        rows=count,
        row_shape=(1, SIDE, SIDE),
        labels=y.numpy(),
        local=local,
        effort=effort,
        seed=seed,
    )
    return {
        "psnr": np.round(psnr(found.rows, x.numpy()), 2).tolist(),
        "residual": found.residual,
        "evaluations": found.evaluations,
        "stage": found.stage,
        "seconds": round(time.process_time() - start, 2),
    }


def cells(until: float) -> dict[str, dict[str, Any]]:
    """All cells there are, after running missing ones until `until` (seconds since the epoch)."""
    known: dict[str, dict[str, Any]] = json.loads(CELLS.read_text()) if CELLS.exists() else {}
    for kind, count in KINDS:
        for activation, numbers in SEEDS.items():
            seeds = range(numbers[KINDS.index((kind, count))])
            for seed in seeds:
                cell = f"{activation}/{kind}/{count}/{seed}"
                if cell in known or time.time() > until or not _wanted(cell):
                    continue
                known[cell] = attack(activation, kind, count, seed)
                print(cell, known[cell], flush=True)
                CELLS.parent.mkdir(exist_ok=True)
                CELLS.write_text(json.dumps(known, indent=0) + "\n")
    return known


def _wanted(cell: str) -> bool:
    """`NETWORKS_CELLS` names the beginning of the cells to run; all without it."""
    return cell.startswith(os.environ.get("NETWORKS_CELLS", ""))


def main() -> None:
    torch.set_num_threads(1)
    until = time.time() + float(os.environ.get("NETWORKS_SECONDS", "1e9"))
    found = cells(until)
    rows = [line for key in KINDS for activation in SEEDS for line in _images(found, activation, *key)]
    rows += [*_exact(), *_together()]
    write("attacks_networks", rows)
    show(rows)


TARGETS = {("single", 1): 0.95, ("batch", 4): 0.7, ("batch", 8): 0.3, ("fedavg", 1): 0.95}


def _images(found: dict[str, dict[str, Any]], activation: str, kind: str, count: int) -> list[Row]:
    own = [v for k, v in found.items() if k.startswith(f"{activation}/{kind}/{count}/")]
    if not own:
        return []
    start = "U(-.5, .5)" if activation == "sigmoid" else "default start"
    steps = f"{LOCAL.steps} steps of {LOCAL.learning_rate}" if kind == "fedavg" else "one gradient"
    setting = f"LeNet {activation}, {start}, {steps}, n_i={count}, {len(own)} seeds, labels known"
    shares = [float(np.mean(np.array(cell["psnr"]) > GOOD)) for cell in own]
    share, target = float(np.mean(shares)), TARGETS[kind, count]
    met = share >= target if activation == "sigmoid" else None
    told = f">= {target}" if activation == "sigmoid" else None
    values = [value for cell in own for value in cell["psnr"]]
    return [
        Row("images above 30 dB", setting, share, "share", len(own), (min(shares), max(shares)), target=told, met=met),
        row("PSNR", setting, values, "dB"),
        row("CPU time of an attack", setting, [cell["seconds"] for cell in own], "s"),
    ]


def dense(widths: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Linear layers with ReLU between, torch's default start."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inner, outer in pairwise(widths):
            layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(dtype)


def _exact() -> list[Row]:
    """Rows read off the first layer, labels unknown, float32."""
    out = []
    for widths in ((784, 1024, 10), (784, 200, 200, 10)):
        for count in (1, 2, 4, 8, 12, 16, 24):
            shares, seconds = [], []
            for seed in range(EXACT_SEEDS):
                model, (x, y) = dense(widths, seed), drawn(count, seed)
                x = x.float().reshape(count, -1)
                message = sent(model, x, y, None)
                start = time.process_time()
                found, _ = invert(
                    model, LOSS, message, rows=count, row_shape=(784,), classes=CLASSES, seed=seed,
                    effort=InversionEffort(restarts=1, evaluations=1),
                )  # fmt: skip
                seconds.append(time.process_time() - start)
                shares.append(float(np.mean(psnr(found.rows, x.numpy()) > GOOD)))
            setting = f"{'-'.join(map(str, widths))} ReLU, default start, one gradient, n_i={count}, labels unknown"
            share = float(np.mean(shares))
            wide = widths[1] == 1024 and count <= 8
            target, met = (">= 1", share >= 1) if wide else (None, None)
            spread = (min(shares), max(shares))
            line = Row("rows read off the first layer", setting, share, "share", EXACT_SEEDS, spread)
            out.append(replace(line, target=target, met=met))
            out.append(row("CPU time, probes and check included", setting, [1e3 * s for s in seconds], "ms"))
    return out


def _together() -> list[Row]:
    """The same searches as the code chooses to run them, beside one by one and all by `vmap`."""
    out = []
    for restarts in (4, 16, 64):
        model, (x, y) = lenet("sigmoid", 0).float(), drawn(1, 0)
        x = x.float()
        message = sent(model, x, y, None)
        took = {}
        for batched in (False, True, None):
            effort = InversionEffort(exact=False, restarts=restarts, evaluations=6, batched=batched)
            runs = []
            for _ in range(3):
                start = time.process_time()
                invert(model, LOSS, message, rows=1, row_shape=(1, SIDE, SIDE), labels=y.numpy(), effort=effort)
                runs.append(time.process_time() - start)
            took[batched] = runs
        setting = f"LeNet sigmoid float32, {restarts} restarts, 6 evaluations each"
        for batched, peer in ((False, "one by one"), (True, "one vmap of all")):
            quantity = f"CPU time, chosen by the code; beside {peer}"
            out.append(row(quantity, setting, took[None], "s", peer=median(took[batched]), peer_name=peer))
    return out


if __name__ == "__main__":
    sys.exit(main())

"""A peer of `benchmarks.peers.inversion_peers`: breaching's deep leakage on messages that we made.

Runs in an environment of its own (`.venv-breaching`), imports nothing of ours, and prints one JSON object.

    .venv-breaching/bin/python benchmarks/peers/breaching_inversion.py PROBLEM.safetensors ATTACK SECONDS

PROBLEM holds the tensors `model/NAME`, `gradient/0`, ... (in the order of the parameters), `labels` and `rows`, and in
its header `seed` and `layers`, the kind and the settings of each layer. ATTACK is
`joint` (label scores fitted too: its `deepleakage`) or `labels` (the same with labels known). An iteration is one
of torch's L-BFGS, 20 evaluations at most. A search ends at its own limit or after SECONDS of CPU time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
import time
import warnings
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

warnings.filterwarnings("ignore")  # breaching 0.1.2 predates the libraries that it is run with
# torchvision's compiled operators are built for another torch than the CPU build. breaching calls none of them; their
# declaration is all that importing torchvision needs.
_OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import breaching  # noqa: E402 - needs the declarations above
from breaching.attacks import prepare_attack  # noqa: E402

LAYERS = {kind.__name__: kind for kind in (nn.Conv2d, nn.Linear, nn.Flatten, nn.Sigmoid, nn.ReLU)}


class Record(SimpleNamespace):
    """The record of the data that breaching reads by attribute and by key."""

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def main() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    path, attack, seconds = sys.argv[1:4]
    print(json.dumps(invert(read(path), attack, float(seconds))))


def read(path: str) -> dict[str, Any]:
    """The problem, its model built from what the header says."""
    with safe_open(path, framework="pt") as held:
        facts, tensors = held.metadata(), {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118
    model = torch.nn.Sequential(*(LAYERS[kind](**settings) for kind, settings in json.loads(facts["layers"])))
    model.load_state_dict({n.removeprefix("model/"): value for n, value in tensors.items() if n.startswith("model/")})
    count = sum(name.startswith("gradient/") for name in tensors)
    gradient = [tensors[f"gradient/{k}"] for k in range(count)]
    given = {"rows": tensors["rows"], "labels": tensors["labels"], "seed": int(facts["seed"])}
    return given | {"model": model, "gradient": gradient}


def invert(problem: dict[str, Any], attack: str, seconds: float) -> dict[str, Any]:
    """How the search went: see `Followed`."""
    options = ["attack_type=optimization"] if attack == "labels" else []
    config = breaching.get_attack_config("deepleakage", options)
    model, x = problem["model"], problem["rows"]
    torch.manual_seed(problem["seed"])
    record = Record(shape=tuple(x.shape[1:]), modality="vision", task="classification", classes=10)
    shared = {
        "gradients": problem["gradient"],
        "buffers": None,
        "metadata": {
            "num_data_points": len(x),
            "labels": problem["labels"] if attack == "labels" else None,
            "local_hyperparams": None,
        },
    }
    payload = {"parameters": [p.detach() for p in model.parameters()], "buffers": None, "metadata": record}
    attacker = prepare_attack(model, torch.nn.CrossEntropyLoss(), config)
    followed = Followed(attacker.objective, x, seconds)
    attacker.objective = followed
    with contextlib.suppress(OutOfTime):
        attacker.reconstruct([payload], [shared], {}, dryrun=False)
    return {"seconds": followed.seconds, "quality": followed.quality, "total": followed.elapsed()}


class OutOfTime(Exception):
    """The search has had its seconds."""


class Followed:
    """Stands for an objective and notes what its candidates are worth.

    Attributes:
        quality: PSNR of the candidate, whenever the objective improved.      seconds: when, the noting not counted.
    """

    def __init__(self, objective: Any, truth: torch.Tensor, limit: float) -> None:
        self.seconds: list[float] = []
        self.quality: list[float] = []
        self.initialize = objective.initialize
        self._objective, self._truth, self._limit = objective, truth, limit
        self._lowest, self._start, self._idle = float("inf"), time.process_time(), 0.0

    def elapsed(self) -> float:
        return time.process_time() - self._start - self._idle

    def __call__(self, model: Any, gradient: Any, candidate: torch.Tensor, labels: torch.Tensor) -> Any:
        if self.elapsed() > self._limit:
            raise OutOfTime
        value, task = self._objective(model, gradient, candidate, labels)
        now = time.process_time()
        if (seen := float(value.detach())) < self._lowest:
            self._lowest = seen
            self.seconds.append(now - self._start - self._idle)
            self.quality.append(-10 * math.log10(float((candidate.detach() - self._truth).square().mean()) + 1e-20))
        self._idle += time.process_time() - now
        return value, task


if __name__ == "__main__":
    main()

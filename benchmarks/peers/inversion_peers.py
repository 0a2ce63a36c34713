"""Deep leakage beside its peers on the same single digits: `python -m benchmarks inversion_peers`.

LeNet with sigmoid and weights U(-.5, .5), and with ReLU and torch's default start, float32, one gradient, n_i = 1; the
same messages go to everybody, one thread each, CPU time.

  ours      L-BFGS with a line search in the range of the pixels, labels known, 3000 evaluations at most; exact
            shortcuts off
  recipe    the original one (Zhu et al. 2019), written from its description: torch's L-BFGS at rate 1 for 300
            iterations (of 20 evaluations at most) on pixels and label scores, Gaussian start. Also with labels known.
  breaching its `deepleakage` attack, the same idea, in an environment of its own (`.venv-breaching`)

The searches of the peers are followed: the candidate of the lowest objective at the moment when ours ended (equal
time), at their own end or after `SECONDS`, and when every image first exceeded 30 dB. The following is not timed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.peers.attacks_networks import CLASSES, GOOD, LOSS, SIDE, drawn, lenet, sent
from benchmarks.rows import RESULTS, Row, write
from securefed.attacks._networks.module_inversion import invert
from securefed.attacks._networks.reconstruction_quality import psnr
from securefed.attacks._networks.staged_inversion import InversionEffort

ROOT = Path(__file__).parents[2]
CELLS = RESULTS / "cells" / "inversion_peers.json"
SEEDS = range(int(os.environ.get("PEERS_SEEDS", "10")))
SECONDS, ITERATIONS = 5.0, 300
OURS = InversionEffort(exact=False, restarts=1, evaluations=3000)
FACTS: dict[type[torch.nn.Module], tuple[str, ...]] = {
    torch.nn.Conv2d: ("in_channels", "out_channels", "kernel_size", "stride", "padding"),
    torch.nn.Linear: ("in_features", "out_features"),
    torch.nn.Flatten: (),
    torch.nn.Sigmoid: (),
    torch.nn.ReLU: (),
}
"""By kind of layer, what the peer needs to build it."""
PACKAGES = ("breaching==0.1.2", "lpips==0.1.4")
WITH = ("torchvision==0.28.0", "hydra-core==1.3.8", "omegaconf==2.4.0", "antlr4-python3-runtime==4.9.3", "pyyaml")


@dataclass
class Course:
    """How a search went: the PSNR of its best candidate whenever that improved, by CPU seconds of the search."""

    seconds: list[float] = field(default_factory=list)
    quality: list[float] = field(default_factory=list)
    total: float = 0.0

    def at(self, moment: float) -> float:
        """Quality of the best candidate then (of a blank image before the first)."""
        known = [value for when, value in zip(self.seconds, self.quality, strict=True) if when <= moment]
        return known[-1] if known else 0.0

    @property
    def reached(self) -> float | None:
        """When it first exceeded `GOOD`."""
        pairs = zip(self.seconds, self.quality, strict=True)
        return next((when for when, value in pairs if value > GOOD), None)


def problem(activation: str, seed: int) -> dict[str, Any]:
    """One message, in float32."""
    model, (x, y) = lenet(activation, seed).float(), drawn(1, seed)
    x = x.float()
    return {"model": model, "rows": x, "labels": y, "gradient": sent(model, x, y, None), "seed": seed}


def ours(task: dict[str, Any]) -> Course:
    """The library's descent."""
    start = time.process_time()
    found, _ = invert(
        task["model"], LOSS, task["gradient"], rows=1, row_shape=(1, SIDE, SIDE), labels=task["labels"].numpy(),
        effort=OURS, seed=task["seed"],
    )  # fmt: skip
    took = time.process_time() - start
    return Course([took], [float(psnr(found.rows, task["rows"].numpy())[0])], took)


def recipe(task: dict[str, Any], *, known: bool) -> Course:
    """The original recipe."""
    model, truth = task["model"], task["rows"]
    parameters = list(model.parameters())
    generator = torch.Generator().manual_seed(task["seed"])
    x = torch.randn(truth.shape, generator=generator).requires_grad_()
    scores = torch.randn((len(truth), CLASSES), generator=generator).requires_grad_()
    search = torch.optim.LBFGS([x] if known else [x, scores])
    course, lowest, start, idle = Course(), float("inf"), time.process_time(), 0.0

    def misfit() -> torch.Tensor:
        nonlocal lowest, idle
        search.zero_grad()
        target = task["labels"] if known else scores.softmax(dim=-1)
        loss = torch.nn.functional.cross_entropy(model(x), target)
        made = torch.autograd.grad(loss, parameters, create_graph=True)
        value = torch.stack([(a - b).square().sum() for a, b in zip(made, task["gradient"], strict=True)]).sum()
        value.backward()
        now = time.process_time()
        if (seen := float(value.detach())) < lowest:
            lowest = seen
            course.seconds.append(now - start - idle)
            course.quality.append(float(psnr(x.detach().numpy(), truth.numpy())[0]))
        idle += time.process_time() - now
        return value

    for _ in range(ITERATIONS):
        value = search.step(misfit)
        if not torch.isfinite(value) or time.process_time() - start - idle > SECONDS:
            break
    course.total = time.process_time() - start - idle
    return course


def breaching(task: dict[str, Any], *, known: bool) -> Course:
    """The peer's, in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.safetensors"
        model = task["model"]
        layers = [
            (type(layer).__name__, {name: getattr(layer, name) for name in FACTS[type(layer)]}) for layer in model
        ]
        tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
        tensors |= {f"gradient/{k}": value.detach() for k, value in enumerate(task["gradient"])}
        tensors |= {name: task[name] for name in ("rows", "labels")}
        save_file(
            {name: value.contiguous() for name, value in tensors.items()},
            path,
            {
                "layers": json.dumps(layers),
                "seed": str(task["seed"]),
            },
        )
        script = ROOT / "benchmarks" / "peers" / "breaching_inversion.py"
        command = [str(environment()), str(script), str(path), "labels" if known else "joint", str(SECONDS)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
    return Course(**json.loads(done.stdout.splitlines()[-1]))


def environment() -> Path:
    """The peer's interpreter; the environment is made where it is missing.

    Its torch is ours (the packages beside it are found through a path file): breaching pins none. torchvision comes
    without its dependencies, among which is another build of torch.
    """
    home = ROOT / ".venv-breaching"
    python = home / "bin" / "python"
    if not (home / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
        place = next((home / "lib").glob("python*/site-packages"))
        beside = Path(torch.__file__).parents[1]
        (place / "beside.pth").write_text(f"{beside}\n")
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place)]
        subprocess.run([*install, *PACKAGES, *WITH], check=True)
        (home / ".ready").touch()
    return python


METHODS: dict[str, Callable[[dict[str, Any]], Course]] = {
    "ours": ours,
    "recipe": lambda task: recipe(task, known=False),
    "recipe, labels known": lambda task: recipe(task, known=True),
    "breaching": lambda task: breaching(task, known=False),
    "breaching, labels known": lambda task: breaching(task, known=True),
}


def cells(until: float) -> dict[str, dict[str, Any]]:
    """All courses there are, after running missing ones until `until`: by activation, seed and method."""
    known: dict[str, dict[str, Any]] = json.loads(CELLS.read_text()) if CELLS.exists() else {}
    for activation in ("sigmoid", "relu"):
        for seed in SEEDS:
            for method, run in METHODS.items():
                name = f"{activation}/{seed}/{method}"
                if name in known or time.time() > until:
                    continue
                course = run(problem(activation, seed))
                moment = course.total if method == "ours" else known[f"{activation}/{seed}/ours"]["seconds"]
                known[name] = {
                    "seconds": round(course.total, 2),
                    "end": round(course.at(float("inf")), 2),
                    "equal": round(course.at(moment), 2),
                    "reached": None if course.reached is None else round(course.reached, 2),
                }
                CELLS.parent.mkdir(exist_ok=True)
                CELLS.write_text(json.dumps(known, indent=0) + "\n")
                print(name, known[name], flush=True)
    return known


def main() -> None:
    torch.set_num_threads(1)
    found = cells(time.time() + float(os.environ.get("NETWORKS_SECONDS", "1e9")))
    rows = [line for activation in ("sigmoid", "relu") for line in _compared(found, activation)]
    write("inversion_peers", rows)
    for r in rows:
        print(f"{r.quantity:42} {r.setting:60} {r.ours:8.4g} {r.unit:6} {r.peer} {r.peer_name}")


def _compared(found: dict[str, dict[str, Any]], activation: str) -> list[Row]:
    by: dict[str, list[dict[str, Any]]] = {}
    for method in METHODS:
        by[method] = [
            v for k, v in sorted(found.items()) if k.startswith(f"{activation}/") and k.endswith(f"/{method}")
        ]
    setting = f"LeNet {activation}, float32, one gradient, n_i=1"
    out: list[Row] = []
    for method in list(METHODS)[1:]:
        theirs = by[method]
        if not theirs:
            continue
        seeds, mine = f"{setting}, {len(theirs)} seeds", by["ours"][: len(theirs)]
        for quantity, key in (("images above 30 dB, equal time", "equal"), ("images above 30 dB, at the end", "end")):
            share, peer = (_share([cell[key] for cell in cells]) for cells in (mine, theirs))
            out.append(Row(quantity, seeds, share, "share", len(mine), (share, share), peer, method))
        for quantity, key, unit in (("PSNR, equal time", "equal", "dB"), ("CPU time of an attack", "seconds", "s")):
            values, peers = [cell[key] for cell in mine], [cell[key] for cell in theirs]
            spread = (min(values), max(values))
            out.append(Row(quantity, seeds, median(values), unit, len(mine), spread, median(peers), method))
        out.append(_time_to_good(mine, theirs, seeds, method))
    return out


def _time_to_good(mine: list[dict[str, Any]], theirs: list[dict[str, Any]], setting: str, method: str) -> Row:
    """Medians in which a search that never got there counts as `SECONDS`; ours is noted at its end only."""
    one, other = ([SECONDS if c["reached"] is None else c["reached"] for c in cells] for cells in (mine, theirs))
    quantity = f"CPU time to 30 dB (never: {SECONDS:g} s)"
    return Row(quantity, setting, median(one), "s", len(one), (min(one), max(one)), median(other), method)


def _share(values: Sequence[float]) -> float:
    return sum(value > GOOD for value in values) / len(values)


if __name__ == "__main__":
    main()

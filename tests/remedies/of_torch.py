"""Remedies of masked all-reduce in torch, and of the Trainer's recordings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from securefed.errors import ConfigError
from securefed.torch import RecordingCallback
from securefed.torch._refusals import check_model, check_step
from tests.remedies.followed import Followed, arguments, found
from tests.torch import workers
from tests.torch.ranks import spawn_once

REFUSALS = "securefed/torch/_refusals.py"
SETTINGS: dict[str, Any] = {"broadcast_buffers": False, "find_unused_parameters": False, "static_graph": False}


def parallel(module: nn.Module, *, join: bool = False, **settings: Any) -> DistributedDataParallel:
    """Make the object that the check reads, without the processes that it joins in a run."""
    settings["broadcast_buffers"] = settings.pop("forward_sync_buffers", settings.get("broadcast_buffers", False))
    model = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(model)
    model.module = module
    for name, value in (SETTINGS | settings).items():
        setattr(model, name, value)
    model._join_config = SimpleNamespace(enable=join)  # type: ignore[assignment]
    return model


def flat(norm: type[nn.Module], *sizes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), norm(*sizes))


def without_syncing(message: str) -> None:
    """Use each layer that the message names, BatchNorm with the argument that it names."""
    assert all(name in message for name in ("GroupNorm", "LayerNorm", "BatchNorm"))
    check_model(parallel(flat(nn.GroupNorm, 2, 4)))
    check_model(parallel(flat(nn.LayerNorm, 4)))
    check_model(parallel(flat(nn.BatchNorm1d, 4), **arguments("with (forward_sync_buffers=False),", message)))


def buffers(message: str) -> None:
    for pattern in ("Pass (forward_sync_buffers=False)", r"\((broadcast_buffers=False) where"):
        check_model(parallel(flat(nn.BatchNorm1d, 4), **arguments(pattern, message)))


def trained(**given: Any) -> None:
    settings = SimpleNamespace(**{"max_grad_norm": 1.0, "fp16": True} | given)
    RecordingCallback(SimpleNamespace(), None).on_train_begin(  # type: ignore[arg-type]
        settings, SimpleNamespace(is_world_process_zero=False), None, model=nn.Linear(2, 2)
    )


def unclipped(message: str) -> None:
    given = arguments(r"set (max_grad_norm=0\.0) \(", message) | arguments(r"and (fp16=False) \(", message)
    trained(**given)


def heads(folder: Path) -> list[dict[str, str]]:
    """Return what losses without a layer raised on three ranks, in the processes that `tests/torch` starts once."""
    factory: Any = SimpleNamespace(getbasetemp=lambda: folder.parent)
    ranks = spawn_once("three", workers.together, 3, factory)
    return [
        {name: str(found[f"refusals/head {name}"]) for name in ("left out", "a tensor", "frozen")} for found in ranks
    ]


def left_out(folder: Path) -> None:
    [told] = {rank["left out"] for rank in heads(folder)}
    raise ConfigError(told.removeprefix("ConfigError: "))


def all_in(message: str, folder: Path) -> bool:
    """Return a tensor, or freeze the layer by the argument that the message writes, as the ranks did."""
    assert arguments(r"freeze it \((requires_grad=False)\)", message) == {"requires_grad": False}
    return all(rank["a tensor"] == rank["frozen"] == "none" for rank in heads(folder))


TABLE: dict[str, Followed] = {
    "batch norm that syncs": Followed(
        REFUSALS,
        "sends the sums of each rank's activations in the clear",
        lambda _: check_model(parallel(flat(nn.SyncBatchNorm, 4))),
        lambda message, _: without_syncing(message),
    ),
    "sparse gradients": Followed(
        REFUSALS,
        "makes sparse gradients",
        lambda _: check_model(parallel(nn.Sequential(nn.Embedding(3, 2, sparse=True)))),
        lambda message, _: check_model(
            parallel(nn.Sequential(nn.Embedding(3, 2, **arguments("with (sparse=False)$", message))))
        ),
    ),
    "ranks that join": Followed(
        REFUSALS,
        "inside the context Join",
        lambda _: check_step(parallel(nn.Linear(2, 2), join=True)),
        lambda message, _: found("without (Join)$", message) and check_step(parallel(nn.Linear(2, 2))),
    ),
    "buffers that are broadcast": Followed(
        REFUSALS,
        "the model has buffers",
        lambda _: check_model(parallel(flat(nn.BatchNorm1d, 4), broadcast_buffers=True)),
        lambda message, _: buffers(message),
    ),
    "unused parameters": Followed(
        REFUSALS,
        "with find_unused_parameters=True",
        lambda _: check_model(parallel(nn.Linear(2, 2), find_unused_parameters=True)),
        lambda message, _: check_model(
            parallel(nn.Linear(2, 2), find_unused_parameters=found("set it to (False):", message) == "True")
        ),
    ),
    "a static graph": Followed(
        REFUSALS,
        "with static_graph=True",
        lambda _: check_model(parallel(nn.Linear(2, 2), static_graph=True)),
        lambda message, _: found("(leave it out)$", message) and check_model(parallel(nn.Linear(2, 2))),
    ),
    "gradients that the Trainer changes": Followed(
        "securefed/torch/_trainer.py",
        "the Trainer changes it afterwards",
        lambda _: trained(),
        lambda message, _: unclipped(message),
    ),
    "a layer that a loss leaves out": Followed(
        "securefed/torch/_state.py", "some parameter's gradient never came", left_out, all_in
    ),
}
"""By name, the remedies that are followed."""

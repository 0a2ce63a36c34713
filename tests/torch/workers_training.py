"""The work of one rank in the tests of whole trainings; each function returns the arrays that a test looks at."""

from __future__ import annotations

import logging
import os
import tempfile
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import securefed.torch
from securefed.torch import MaskingState
from tests.torch.ranks import Found, caught


class Heads(nn.Module):
    """A trunk with two heads, of which a batch uses one, and a layer that no batch uses; outputs are a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.unused = nn.Linear(6, 5), nn.Linear(3, 3)
        self.heads = nn.ModuleList([nn.Linear(5, 2), nn.Linear(5, 2)])

    def forward(self, x: torch.Tensor, head: int) -> dict[str, Any]:
        hidden = torch.tanh(self.trunk(x))
        return {"hidden": [hidden.detach()], "scores": (self.heads[head](hidden), head)}


def heads() -> Heads:
    torch.manual_seed(0)
    return Heads()


def masked(model: DistributedDataParallel, **options: Any) -> MaskingState:
    state = MaskingState(model, **{"bound": 10.0} | options)
    model.register_comm_hook(state, securefed.torch.masked_allreduce)
    return state


def parameters(model: nn.Module) -> np.ndarray[Any, Any]:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


def unused(rank: int) -> Found:
    """Each rank's batches use one head, in another order; plain DDP tells the others which one, ours does not."""
    plain = DistributedDataParallel(heads(), find_unused_parameters=True)
    ours = DistributedDataParallel(heads())
    masked(ours)
    generator = torch.Generator().manual_seed(rank)
    batches = [(torch.randn(4, 6, generator=generator), (rank + step) % 2) for step in range(6)]
    found: Found = {}
    for name, model in (("plain", plain), ("masked", ours)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, head in batches:
            optimizer.zero_grad()
            scores, _ = model(x, head)["scores"]
            scores.relu_().sum().backward()  # in place, as on outputs of any module
            optimizer.step()
        found[name] = parameters(model)
    found["gradients of what no batch uses"] = ours.module.unused.weight.grad
    return found


def scaled(rank: int) -> Found:
    """A loss in float16 times the scale 65536, with the scaler given and without; what is logged."""
    found: Found = {}
    for given in (True, False):
        records: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record, records=records: records.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("securefed.torch").addHandler(handler)
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
        scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        state = masked(model, bound=1.0, **{"scaler": scaler} if given else {})
        optimizer, generator, moved = torch.optim.SGD(model.parameters(), 0.5), torch.Generator().manual_seed(rank), []
        for _ in range(8):
            x = torch.randn(20, 8, generator=generator)
            before = parameters(model).copy()
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            moved.append(bool((parameters(model) != before).any()))
        logging.getLogger("securefed.torch").removeHandler(handler)
        name = "given" if given else "not given"
        found |= {f"{name} moved": moved, f"{name} log": "\n".join(records), f"{name} scale": scaler.get_scale()}
        found[f"{name} unscaled"] = state.bound.value / scaler.get_scale()
    return found


def batch_norm(rank: int) -> Found:
    """Running statistics of other data on each rank; their average, and one that is beyond the bound."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.BatchNorm1d(3))
    state = MaskingState(bound=1.0)
    found: Found = {}
    for layer in (model[1], model[3]):
        generator = torch.Generator().manual_seed(rank)
        layer.running_mean.copy_(torch.randn(3, generator=generator) + rank)
        layer.running_var.copy_(torch.rand(3, generator=generator))
    found["mean before"], found["variance before"] = model[1].running_mean.clone(), model[1].running_var.clone()
    with caught(found, "beyond"):
        securefed.torch.average_batch_norm(model, state, bound=0.5)
    found["after a refusal"] = model[1].running_mean.clone()
    securefed.torch.average_batch_norm(model, state, bound=20.0)
    found["mean"], found["variance"] = model[1].running_mean, model[3].running_var
    with caught(found, "nothing"):
        securefed.torch.average_batch_norm(nn.Linear(2, 2), state, bound=1.0)
    return found


def trainings(rank: int) -> Found:
    found: Found = {}
    for name, part in (("unused", unused), ("scaled", scaled), ("norm", batch_norm)):
        found |= {f"{name}/{key}": value for key, value in part(rank).items()}
    return found


# Packages that drive the loop


def rows(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(24, 6, generator=generator)
    return x, (x[:, 0] > 0).long()


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def lightning(rank: int) -> Found:
    """A LightningModule under DDPStrategy, plain and masked; the first masked step is lost where the bound is small."""
    import lightning.pytorch as pl  # noqa: PLC0415 - heavy
    from lightning.fabric.plugins.environments import TorchElasticEnvironment  # noqa: PLC0415 - heavy
    from lightning.pytorch.strategies import DDPStrategy  # noqa: PLC0415 - heavy
    from torch.utils.data import DataLoader, TensorDataset  # noqa: PLC0415 - heavy

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.unused = small(), nn.Linear(2, 2)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            return nn.functional.cross_entropy(self.net(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    found: Found = {}
    loader = DataLoader(TensorDataset(*rows(rank)), batch_size=8)
    for name, bound in (("plain", None), ("masked", 10.0), ("lost", 1e-4)):
        callback = None if bound is None else securefed.torch.LightningMasking(bound=bound)
        net = Net()
        strategy = DDPStrategy(
            cluster_environment=TorchElasticEnvironment(), process_group_backend="gloo", broadcast_buffers=False,
            find_unused_parameters=callback is None,
        )  # fmt: skip
        pl.Trainer(
            accelerator="cpu", devices=3, strategy=strategy, max_epochs=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
            callbacks=[callback] if callback else [],
        ).fit(net, loader)  # fmt: skip
        found[name] = parameters(net.net)
        found[f"{name} calls"] = callback.state._calls if callback and callback.state else 0
    return found


def hugging_face(rank: int) -> Found:
    """A Trainer on three ranks, and a loop of accelerate, plain and masked."""
    import transformers  # noqa: PLC0415 - heavy
    from accelerate import Accelerator, DistributedDataParallelKwargs  # noqa: PLC0415 - heavy

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            scores = self.net(x)
            return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

    x, y = (torch.cat(part) for part in zip(*(rows(k) for k in range(3)), strict=True))
    table = [{"x": row, "labels": label} for row, label in zip(x, y, strict=True)]
    found: Found = {}
    for name, bound in (("plain", None), ("masked", 10.0), ("lost", 1e-4)):
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder, per_device_train_batch_size=8, num_train_epochs=2, learning_rate=0.5, report_to=[],
                use_cpu=True, save_strategy="no", ddp_backend="gloo", ddp_broadcast_buffers=False,
                ddp_find_unused_parameters=False, disable_tqdm=True, logging_strategy="no", max_grad_norm=0.0,
            )  # fmt: skip
            net = Net()
            trainer = transformers.Trainer(
                net, arguments, train_dataset=table, optimizers=(torch.optim.SGD(net.parameters(), lr=0.5), None)
            )
            callback = None
            if bound is not None:
                callback = securefed.torch.TrainerMasking(trainer, bound=bound)
                trainer.add_callback(callback)
            trainer.train()
        found[f"trainer {name}"] = parameters(net)
        found[f"trainer {name} calls"] = callback.state._calls if callback and callback.state else 0
    for name in ("plain", "masked"):
        accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)])
        net = Net()
        model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.5))
        if name == "masked":
            state = MaskingState(model, bound=10.0, scaler=accelerator.scaler)
            model.register_comm_hook(state, securefed.torch.masked_allreduce)
        for _ in range(4):
            optimizer.zero_grad()
            accelerator.backward(model(*rows(rank))["loss"])
            optimizer.step()
        found[f"accelerate {name}"] = parameters(net)
    return found


def packages(rank: int) -> Found:
    """Run each package's loop; `torchrun` would set these variables."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "tests",
    }  # fmt: skip
    found = {f"lightning/{key}": value for key, value in lightning(rank).items()}
    return found | {f"hf/{key}": value for key, value in hugging_face(rank).items()}

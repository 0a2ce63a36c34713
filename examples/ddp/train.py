"""Train one network on three ranks, in plain DDP and with masked gradients: `python examples/ddp/train.py`."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import securefed.torch

RANKS, STEPS = 3, 40


def rows(rank):
    """Make the rows that only this rank has."""
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(60, 8, generator=generator)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def train(rank, masked):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    state = None
    if masked:
        model = DistributedDataParallel(network, forward_sync_buffers=False)  # 1
        state = securefed.torch.MaskingState(model, bound=1.0)  # 2
        model.register_comm_hook(state, securefed.torch.masked_allreduce)  # 3
    else:
        model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x, y = rows(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        if state is not None and state.overflowed:
            continue
        optimizer.step()
    return network


def run(rank, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    plain, masked = train(rank, masked=False), train(rank, masked=True)
    if rank == 0:
        pairs = zip(plain.parameters(), masked.parameters(), strict=True)
        gap = max(float((a - b).detach().abs().max()) for a, b in pairs)
        x, y = rows(RANKS)  # of nobody: test rows
        accuracy = float((masked(x).argmax(1) == y).double().mean())
        print(f"accuracy above 0.9: {accuracy > 0.9}")
        print(f"plain and masked differ by less than 1e-4: {gap < 1e-4}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    with tempfile.TemporaryDirectory() as scratch:
        torch.multiprocessing.spawn(run, (scratch,), RANKS)

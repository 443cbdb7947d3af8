"""DistributedDataParallel: a batch of 512 images over all processes, in chunks of 32, with one reduction a step.

torchrun --nproc-per-node 2 examples/large_batch_ddp.py [--steps 30]

The loss compares each image with those of all processes, and the weights do not depend on how many these are.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fcco


def main() -> None:
    parser = argparse.ArgumentParser(description="A large batch in chunks on several processes.")
    parser.add_argument("--steps", type=int, default=30)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")  # "nccl" on GPUs
    rank, world = dist.get_rank(), dist.get_world_size()
    bunch = load_digits()
    x, y = torch.tensor(bunch.data, dtype=torch.float32) / 16, torch.tensor(bunch.target)

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16)))
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    loss_fn = fcco.losses.NCALoss(len(y), rule=fcco.BSGD())  # the loss of the batch, over all processes
    for _ in range(steps):
        rows = torch.randperm(len(y))[:512][rank::world]  # all processes draw the same, and take different ones
        optimizer.zero_grad()
        outputs = fcco.forward_in_chunks(model, x[rows], chunk_size=32)
        loss_fn(outputs, y[rows], None).backward()
        optimizer.step()

    with torch.no_grad():
        loss = fcco.functional.nca_loss(model.module(x), y)
    if rank == 0:
        print(f"{world} processes: loss of all images {loss:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A training run that torchrun may start again: it goes on from its last checkpoint."""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

import fcco

N, STEPS, EVERY = 101, 12, 5


def train(folder, killed_at=None):
    """Weights after all steps; rank 1 is killed before step ``killed_at``."""
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(N, 4, generator=generator), torch.arange(N) % 3
    model = torch.nn.Linear(4, 2, bias=False)
    torch.nn.init.ones_(model.weight).data += 0.1 * torch.randn(2, 4, generator=generator)
    loss_fn = fcco.losses.NCALoss.from_targets(labels, rule=fcco.SOX(0.3))
    fcco.distributed.configure(loss_fn, sharded=True)
    optimizer = fcco.optim.MovingAverageSGD(model.parameters(), lr=0.1, beta=0.5)
    first = resume(folder, model, optimizer, loss_fn)
    wrapped = DistributedDataParallel(model)
    for step in range(first, STEPS):
        if step % EVERY == 0 and step > first:
            save(folder, step, model, optimizer, loss_fn)
        if step == killed_at and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        rows = torch.randint(N, (16,), generator=generator)
        optimizer.zero_grad()
        loss_fn(wrapped(x[rows]), labels[rows], rows).backward()
        optimizer.step()
    return model.weight.detach(), fcco.distributed.full_state_dict(loss_fn)


def save(folder, step, model, optimizer, loss_fn):
    """A checkpoint, which counts once it is whole."""
    dcp.save(loss_fn.state_dict(), checkpoint_id=Path(folder, f"table-{step}"))
    if dist.get_rank() == 0:
        rest = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(rest, Path(folder, "next.pt"))
        Path(folder, "next.pt").replace(Path(folder, "last.pt"))


def resume(folder, model, optimizer, loss_fn):
    """The step to go on from."""
    last = Path(folder, "last.pt")
    if not last.exists():
        return 0
    rest = torch.load(last, weights_only=True)
    model.load_state_dict(rest["model"])
    optimizer.load_state_dict(rest["optimizer"])
    table = loss_fn.state_dict()
    dcp.load(table, checkpoint_id=Path(folder, f"table-{rest['step']}"))
    loss_fn.load_state_dict(table)
    return rest["step"]


def main(folder, killed_at):
    """What torchrun runs on every rank; one is killed in the first start only."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    weights, state = train(folder, killed_at if restarts == "0" else None)
    if dist.get_rank() == 0:
        torch.save((restarts, weights, state), Path(folder, "end.pt"))
    dist.destroy_process_group()

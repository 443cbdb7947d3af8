"""A small encoder, trained from scratch with a memory in the gradient: its outputs must not flee from it together."""

import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import fcco
from fcco.functional import contrastive_loss, supervised_contrastive_loss
from fcco.losses.loss import ObjectiveLoss
from fcco.objectives.contrastive import Contrastive

N, BATCH = 1400, 64


def images():
    x = torch.tensor(load_digits().data / 16, dtype=torch.float32)
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))][:N]


def view(x, generator):
    """Shift every image by up to a pixel, scale it, and add noise."""
    n, places = len(x), torch.arange(8)
    shift = torch.randint(0, 3, (n, 2), generator=generator)
    padded = F.pad(x.view(n, 8, 8), (1, 1, 1, 1))
    rows, columns = (shift[:, :1] + places)[:, :, None], (shift[:, 1:] + places)[:, None, :]
    moved = padded[torch.arange(n)[:, None, None], rows, columns]
    moved = moved * (0.7 + 0.6 * torch.rand(n, 1, 1, generator=generator))
    return moved.reshape(n, 64) - 0.3 + 0.15 * torch.randn(n, 64, generator=generator)


def train(loss_fn, lr, passes=8, seed=0, exact=contrastive_loss):
    """Return the exact objective over all images after training."""
    x, generator = images(), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 32))
    optimizer = torch.optim.SGD(encoder.parameters(), lr, momentum=0.9)
    steps = passes * (N // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: (1 + math.cos(math.pi * t / steps)) / 2)
    for _ in range(passes):
        first, second = view(x, generator), view(x, generator)
        for rows in torch.randperm(N, generator=generator)[: N // BATCH * BATCH].view(-1, BATCH):
            optimizer.zero_grad()
            loss_fn(encoder(first[rows]), encoder(second[rows]), rows).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return exact(encoder(view(x, generator)), encoder(view(x, generator))).item()


def contrastive(repels=True):
    objective = Contrastive(torch.tensor([float(N)]))
    objective.repels = repels
    loss_fn = ObjectiveLoss(objective, N, rule=fcco.BSGD(), memory=4 * BATCH)
    return lambda first, second, rows: loss_fn(first, second, index=rows)


def supervised(n=None, conserves=True, memory=4 * BATCH):
    """Every pair of views is a class, so that remembered outputs only repel."""
    options = {"rule": fcco.BSGD(), "memory": memory}
    cls = fcco.losses.SupervisedContrastiveLoss
    loss_fn = cls(n, **options) if n else cls.from_targets(torch.arange(N).repeat(2), **options)
    loss_fn.objective.conserves = conserves
    return lambda first, second, rows: loss_fn(
        torch.cat([first, second]), rows.repeat(2), index=torch.cat([rows, rows + N])
    )


def supervised_loss(first, second):
    return supervised_contrastive_loss(torch.cat([first, second]), torch.arange(N).repeat(2))


@pytest.mark.parametrize("lr", [0.01, 0.1])
def test_a_memory_that_repels_only_estimates(lr):
    assert train(contrastive(repels=False), lr) > -0.01
    assert train(contrastive(), lr) < -2.2


@pytest.mark.parametrize("lr", [0.01, 0.1])
def test_pairs_do_not_flee_without_the_net_force(lr):
    alone, collapsed = train(supervised(memory=0), lr, exact=supervised_loss), math.log(2 * N)
    assert train(supervised(conserves=False), lr, exact=supervised_loss) > collapsed - 0.01
    for n in (None, 2 * N):
        assert train(supervised(n), lr, exact=supervised_loss) < alone + 0.3 < collapsed - 1.5


@pytest.mark.parametrize("memory", [None, 256, fcco.Memory(256)], ids=str)
def test_a_contrastive_loss_may_have_any_memory(memory):
    loss_fn = fcco.losses.ContrastiveLoss(N, memory=memory)
    assert train(lambda first, second, rows: loss_fn(first, second, index=rows), 0.1) < -2

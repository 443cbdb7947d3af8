"""A small encoder, trained from scratch by a contrastive loss: remembered outputs must not make it collapse."""

import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import fcco
from fcco import _guard
from fcco.functional import contrastive_loss

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


def train(loss_fn, lr, passes=8, seed=0):
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
        return contrastive_loss(encoder(view(x, generator)), encoder(view(x, generator))).item()


def info_nce():
    return fcco.losses.ContrastiveLoss(N, include_positive=True, own_term="sampled", rule=fcco.BSGD())


def remembering(**options):
    return fcco.losses.ContrastiveLoss(N, memory=fcco.Memory(4 * BATCH, **options))


@pytest.mark.parametrize("lr", [0.01, 0.1])
class TestEncoder:
    def test_without_a_guard_it_collapses(self, lr):
        assert train(remembering(mode="gradient", guard=False), lr) > -0.3

    def test_with_the_guard_it_does_not(self, lr):
        loss_fn = remembering(mode="gradient")
        assert train(info_nce(), lr) < -2
        assert train(loss_fn, lr) < -2
        assert _guard.alignment(loss_fn.memory.guard) > 0.5

    def test_nor_by_default(self, lr):
        assert train(fcco.losses.ContrastiveLoss(N), lr) < -2

    def test_nor_where_outputs_only_estimate(self, lr):
        assert train(remembering(mode="estimate"), lr) < -2

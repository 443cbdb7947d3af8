"""A loss warns if pairs of examples come together far more often than its memory assumes, and only then."""

import warnings

import numpy as np
import pytest
import torch

from fcco import losses
from fcco.core.step import as_batch
from fcco.losses.together import Together
from fcco.objectives.neighbours import NCA, Embedded

N = 400


def views(generator):
    """Both views of random examples."""
    first = torch.randperm(N // 2, generator=generator)[:8]
    return torch.cat([first, first + N // 2])


def at_random(generator):
    return torch.randperm(N, generator=generator)[:16]


def same(generator):
    return torch.arange(16) + 16 * int(torch.randint(25, (), generator=generator))


def train(draw, labels, size=128, steps=200):
    generator = torch.Generator().manual_seed(0)
    loss_fn = losses.NCALoss.from_targets(labels, memory=size)
    for _ in range(steps):
        rows = draw(generator)
        loss_fn(torch.randn(len(rows), 2, generator=generator).requires_grad_(), labels[rows], rows).backward()


TEN, PAIRS = torch.arange(N) % 10, torch.arange(N) % (N // 2)


@pytest.mark.parametrize(("draw", "labels"), [(views, TEN), (same, TEN)], ids=["views in classes", "same batches"])
def test_warns(draw, labels):
    with pytest.warns(UserWarning, match=r"examples come together \d+ times as often as the memory assumes"):
        train(draw, labels)


@pytest.mark.parametrize(("draw", "labels"), [(at_random, TEN), (views, PAIRS)], ids=["random", "views as classes"])
def test_does_not(draw, labels):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(draw, labels)


@pytest.mark.parametrize(
    ("sizes", "pairs", "again", "expected"),
    [([4, 4], [4, 8], [2, 0], [4 * 1 / 3, 8 * 2 / 4]), ([8], [12], [2], [12 * 3 / 7])],
    ids=["classes", "random"],
)
def test_counts_pairs_that_meet_again(sizes, pairs, again, expected):
    """Rows 0 and 1 came in one batch, row 2 in another, and row 3 not yet."""
    objective, rows = NCA(torch.tensor(sizes).double()), torch.arange(4)
    batch = as_batch(objective, Embedded(torch.randn(4, 2).double(), torch.tensor([0, 0, 1, 1])), rows)
    together = Together()
    together.look(objective, batch, np.array([2, 0, 7, 1]), np.array([3, 5, 5, 5]))
    np.testing.assert_array_equal(together.pairs, pairs)
    np.testing.assert_array_equal(together.again, again)
    np.testing.assert_allclose(together.expected, expected)


def test_events_at_random():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        event, generator = torch.arange(N) % 3 == 0, torch.Generator().manual_seed(0)
        loss_fn = losses.CoxLoss.from_targets(event)
        for _ in range(150):
            rows = at_random(generator)
            loss_fn(torch.randn(16, requires_grad=True), torch.rand(16), event[rows], rows).backward()

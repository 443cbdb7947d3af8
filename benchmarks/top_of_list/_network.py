"""Small networks trained by the usual losses.

No function here leads to code of the library, so results stay valid when the library changes.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.metrics import average_precision_score
from torch import Tensor, nn
from torch.nn import functional as F

from top_of_list._batches import balanced_batches, random_batches
from top_of_list._metrics import Result, result_of
from top_of_list._prepared import Part, Parts, split

BATCH, LOOKS = 64, 10
LossFn = Callable[[Tensor, Tensor, Tensor], Tensor]  # of logits, targets and rows


def cross_entropy(logits: Tensor, target: Tensor, _: Tensor) -> Tensor:
    """Return the cross entropy of the batch."""
    return F.binary_cross_entropy_with_logits(logits, target)


def focal_loss(logits: Tensor, target: Tensor, _: Tensor) -> Tensor:
    """Lin et al., 2017, with their gamma of 2 and alpha of .25."""
    each = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    share = torch.where(target == 1, 0.25, 0.75)
    return (share * (-torch.expm1(-each)).square() * each).mean()


USUAL: dict[str, tuple[LossFn, bool]] = {  # by name, and whether half of a batch is positive
    "BCE": (cross_entropy, False),
    "balanced BCE": (cross_entropy, True),
    "focal loss": (focal_loss, False),
}


class Trained(NamedTuple):
    """The network with the highest validation AP on the way, that AP, and the seconds of training."""

    net: nn.Sequential
    valid: float
    seconds: float


def build(features: int, seed: int) -> nn.Sequential:
    """Return a network of two hidden layers and one logit; its last module is the head."""
    torch.manual_seed(seed)
    hidden = (nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(64, 1))


def dense(part: Part) -> tuple[Tensor, Tensor]:
    """Return features and targets as tensors of float32."""
    x = part.x.toarray() if issparse(part.x) else part.x
    return torch.from_numpy(np.asarray(x, dtype=np.float32)), torch.from_numpy(part.y).float()


def scores(net: nn.Module, part: Part) -> NDArray[Any]:
    """Return the logits in double precision."""
    with torch.no_grad():
        return net(dense(part)[0]).squeeze(1).double().numpy()


def batches_of(y: NDArray[Any], balanced: bool, steps: int, seed: int) -> Tensor:
    """Return the rows of all steps."""
    return balanced_batches(y, BATCH, steps, seed) if balanced else random_batches(len(y), BATCH, steps, seed)


def train(parts: Parts, loss_fn: LossFn, batches: Tensor, lr: float, seed: int) -> Trained:
    """Train by Adam with a cosine lr, and keep the best of ten looks at the validation part."""
    x, target = dense(parts.train)
    net = build(x.shape[1], seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, fused=True)
    rates = [lr * (1 + math.cos(math.pi * t / len(batches))) / 2 for t in range(len(batches))]
    best, seconds = Trained(copy.deepcopy(net), -math.inf, 0.0), 0.0
    for first, end in pairwise(len(batches) * k // LOOKS for k in range(LOOKS + 1)):
        began = time.process_time()
        for rate, rows in zip(rates[first:end], batches[first:end], strict=True):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            loss_fn(net(x[rows]).squeeze(1), target[rows], rows).backward()
            optimizer.step()
        seconds += time.process_time() - began
        logits = scores(net, parts.valid)
        if not np.isfinite(logits).all():
            break
        ap = float(average_precision_score(parts.valid.y, logits))
        if ap > best.valid:
            best = Trained(copy.deepcopy(net), ap, 0.0)
    return best._replace(seconds=seconds)


def usual_loss(task: str, data: str, seed: int, loss: str, lr: float, steps: int, path: str) -> Result:
    """Train with a usual loss; ``task`` and ``data`` only distinguish results."""
    parts = split(path, seed)
    found = train_usual(path, seed, loss, lr, steps)
    logits = scores(found.net, parts.test)
    return result_of(parts.test.y, logits, valid=found.valid, setting=f"lr={lr:g}", seconds=found.seconds)


def train_usual(path: str, seed: int, loss: str, lr: float, steps: int) -> Trained:
    """Return the network that a usual loss leads to."""
    parts = split(path, seed)
    loss_fn, balanced = USUAL[loss]
    batches = batches_of(parts.train.y, balanced, steps, seed)
    return train(parts, loss_fn, batches, lr, seed)

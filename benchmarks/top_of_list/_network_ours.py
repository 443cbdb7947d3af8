"""Networks trained by the library for average precision."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from top_of_list._metrics import Result, result_of
from top_of_list._network import LossFn, batches_of, dense, scores, train, train_usual
from top_of_list._prepared import Part, Parts, split

if TYPE_CHECKING:
    from fcco.estimators import HeadRefit


def pretrained_loss(y: Tensor, steps: int) -> LossFn:
    """Return cross entropy for the first half of the run, and average precision for the second."""
    from fcco.losses import PretrainedAveragePrecisionLoss

    return PretrainedAveragePrecisionLoss.from_targets(y, switch=steps // 2)


def average_precision(task: str, data: str, seed: int, balanced: bool, lr: float, steps: int, path: str) -> Result:
    """Train for average precision after cross entropy; ``task`` and ``data`` only distinguish results."""
    parts = split(path, seed)
    loss_fn = pretrained_loss(torch.from_numpy(parts.train.y), steps)
    found = train(parts, loss_fn, batches_of(parts.train.y, balanced, steps, seed), lr, seed)
    logits = scores(found.net, parts.test)
    return result_of(parts.test.y, logits, valid=found.valid, setting=f"lr={lr:g}", seconds=found.seconds)


def refitted_head(task: str, data: str, seed: int, loss: str, lr: float, steps: int, path: str) -> Result:
    """Train with a usual loss as before, then fit the last layer again for average precision."""
    parts = split(path, seed)
    found = train_usual(path, seed, loss, lr, steps)
    began = time.process_time()
    how = refit(found.net, parts)
    seconds = found.seconds + time.process_time() - began
    setting = f"{loss}: lr={lr:g}, " + (
        f"alpha={how.alpha:g}, temperature={how.temperature:g}" if how.changed else "as it was"
    )
    return result_of(parts.test.y, scores(found.net, parts.test), valid=how.valid[1], setting=setting, seconds=seconds)


def refit(net: nn.Sequential, parts: Parts) -> HeadRefit:
    """Change the head of a network in place, by what the other layers return."""
    from fcco.estimators import refit_head

    (features, target), held = _hidden(net, parts.train), _hidden(net, parts.valid)
    head = net[-1]
    assert isinstance(head, nn.Linear)
    return refit_head(head, features, target, valid=held)


def _hidden(net: nn.Sequential, part: Part) -> tuple[Tensor, Tensor]:
    x, target = dense(part)
    with torch.no_grad():
        return net[:-1](x), target

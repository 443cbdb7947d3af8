"""Networks trained by the library for average precision."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor

from fcco import Rule
from fcco.losses import AveragePrecisionLoss
from top_of_list._metrics import Result, result_of
from top_of_list._network import LossFn, batches_of, cross_entropy, scores, train
from top_of_list._prepared import split


def after_cross_entropy(y: Tensor, switch: int, rule: Rule | None = None) -> LossFn:
    """Return cross entropy for the first calls, and average precision of the logits from then on."""
    precision, calls = AveragePrecisionLoss.from_targets(y, temperature="auto", rule=rule), count()

    def loss_fn(logits: Tensor, target: Tensor, rows: Tensor) -> Tensor:
        return (cross_entropy if next(calls) < switch else precision)(logits, target.to(logits), rows)

    return loss_fn


def average_precision(task: str, data: str, seed: int, balanced: bool, lr: float, steps: int, path: str) -> Result:
    """Train for average precision after cross entropy; ``task`` and ``data`` only distinguish results."""
    parts = split(path, seed)
    loss_fn = after_cross_entropy(torch.from_numpy(parts.train.y), steps // 2)
    found = train(parts, loss_fn, batches_of(parts.train.y, balanced, steps, seed), lr, seed)
    logits = scores(found.net, parts.test)
    return result_of(parts.test.y, logits, valid=found.valid, setting=f"lr={lr:g}", seconds=found.seconds)

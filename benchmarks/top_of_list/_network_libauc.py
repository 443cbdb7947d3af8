"""The competitor for average precision, LibAUC (https://libauc.org), in the same network and loop."""

from __future__ import annotations

from torch import Tensor

from top_of_list._metrics import Result, result_of
from top_of_list._network import LossFn, batches_of, cross_entropy, scores, train
from top_of_list._prepared import split


def libauc(task: str, data: str, seed: int, lr: float, steps: int, path: str) -> Result:
    """Train by cross entropy for half of the run, then by LibAUC's APLoss with its defaults, on balanced batches."""
    parts = split(path, seed)
    loss_fn = switching(len(parts.train.y), steps // 2)
    found = train(parts, loss_fn, batches_of(parts.train.y, True, steps, seed), lr, seed)
    logits = scores(found.net, parts.test)
    return result_of(parts.test.y, logits, valid=found.valid, setting=f"lr={lr:g}", seconds=found.seconds)


def switching(n: int, switch: int) -> LossFn:
    """Return cross entropy for the first calls, and LibAUC's loss of the sigmoids from then on."""
    from libauc.losses import APLoss

    theirs, calls = APLoss(data_len=n, device="cpu"), 0

    def loss_fn(logits: Tensor, target: Tensor, rows: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls <= switch:
            return cross_entropy(logits, target, rows)
        loss: Tensor = theirs(logits.sigmoid().unsqueeze(1), target.unsqueeze(1), rows)
        return loss

    return loss_fn

"""Several labels for each example: targets with a column for each class, some of which may be missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco._checks import shape_of
from fcco.functional._checks import as_mask, check_floats, refuse_where
from fcco.functional._tensors import graph_zero


class Labels(NamedTuple):
    """Who is a positive and who is a negative of each class; a missing label is neither."""

    positive: Tensor
    """Of bool, of shape (B, C)."""
    negative: Tensor
    """Of bool, of shape (B, C)."""


def as_one_vs_rest(labels: Tensor, n_classes: int) -> Tensor:
    """Return classes as targets with a column for each class: 1 for the example's own class and 0 elsewhere.

    Parameters
    ----------
    labels : Tensor of shape (n,)
        The classes, integers in 0 ... n_classes - 1, or -1 if the class is not known.
    n_classes : int
        The number of classes C.

    Returns
    -------
    Tensor of int8, of shape (n, C)
        The targets. A row is -1, which stands for missing labels, if the class is not known.

    Raises
    ------
    ValueError
        If a label is out of range.
    TypeError
        If the labels are not integers.

    Examples
    --------
    >>> as_one_vs_rest(torch.tensor([2, 0, -1]), 3)
    tensor([[ 0,  0,  1],
            [ 1,  0,  0],
            [-1, -1, -1]], dtype=torch.int8)
    """
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"labels must have an integer dtype; got {labels.dtype}")
    if labels.dim() != 1:
        raise ValueError(f"labels must have the shape [n]; got {shape_of(labels)}")
    labels = labels.long()
    refuse_where("labels", labels, (labels < -1) | (labels >= n_classes), f"in [0, {n_classes}), or -1 if missing")
    one_hot = labels.unsqueeze(1) == torch.arange(n_classes, device=labels.device)
    return torch.where(labels.unsqueeze(1) < 0, -1, one_hot.to(torch.int8)).to(torch.int8)


def _check_class_numbers(target: Tensor, scores: Tensor) -> None:
    """Refuse targets of one class, of shape (B,), for scores of shape (B, C)."""
    if scores.shape[1] == 1:
        raise ValueError(
            f"scores and target must have the same shape; got {shape_of(scores)} and {shape_of(target)}: "
            "pass scores.squeeze(1)"
        )
    if target.dtype == torch.bool or target.is_floating_point() or target.is_complex():
        raise TypeError(
            f"target must hold the numbers of classes, as integers, since scores has {scores.shape[1]} columns; "
            f"got {target.dtype}"
        )


def as_labels(target: Any, scores: Tensor) -> Labels:
    """Return the labels of scores of shape (B, C), from targets of the same shape, or from classes of shape (B,).

    In targets with a column for each class, -1 and NaN stand for missing labels.
    """
    if isinstance(target, Tensor) and target.dim() == 1 and len(target) == len(scores):
        _check_class_numbers(target, scores)
        target = as_one_vs_rest(target, scores.shape[1])
    if not isinstance(target, Tensor) or target.shape != scores.shape:
        got = shape_of(target) if isinstance(target, Tensor) else type(target).__name__
        raise ValueError(
            f"target must have the shape of scores, {shape_of(scores)}, or hold {len(scores)} classes; got {got}"
        )
    missing = target.isnan() | (target == -1) if target.is_floating_point() else target.to(torch.int16) == -1
    flat = target.masked_fill(missing, 0).flatten()
    positive = as_mask(flat, "target", flat, "target", signs=False).reshape(target.shape)
    return Labels(positive, ~positive & ~missing)


def refuse_signs(target: Tensor) -> None:
    """Raise if the labels of all data are -1 and 1, since -1 stands for a missing label and no negative is left."""
    if target.dim() == 2 and bool((target == -1).any() & (target == 1).any() & ~(target == 0).any()):
        raise ValueError(
            "target must have a 0 for each negative, because -1 stands for a missing label; got only -1 and 1. "
            "If -1 is the negative class, pass (target > 0).long()"
        )


def has_classes(scores: Any) -> bool:
    """Return whether scores have a column for each of several classes."""
    return isinstance(scores, Tensor) and scores.dim() == 2


def refuse_weight(weight: Tensor | None) -> None:
    """Raise if there are weights of examples, which several classes do not have."""
    if weight is not None:
        raise ValueError(f"weight must be None for scores with a column for each class; got {type(weight).__name__}")


def macro_mean(
    objective: Callable[[Tensor, Tensor], Tensor], scores: Tensor, target: Tensor, *, both: bool = True
) -> Tensor:
    """Return the mean of an objective over the classes that have positives and, with ``both``, negatives.

    Parameters
    ----------
    objective : callable
        From the scores and the targets of one class to its loss.
    scores : Tensor of shape (n, C)
        The scores, with a column for each class.
    target : Tensor of shape (n, C) or (n,)
        The labels; see :func:`as_labels`.
    both : bool, default True
        Whether a class without negatives is left out too.
    """
    check_floats(scores, "scores", "[n, C]")
    labels = as_labels(target, scores)
    refuse_signs(target)
    counted = labels.positive.any(0) & (labels.negative.any(0) | (not both))
    losses = []
    for k in counted.nonzero().flatten().tolist():
        known = labels.positive[:, k] | labels.negative[:, k]
        losses.append(objective(scores[known, k], labels.positive[known, k]))
    return torch.stack(losses).mean() if losses else graph_zero(scores)

"""Loss and average precision of a network on a part of the data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fcco_reproduce.ap._data import Images

CHUNK = 500


@dataclass(frozen=True)
class Measures:
    """Of one part of the data.

    Args:
        loss: the surrogate of AP, negated, on sigmoids of the scores.
        ap: average precision.
    """

    loss: float
    ap: float


@torch.no_grad()
def measure(net: nn.Module, images: Images, negatives: int = 0, *, margin: float = 0.6) -> Measures:
    """Measures of the network as it is used, that is in ``eval()``, on images without crops.

    Args:
        net: maps images to logits.
        images: the part.
        negatives: how many of them to look at, evenly over the rows, each standing for several; 0 is all.
        margin: of the squared hinge.
    """
    rows = _rows(images.target, negatives)
    was_training = net.training
    net.eval()
    logits = torch.cat([net(images.plain(some)) for some in rows.split(CHUNK)]).double()
    net.train(was_training)
    target = images.target[rows] == 1
    positives, others = logits[target], logits[~target]
    weight = float((images.target == 0).sum()) / len(others)
    loss = surrogate(positives.sigmoid(), others.sigmoid(), weight, margin)
    return Measures(loss, average_precision(positives, others, weight))


def _rows(target: Tensor, negatives: int) -> Tensor:
    """All positives, and some of the negatives."""
    others = torch.nonzero(target == 0).squeeze(1)
    if negatives and negatives < len(others):
        others = others[torch.arange(negatives, device=others.device) * len(others) // negatives]
    return torch.cat([torch.nonzero(target == 1).squeeze(1), others])


def surrogate(positives: Tensor, negatives: Tensor, weight: float = 1.0, margin: float = 0.6) -> float:
    """The negative of a surrogate of AP, with the squared hinge; each negative counts ``weight`` times.

    >>> surrogate(torch.tensor([1.0]), torch.tensor([1.0]), weight=3.0)  # one positive, three negatives at its level
    -0.25
    """
    total = positives.new_zeros(())
    for some in positives.split(CHUNK):
        above, below = (
            (margin + scores - some[:, None]).clamp(min=0).square().sum(1) for scores in (positives, negatives)
        )
        total += (above / (above + weight * below)).sum()
    return -total.item() / len(positives)


def average_precision(positives: Tensor, negatives: Tensor, weight: float = 1.0) -> float:
    """AP, as scikit-learn has it; each negative counts ``weight`` times.

    >>> average_precision(torch.tensor([2.0, 0.0]), torch.tensor([1.0]), weight=2.0)  # precision 1, and 2 of 4
    0.75
    """
    over, under = positives.sort().values, negatives.sort().values
    hits = len(over) - torch.searchsorted(over, over)
    misses = weight * (len(under) - torch.searchsorted(under, over))
    return (hits / (hits + misses)).double().mean().item()

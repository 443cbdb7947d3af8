"""Whether examples come together more often than the weights of a memory assume."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from fcco.core.objective import Objective
from fcco.core.step import Batch, at, take

EVERY, LOOKS, LEAST = 8, 16, 100
"""In which steps to look, how often before a verdict, and how many pairs it takes."""
LIMIT = 3.0


class Together:
    """Counts, in each relation, the pairs of a batch that also came in one batch the last time.

    Of the pairs of which one at least is remembered, this is the part of the population that a batch has, if all pairs
    in the relation are equally likely to meet. Where they are not, the gradient is biased: views of one example that
    always come together, within classes of several examples, or batches that never change.
    """

    def __init__(self) -> None:
        self.looks = 0
        self.pairs: Any = 0.0
        self.again: Any = 0.0
        self.expected: Any = 0.0

    def look(self, objective: Objective, batch: Batch, row: Any, born: Any) -> None:
        """Look at a batch, given what is remembered; after some batches, warn once if pairs meet too often."""
        is_known = objective.sizes is not None and np.ndim(objective.sizes) == 1
        is_empty = batch.every is not None and len(batch.every) == 0
        if self.looks == LOOKS or not is_known or is_empty or objective.group(batch.x) is not None:
            return
        order = np.argsort(row)
        rows = np.asarray(batch.rows)
        place = order[np.searchsorted(row[order], rows).clip(None, len(row) - 1)]
        last = np.where(row[place] == rows, born[place], -1)
        every = None if batch.every is None else np.asarray(batch.every)
        anchors, own, others = take(batch.x, batch.every), at(last, every)[:, None], at(rows, every)[:, None] != rows
        sizes = np.asarray(objective.population(anchors, objective.there(anchors, batch.x, batch.pool))).astype(
            np.float64
        )
        masks = [others if mask is None else others & np.asarray(mask) for mask in objective.relation(anchors, batch.x)]
        masks = [np.logical_or.reduce(masks)] if len(sizes) == 1 else masks
        known = [(mask & ((own >= 0) | (last >= 0))).sum(1) for mask in masks]
        if objective.self_relation is not None:  # an example does not meet itself
            sizes[min(objective.self_relation, len(sizes) - 1)] -= 1
        likely = [mask.sum(1).mean() / size.clip(1, None) for mask, size in zip(masks, sizes, strict=True)]
        self.looks += 1
        self.pairs = self.pairs + np.array([count.sum() for count in known])
        self.again = self.again + np.array([(mask & (own == last) & (own >= 0)).sum() for mask in masks])
        self.expected = self.expected + np.array([(c * p).sum() for c, p in zip(known, likely, strict=True)])
        ratio = self.again / np.maximum(self.expected, 1e-9)
        if self.looks == LOOKS and (ratio * (self.pairs >= LEAST)).max() > LIMIT:
            warnings.warn(
                f"examples come together {ratio.max():.0f} times as often as the memory assumes, which biases its "
                "gradient: draw new batches in every epoch, and give views of one example that always come together a "
                "class of their own, or use fcco.Memory(size, mode='estimate')",
                stacklevel=2,
            )

"""Fast steps with a memory, for eager mode on the CPU.

They give the values and gradients of :mod:`fcco._remember`, which runs everywhere else: the *own side*, fresh outer
examples against everyone, and the *rival side*, remembered outer examples against the fresh ones. As long as less is
remembered than a batch has, the step is that of the batch *by itself*, which the caller provides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from fcco._checks import as_index, has_repeats
from fcco._coupled import CoupledLoss
from fcco.functional._surrogates import Surrogate
from fcco.losses._array_memory import Array, ArrayMemory, Batch
from fcco.losses._array_outer import ArrayOuter, MinusRatio
from fcco.losses._by_hand import or_left_to_the_engine, track_rows, with_gradient
from fcco.losses._hand_bipartite import PrecisionSums, push_means
from fcco.losses._pair_arrays import own_terms

ByItself = Callable[[], Tensor | None]
"""Takes the step of a batch without its memory; returns the loss, or None if the engine has to take the step."""


class FreshBatch:
    """A batch of scores in two classes, with its memory.

    Attributes
    ----------
    scores, label : Array of shape (B,)
        The fresh scores, and which of them are positive (or events).
    memory : ArrayMemory
        What is remembered.
    enough : bool
        Whether it has as many outer examples as a batch, so that the step may have two sides.
    """

    def __init__(self, coupled: CoupledLoss, columns: list[Tensor], index: Any) -> None:
        self.coupled, self.given = coupled, columns[0]
        values = [column.detach().numpy() for column in columns]
        self.scores, self.rows = values[0], None if index is None else as_index(index, columns[0].device).numpy()
        self.label = values[-1] != 0
        members = (~self.label).nonzero()[0], self.label.nonzero()[0]
        self.negatives, self.positives = members
        assert coupled.memory is not None
        self.valid = self._is_valid(values[-1])
        if self.valid:
            rings = members if coupled.memory.rings == 2 else (np.arange(len(self.label)),)
            self.memory = ArrayMemory(coupled.memory, Batch(values, self.rows, rings))
            self.held = self.memory.held
            self.held_label, self.outer = self.held.columns[-1] != 0, self.held.share > 0
            self.enough = self.memory.is_enough()

    def _is_valid(self, label: Array) -> bool:
        """Whether nothing is wrong with the batch, and no row repeats; otherwise the engine says what is."""
        if not (len(label) and math.isfinite(np.add.reduce(self.scores)) and bool(((label == 0) | self.label).all())):
            return False
        if label.dtype.kind != "b" and not bool(((label == 0) | (label == 1)).all()):
            return False
        if self.rows is None:
            return True
        ordered = np.sort(self.rows)
        in_range = len(ordered) == len(label) and ordered[0] >= 0 and ordered[-1] < self.coupled.n
        return bool(in_range) and not has_repeats(ordered)

    @property
    def refreshes(self) -> bool:
        """Whether the batch refreshes what is remembered of g."""
        assert self.coupled.memory is not None
        return self.coupled.memory.options.refresh

    def refreshed(self, contributed: Array) -> Array:
        """Return what is remembered of g for outer examples, moved towards what fresh examples contribute to it."""
        at = self.held.at[self.outer]
        if self.refreshes:
            rate = len(self.scores) / (len(self.scores) + len(self.held_label))
            if self.coupled.log:
                at = np.logaddexp(at + math.log1p(-rate), contributed + math.log(rate))
            else:
                at = at + rate * (contributed - at)
            self.held.at[self.outer] = at
        return at

    @property
    def share(self) -> Array:
        """The weights of the remembered outer examples."""
        share = self.held.share[self.outer]
        return share / share.sum()

    def step(self, outer: Array, inner: Array, f: ArrayOuter) -> tuple[Array, Array]:
        """Take a step of the table; return the new rows, and the rows that f is to be differentiated at."""
        return track_rows(self.coupled, inner, None if self.rows is None else self.rows[outer], f)

    def step_by_itself(self, step: ByItself, outer: Array, inner: Array, expected: Array) -> Tensor | None:
        """Take the step of the batch by itself and remember the batch, with the estimates from everyone."""
        loss = step()
        if loss is not None:
            self.finish(outer, inner, expected)
        return loss

    def finish(self, outer: Array, inner: Array, expected: Array) -> None:
        """Remember the batch."""
        if self.coupled.is_frozen:
            return
        shape = (len(self.scores), *inner.shape[1:])
        at = np.full(shape, 0.0 if self.coupled.log else 1.0, inner.dtype)
        share = np.zeros(len(self.scores), np.float32)
        at[outer], share[outer] = inner, 1.0
        self.memory.remember(at, share, expected)


def _each_represents(population: float, expected: float) -> float:
    return population / expected if expected > 0 else 0.0


@or_left_to_the_engine
def remembering_average_precision(
    coupled: CoupledLoss,
    scores: Tensor,
    target: Tensor,
    index: Any,
    *,
    surrogate: Surrogate,
    temperature: float,
    n_pos: int,
    exact: bool,
    by_itself: ByItself,
) -> Tensor | None:
    """Return the average precision loss of a step with a memory, or None if the pool lacks what an estimate needs."""
    batch = FreshBatch(coupled, [scores, target], index)
    if not batch.valid:
        return None
    n, m = coupled.n, len(batch.positives)
    positive = np.concatenate([batch.label, batch.held_label])
    p = int(np.count_nonzero(positive))
    q = len(positive) - p
    if m > n_pos or len(batch.negatives) > n - n_pos or p == 0 or q == 0 or (exact and p == 1 < n_pos):
        return None
    dtype = np.float64 if exact or temperature != 1.0 else batch.scores.dtype
    h, old = batch.scores.astype(dtype) / temperature, batch.held.columns[0].astype(dtype) / temperature
    expected = batch.memory.expect(m)
    own, fresh = own_terms(surrogate), (h[batch.positives], h[batch.negatives])
    each = (n_pos - 1) / max(p - 1, 1) / n if exact else n_pos / p / n, (n - n_pos) / q / n
    counted = own.counted / n if exact else own.counted * each[0]
    pool = np.concatenate([fresh[0], old[batch.held_label]]), np.concatenate([fresh[1], old[~batch.held_label]])
    ours = PrecisionSums(surrogate, fresh[0], pool, each, counted - own.at_zero * each[0])
    inner = ours.inner.astype(batch.scores.dtype, copy=False)
    if not math.isfinite(np.add.reduce(inner, None)):
        return None
    if not batch.enough:
        return batch.step_by_itself(by_itself, batch.positives, inner, expected)
    of_rival = _each_represents(n_pos - 1, expected[1]) / n, _each_represents(n - n_pos, expected[0]) / n
    theirs = PrecisionSums(surrogate, old[batch.outer], fresh, of_rival, own.counted / n * (1 if exact else n_pos / p))
    gradient, f = np.zeros(len(h), dtype), MinusRatio()
    new, at = batch.step(batch.positives, inner, f)
    pulls = ours.by_class(f.slope(inner, at).astype(dtype) / (expected[-1] * temperature))
    # The own score is among the rivals too, where it does not count.
    gradient[batch.positives] = ours.pairs.pull_own(pulls) + pulls[0] * own.slope
    slope = f.slope(theirs.inner, batch.refreshed(theirs.inner)) * (batch.share / temperature)[:, None]
    gradient[np.concatenate([batch.positives, batch.negatives])] += theirs.pairs.pull_rivals(
        theirs.by_class(slope.astype(dtype))
    )
    batch.finish(batch.positives, inner, expected)
    return with_gradient((scores,), np.add.reduce(f.value(new)) / m if m else 0.0, (gradient,))


@or_left_to_the_engine
def remembering_p_norm_push(
    coupled: CoupledLoss,
    scores: Tensor,
    target: Tensor,
    index: Any,
    *,
    surrogate: Surrogate,
    f: ArrayOuter,
    by_itself: ByItself,
) -> Tensor | None:
    """Return the p-norm push loss of a step with a memory, or None if the pool lacks a positive."""
    batch = FreshBatch(coupled, [scores, target], index)
    if not batch.valid or len(batch.negatives) > coupled.n_outer:
        return None
    h, old, m = batch.scores, batch.held.columns[0], len(batch.negatives)
    fresh, rivals = h[batch.positives], np.concatenate([h[batch.positives], old[batch.held_label]])
    if len(rivals) == 0:
        return None
    expected = batch.memory.expect(m)
    ours = push_means(surrogate, h[batch.negatives], rivals, len(rivals))
    inner = ours.inner.astype(h.dtype, copy=False)
    if not math.isfinite(np.add.reduce(inner)):
        return None
    if not batch.enough:
        return batch.step_by_itself(by_itself, batch.negatives, inner, expected)
    theirs = push_means(surrogate, old[batch.outer], fresh, expected[1] or 1.0)  # 0 if there never was any
    slope = f.slope(theirs.inner, batch.refreshed(theirs.inner)) * batch.share
    if not math.isfinite(np.add.reduce(slope, None, np.float64)):
        return None
    new, at = batch.step(batch.negatives, inner, f)
    gradient = np.zeros_like(h)
    gradient[batch.negatives] = ours.pull_own(f.slope(inner, at) / expected[-1])
    gradient[batch.positives] = theirs.pull_rivals(slope)
    batch.finish(batch.negatives, inner, expected)
    return with_gradient((scores,), np.add.reduce(f.value(new)) / m if m else 0.0, (gradient,))

"""Fast steps of NCA with a memory, for eager mode on the CPU; see :mod:`fcco.losses._hand_memory`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcco._checks import as_index, has_repeats, reads_are_free
from fcco._coupled import CoupledLoss
from fcco._guard import EVERY, is_open
from fcco.losses._array_memory import Array, ArrayMemory, Batch, can_remember
from fcco.losses._array_outer import Share
from fcco.losses._array_step import can_track, count_step, track
from fcco.losses._by_hand import or_left_to_the_engine, with_gradient
from fcco.losses._hand_memory import ByItself
from fcco.losses._hand_similarity import NeighbourSums, neighbour_sums


def can_remember_nca(coupled: CoupledLoss, embeddings: Any, labels: Any) -> bool:
    """Return whether the step can be computed by hand: eagerly, on the CPU, and not one at which the guard looks."""
    memory = coupled.memory
    if memory is None or not can_remember(memory, embeddings) or not coupled.training or not torch.is_grad_enabled():
        return False
    if not (isinstance(labels, Tensor) and labels.is_cpu and labels.dtype in (torch.int64, torch.int32)):
        return False
    if embeddings.dim() != 2 or labels.shape != embeddings.shape[:1] or not reads_are_free(embeddings):
        return False
    if embeddings.shape[1:] != memory.columns[0].shape[1:] or not can_track(coupled) or not coupled.rule.bounded:
        return False
    return not memory.is_guarded or int(memory.step) % EVERY > 0


@or_left_to_the_engine
def remembering_nca(
    coupled: CoupledLoss,
    embeddings: Tensor,
    labels: Tensor,
    index: Any,
    *,
    log_likelihood: bool,
    by_itself: ByItself,
) -> Tensor | None:
    """Return the loss of a step with a memory, or None if the engine has to take it."""
    z, label = embeddings.detach().numpy(), labels.numpy()
    rows = None if index is None else as_index(index, embeddings.device).numpy()
    memory, n, size, f = coupled.memory, coupled.n, len(z), Share(log_likelihood)
    assert memory is not None
    if not size or not math.isfinite(np.add.reduce(z, None)) or not _are_rows(rows, size, n):
        return None
    arrays = ArrayMemory(memory, Batch([z, label], rows, [np.arange(size)]))
    held = arrays.held
    old, old_label = held.columns
    centre = z.mean(0)
    fresh, old = z - centre, old - centre
    everyone = np.concatenate([fresh, old])
    own = neighbour_sums(fresh, everyone, label, np.concatenate([label, old_label]), own_first=True)
    inner = own.logs + z.dtype.type(math.log((n - 1) / max(len(everyone) - 1, 1)))
    counts = inner[:, 0] > -math.inf if log_likelihood else np.ones(size, bool)
    if not (inner[:, 1] > -math.inf).all() or not counts.any() or np.isnan(inner).any():
        return None
    expected, stored = arrays.expect(float(np.count_nonzero(counts))), np.where(counts[:, None], inner, 0.0)
    if not _is_usable(arrays):
        loss = by_itself()
        if loss is not None and not coupled.is_frozen:
            arrays.remember(stored, counts.astype(held.share.dtype), expected)
        return loss
    outer = held.share > 0
    theirs = neighbour_sums(old[outer], fresh, old_label[outer], label, own_first=False)
    new, at = _step(coupled, inner, rows, counts, f)
    weights = own.weights(f.slope(inner, at) * (counts / expected[-1])[:, None])
    gradient = 2 * (weights @ everyone - weights.sum(1)[:, None] * fresh)
    gradient += _rival_side(arrays, theirs, fresh, old[outer], expected, n, f)
    value = np.add.reduce(f.value(new)[counts]) / np.count_nonzero(counts)
    if not coupled.is_frozen:
        arrays.remember(stored, counts.astype(held.share.dtype), expected)
    return with_gradient((embeddings,), value, (gradient,))


def _is_usable(arrays: ArrayMemory) -> bool:
    """Return whether the step has two sides; see ``OutputMemory.is_usable``."""
    memory = arrays.memory
    if memory.is_guarded and not is_open(memory.guard, waits=memory.options.waits is not False):
        return False
    return arrays.is_enough()


def _are_rows(rows: Array | None, size: int, n: int) -> bool:
    if rows is None:
        return True
    ordered = np.sort(rows)
    return bool(len(rows) == size and ordered[0] >= 0 and ordered[-1] < n) and not has_repeats(ordered)


def _step(coupled: CoupledLoss, inner: Array, rows: Array | None, counts: Array, f: Share) -> tuple[Array, Array]:
    """Take a step of the table; return the new rows, and those that f is to be differentiated at."""
    if rows is None:
        if not coupled.is_frozen:
            count_step(coupled)
        return inner, inner
    new, at = inner.copy(), inner.copy()
    new[counts], at[counts] = track(coupled, inner[counts], rows[counts], f)
    return new, at


def _rival_side(
    arrays: ArrayMemory, sums: NeighbourSums, fresh: Array, old: Array, expected: Array, n: int, f: Share
) -> Array:
    """Refresh the u of remembered examples; return the gradient of their terms with respect to the fresh ones."""
    held, size = arrays.held, len(fresh)
    outer = held.share > 0
    contributed = sums.logs + math.log((n - 1) / expected[0])
    at, share = held.at[outer], held.share[outer]
    if arrays.memory.options.refresh:
        rate = size / (size + len(held.share))
        held.at[outer] = at = np.logaddexp(at + math.log1p(-rate), contributed + math.log(rate))
    weights = sums.weights(f.slope(contributed, at) * (share / share.sum())[:, None])
    return 2 * (weights.T @ old - weights.sum(0)[:, None] * fresh)

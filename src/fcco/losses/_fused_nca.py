"""Fast steps of NCA with a memory, for eager mode on the CPU; see :mod:`fcco.losses._fused_memory`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fcco._checks import as_index, has_repeats, reads_are_free
from fcco._coupled import CoupledLoss
from fcco._guard import EVERY, is_open
from fcco.losses._array_memory import Array, ArrayMemory, Batch, can_remember
from fcco.losses._array_step import can_track, track
from fcco.losses._fused import with_gradient


class _Sums(NamedTuple):
    """Sums over rivals of e^-|z_i - z_j|² for every own example: over its mates, and over all.

    ``terms`` and ``mate`` have shape (own, rivals); a term is relative to the largest of its row, whose logarithm is
    ``peak``. ``logs`` has shape (own, 2).
    """

    terms: Array
    mate: Array
    peak: Array
    logs: Array


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
    if memory.is_guarded:
        return bool(int(memory.step) % EVERY and is_open(memory.guard, waits=memory.options.waits is not False))
    return True


def remembering_nca(
    coupled: CoupledLoss, embeddings: Tensor, labels: Tensor, index: Any, *, log_likelihood: bool
) -> Tensor | None:
    """Return the loss of a step with a memory, or None if the engine has to take it."""
    z, label = embeddings.detach().numpy(), labels.numpy()
    rows = None if index is None else as_index(index, embeddings.device).numpy()
    memory, n, size = coupled.memory, coupled.n, len(z)
    assert memory is not None
    if not size or not math.isfinite(np.add.reduce(z, None)) or not _are_rows(rows, size, n):
        return None
    arrays = ArrayMemory(memory, Batch([z, label], rows, [np.arange(size)]))
    held = arrays.held
    old, old_label = held.columns
    share = np.add.reduce(held.share)
    if not (share > 0 and share >= arrays.buffers["expected"][-1]):
        return None
    with np.errstate(all="ignore"):
        centre = z.mean(0)
        fresh, old = z - centre, old - centre
        everyone = np.concatenate([fresh, old])
        own = _sums_over(fresh, everyone, label, np.concatenate([label, old_label]), skip_diagonal=True)
        inner = own.logs + z.dtype.type(math.log((n - 1) / max(len(everyone) - 1, 1)))
        counts = inner[:, 0] > -math.inf if log_likelihood else np.ones(size, bool)
        if not (inner[:, 1] > -math.inf).all() or not counts.any() or np.isnan(inner).any():
            return None
        expected = arrays.expect(float(np.count_nonzero(counts)))
        new, at = _step(coupled, inner, rows, counts)
        # A table divides by its rows, and the sums above are those of the pool.
        pull = _pull(at, log_likelihood) * np.exp(inner - at) * (counts / expected[-1])[:, None]
        gradient = _pull_own(own, pull, fresh, everyone)
        gradient += _rival_side(arrays, fresh, old, label, expected, n, log_likelihood, memory.options.refresh)
        value = np.add.reduce(_values(new, log_likelihood)[counts]) / np.count_nonzero(counts)
    if not coupled.is_frozen:
        stored = np.where(counts[:, None], inner, 0.0)
        arrays.remember(stored, counts.astype(held.share.dtype), expected)
    return with_gradient(embeddings, value, gradient)


def _are_rows(rows: Array | None, size: int, n: int) -> bool:
    if rows is None:
        return True
    ordered = np.sort(rows)
    return bool(len(rows) == size and ordered[0] >= 0 and ordered[-1] < n) and not has_repeats(ordered)


def _sums_over(own: Array, rivals: Array, label: Array, their_label: Array, *, skip_diagonal: bool) -> _Sums:
    logits = 2 * (own @ rivals.T) - np.einsum("id,id->i", own, own)[:, None] - np.einsum("jd,jd->j", rivals, rivals)
    np.minimum(logits, 0, out=logits)
    if skip_diagonal:
        np.fill_diagonal(logits, -math.inf)
    peak = logits.max(1)
    terms = np.exp(np.subtract(logits, peak[:, None], out=logits), out=logits)
    mate = label[:, None] == their_label
    sums = np.stack([np.einsum("ij,ij->i", terms, mate), terms.sum(1)], 1)
    return _Sums(terms, mate, peak, np.log(sums) + peak[:, None])


def _step(coupled: CoupledLoss, inner: Array, rows: Array | None, counts: Array) -> tuple[Array, Array]:
    """Take a step of the table; return the new rows, and those that f is to be differentiated at."""
    if rows is None:
        if not coupled.is_frozen:
            coupled.table.step.add_(1)
        return inner, inner
    new, at = inner.copy(), inner.copy()
    new[counts], at[counts] = track(coupled, inner[counts], rows[counts])
    return new, at


def _values(log_u: Array, log_likelihood: bool) -> Array:
    difference = log_u[:, 0] - log_u[:, 1]
    return -difference if log_likelihood else -np.exp(difference)


def _pull(log_u: Array, log_likelihood: bool) -> Array:
    """Return the derivatives of f with respect to log u, of shape (own, 2)."""
    share = np.ones(len(log_u), log_u.dtype) if log_likelihood else np.exp(log_u[:, 0] - log_u[:, 1])
    return np.stack([-share, share], 1)


def _weights(sums: _Sums, pull: Array) -> Array:
    """Return the derivative of the loss with respect to -|z_i - z_j|², given that with respect to the logs."""
    scale = pull * np.exp(sums.peak[:, None] - sums.logs)
    scale[~np.isfinite(scale)] = 0.0  # an example without a mate
    return sums.terms * (scale[:, 1:] + scale[:, :1] * sums.mate)


def _pull_own(sums: _Sums, pull: Array, own: Array, rivals: Array) -> Array:
    weights = _weights(sums, pull)
    return 2 * (weights @ rivals - weights.sum(1)[:, None] * own)


def _rival_side(
    arrays: ArrayMemory,
    fresh: Array,
    old: Array,
    label: Array,
    expected: Array,
    n: int,
    log_likelihood: bool,
    refresh: bool,
) -> Array:
    """Refresh the u of remembered examples; return the gradient of their terms with respect to the fresh ones."""
    held = arrays.held
    outer, size = held.share > 0, len(fresh)
    sums = _sums_over(old[outer], fresh, held.columns[1][outer], label, skip_diagonal=False)
    contributed = sums.logs + math.log((n - 1) / expected[0])
    at, share = held.at[outer], held.share[outer]
    if refresh:
        rate = size / (size + len(held.share))
        held.at[outer] = at = np.logaddexp(at + math.log1p(-rate), contributed + math.log(rate))
    ratio = np.where(contributed > -math.inf, np.exp(contributed - at), 0.0)
    weights = _weights(sums, _pull(at, log_likelihood) * ratio * (share / share.sum())[:, None])
    return 2 * (weights.T @ old[outer] - weights.sum(0)[:, None] * fresh)

"""Steps worked out by hand in NumPy, for eager mode on the CPU, where operations on small batches cost more than
their arithmetic.

A loss gives two things: an :class:`ArrayEstimate`, which has the inner values of a batch and knows how a gradient with
respect to them reaches the outputs of the model, and f as an :class:`ArrayOuter`. :func:`step_by_hand` does the rest:
it takes the step of the table, and attaches the gradient to the outputs as a single node. Values and gradients equal
those of the estimates in :mod:`fcco.functional`, which run everywhere else: compiled, on accelerators, on several
ranks, and on batches that repeat a row or lack a class.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcco._checks import as_index, has_repeats, reads_are_free
from fcco._coupled import CoupledLoss
from fcco.core.rules import BSGD
from fcco.losses._array_outer import ArrayOuter
from fcco.losses._array_step import LeftToTheEngine as LeftToTheEngine
from fcco.losses._array_step import can_track, check_size, count_step, track

Array = NDArray[Any]

_FLOATS: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}
_NUMBERS = (*_FLOATS, torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64)


_NONE: Array = np.empty(0, np.int64)


def or_left_to_the_engine(step: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    """Decorate a step by hand: it returns None if the engine has to take the step, and NumPy warns of nothing."""

    @functools.wraps(step)
    def call(*args: Any, **options: Any) -> Tensor | None:
        with np.errstate(all="ignore"):
            try:
                return step(*args, **options)
            except LeftToTheEngine:
                return None

    return call


class ArrayEstimate(NamedTuple):
    """Inner values of some examples of a batch, and what follows from them."""

    inner: Array
    """[m] or [m, dim], g or log g."""
    pull: Callable[[Array], Sequence[Array]]
    """From the gradient with respect to ``inner`` to the gradients with respect to the outputs of the model."""
    outer: Array | None = None
    """[m], the positions of these examples in the batch; None: all, in order."""
    weight: Array | None = None
    """[m], the weight of each f; None: the mean."""


def can_work_by_hand(coupled: CoupledLoss, outputs: Sequence[Any], columns: Sequence[Any] = ()) -> bool:
    """Return whether a step can be worked out by hand: in training, eagerly, on the CPU, without other processes.

    Parameters
    ----------
    coupled : CoupledLoss
        The engine.
    outputs : sequence of Tensor
        The differentiable arguments of the loss, in single or double precision.
    columns : sequence of Tensor
        The others, of shape (B,).
    """
    first = outputs[0]
    if coupled.log and not coupled.rule.bounded:
        return False  # the engine has to check the gradient
    if not isinstance(first, Tensor) or not reads_are_free(first) or not first.dim():
        return False
    for tensor in outputs:
        if not isinstance(tensor, Tensor) or tensor.dtype not in _FLOATS or tensor.dtype != first.dtype:
            return False
        if not tensor.is_cpu or tensor.is_neg():  # NumPy cannot handle a negated view
            return False
    for tensor in columns:
        if not isinstance(tensor, Tensor) or tensor.shape != first.shape[:1] or tensor.dtype not in _NUMBERS:
            return False
        if not tensor.is_cpu:
            return False
    return can_track(coupled)


@or_left_to_the_engine
def step_by_hand(
    coupled: CoupledLoss,
    outputs: Sequence[Tensor],
    index: Any,
    f: ArrayOuter,
    estimate: Callable[..., ArrayEstimate],
    *columns: Tensor,
) -> Tensor | None:
    """Take a step without a memory; return the loss, or None if the engine has to take it.

    ``estimate`` is called with the outputs and the columns as arrays. It raises :class:`LeftToTheEngine` if the batch
    is not one that it knows, or may be invalid.
    """
    arrays = [tensor.detach().numpy() for tensor in (*outputs, *columns)]
    rows, repeated = _rows(coupled, index, outputs[0])
    made = estimate(*arrays)
    if made.outer is not None and rows is not None:
        rows = rows.take(made.outer)  # which takes less time than brackets
    if rows is not None and len(repeated) and np.isin(rows, repeated).any():
        return None
    inner = made.inner.astype(arrays[0].dtype, copy=False)
    _check_finite(inner, coupled.log)
    new, at = track_rows(coupled, inner, rows, f)
    slope, weight = f.slope(inner, at), made.weight
    if weight is None:
        value = np.add.reduce(f.value(new)) / len(inner)
        slope /= len(inner)
    else:
        value = np.dot(weight, f.value(new))
        slope = slope * (weight if slope.ndim == 1 else weight[:, None])
    return with_gradient(outputs, value, made.pull(slope))


def _rows(coupled: CoupledLoss, index: Any, output: Tensor) -> tuple[Array | None, Array]:
    """Return the rows of a batch, within [0, n), and those of them that appear twice."""
    if index is None:
        if not isinstance(coupled.rule, BSGD):
            raise LeftToTheEngine
        return None, _NONE
    rows = as_index(index, output.device).numpy()
    ordered = rows.copy()
    ordered.sort()  # in place, since np.sort takes twice as long to call
    if len(rows) != len(output) or ordered[0] < 0 or ordered[-1] >= coupled.n:
        raise LeftToTheEngine
    return rows, ordered[1:][ordered[1:] == ordered[:-1]] if has_repeats(ordered) else _NONE


def _check_finite(inner: Array, log: bool) -> None:
    decisive = np.maximum.reduce(inner, None) if log else np.add.reduce(inner, None)  # the largest is NaN if any is
    if not (decisive < math.inf if log else math.isfinite(decisive)):
        raise LeftToTheEngine


def track_rows(coupled: CoupledLoss, inner: Array, rows: Array | None, f: ArrayOuter) -> tuple[Array, Array]:
    """Take a step of the table; return the new rows, and those that f is to be differentiated at.

    ``rows`` is None if they are not known, for a rule that keeps none.
    """
    if rows is not None and len(rows):
        return track(coupled, inner, rows, f)
    check_size(coupled, f, inner, inner, inner)
    if not coupled.is_frozen:
        count_step(coupled)
    return inner, inner


def with_gradient(outputs: Sequence[Tensor], value: float, gradients: Sequence[Array]) -> Tensor:
    """Return a scalar with the given value and the given gradients with respect to the outputs."""
    loss: Any = None
    for output, gradient in zip(outputs, gradients, strict=True):
        dtype = _FLOATS[output.dtype]  # it may be narrower than that of the table
        part = torch.from_numpy(gradient.astype(dtype, copy=False).reshape(-1))
        term = torch.dot(output.reshape(-1) if output.dim() > 1 else output, part)
        loss = term if loss is None else loss + term
    loss.detach().numpy().fill(value)
    if loss.requires_grad:
        loss.grad_fn.register_prehook(_refuse_second_derivatives)
    return loss


def _refuse_second_derivatives(grads: Sequence[Tensor]) -> None:
    """Raise if a backward pass with ``create_graph=True`` reaches the loss."""
    # A backward pass has gradients enabled only with create_graph=True.
    if torch.is_grad_enabled():
        raise RuntimeError(
            "this loss has no second derivatives in eager mode on the CPU, where its gradient is computed by hand; "
            "use fcco.CoupledLoss with your own inner estimate"
        )

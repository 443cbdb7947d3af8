"""Refusing bad input before any state changes.

Shapes and dtypes are always checked. In eager mode on the CPU, checks on *values* raise at once and name the value.
Under ``torch.compile`` and on accelerators they are asynchronous assertions, which neither branch on data nor wait for
the device.
"""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.compiler import is_compiling


class NotFiniteError(ValueError):
    """A value is not finite, or a gradient is about to overflow: ``name[place]`` is ``value``.

    No state has changed.

    Parameters
    ----------
    message : str
        What the error says.
    name : str
        The argument that has the value, or "gradient".
    place : tuple of int
        The position of the value in it.
    value : float
        The value.

    Examples
    --------
    >>> import fcco
    >>> try:
    ...     fcco.CoupledLoss(torch.log, n=3, rule=fcco.SOX(0.1))(torch.tensor([1.0, torch.inf]), torch.tensor([0, 2]))
    ... except fcco.NotFiniteError as error:
    ...     print(error.name, error.place, error.value)
    inner (1,) inf
    """

    def __init__(self, message: str, name: str, place: tuple[int, ...], value: float) -> None:
        super().__init__(message)
        self.name, self.place, self.value = name, place, value

    def __reduce__(self) -> tuple[type[NotFiniteError], tuple[Any, ...]]:
        return type(self), (str(self), self.name, self.place, self.value)


def reads_are_free(tensor: Tensor) -> bool:
    """Return whether reading a value of ``tensor`` neither stalls a device nor breaks a graph or a transform."""
    return tensor.is_cpu and not is_compiling() and peek_interpreter_stack() is None


def is_plain() -> bool:
    """Return whether this is eager mode, on any device, outside of transforms."""
    return not is_compiling() and peek_interpreter_stack() is None


_RECORDED: list[list[tuple[Tensor, str]]] = []  # what the step whose graph is being made has asserted


def require(legal: Tensor, message: str) -> None:
    """Assert, without reading a value, that all are True."""
    legal = legal.all() if legal.dim() else legal
    torch._assert_async(legal, message)
    if _RECORDED:
        _RECORDED[-1].append((legal, message))


def record_requirements() -> None:
    """Record what is asserted from now on, for :func:`assert_before_writes`."""
    _RECORDED.append([])


def assert_before_writes(buffers: list[Tensor]) -> None:
    """Assert once more what was recorded, where compilers cannot move it behind writes to the buffers."""
    if _RECORDED and (recorded := _RECORDED.pop()):
        legal, messages = zip(*recorded, strict=True)
        _assert_before_writes(list(legal), "\n".join(messages), buffers)


@torch.library.custom_op(
    "fcco::assert_before_writes",
    mutates_args=("buffers",),  # for all that a compiler knows
    schema="(Tensor[] legal, str messages, Tensor(a!)[] buffers) -> ()",
)
def _assert_before_writes(legal: list[Tensor], messages: str, buffers: list[Tensor]) -> None:
    for one, message in zip(legal, messages.split("\n"), strict=True):
        torch._assert_async(one, message)


@_assert_before_writes.register_fake
def _(legal: list[Tensor], messages: str, buffers: list[Tensor]) -> None:
    return None


def shape_of(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` as an int; refuse anything else, and numbers below ``least``."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer; got {value!r}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer; got {value!r}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}; got {value!r}")
    return number


def check_inner(inner: Any, dim: int, name: str = "inner") -> Tensor:
    """Return ``inner`` in the shape [B1] if dim is 1, else [B1, dim]."""
    if not isinstance(inner, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(inner).__name__}")
    if not inner.is_floating_point():
        raise TypeError(f"{name} must be of a floating dtype; got {inner.dtype}")
    wanted = "[B1]" if dim == 1 else f"[B1, {dim}]"
    if dim == 1 and inner.dim() == 2 and inner.shape[1] == 1:
        inner = inner.squeeze(1)
    if inner.dim() != (1 if dim == 1 else 2) or (dim > 1 and inner.shape[1] != dim):
        raise ValueError(f"{name} must have the shape {wanted}; got {shape_of(inner)}")
    if inner.shape[0] == 0:
        raise ValueError(f"{name} must not be empty; got the shape {shape_of(inner)}")
    return inner


def check_finite(inner: Tensor, log: bool, name: str = "inner") -> None:
    """Refuse NaN and infinities; -inf is legal in log space, where it means g = 0."""
    values = inner.detach() if inner.requires_grad else inner
    if not reads_are_free(inner):
        legal = (values if log else values.abs()) < math.inf  # which NaN is not
        require(legal, f"{name} must be finite")
        return
    # One reduction usually decides: the largest value (NaN if there is any), or a finite sum.
    decisive = (values.max() if log else values.sum()).item()
    if not (decisive < math.inf if log else math.isfinite(decisive)):
        raise_if_not_finite(values, log, name)


def raise_if_not_finite(values: Tensor, log: bool, name: str) -> None:
    """Do what :func:`check_finite` does, where it does not matter to wait for a device."""
    bad = (~(values < math.inf) if log else ~values.isfinite()).nonzero()
    if len(bad):
        place = tuple(bad[0].tolist())
        value, legal = values[place].item(), "finite or -inf (which stands for g = 0)" if log else "finite"
        where = ", ".join(map(str, place))
        raise NotFiniteError(f"{name} must be {legal}; got {value} at position {where}", name, place, value)


def check_rate(name: str, owner: str, rate: float | Tensor, largest: float) -> None:
    """Refuse a rate of the moving average, or any of several, outside (0, largest]."""
    legal = f"{name} of {owner} must be {'in (0, 1]' if largest == 1 else 'positive and finite'}"
    if isinstance(rate, Tensor):
        within = (rate > 0) & (rate <= largest)
        if not reads_are_free(rate):
            require(within, legal)
        elif not within.all():
            raise ValueError(f"{legal}; got {rate[~within].flatten()[0].item()!r}")
    elif isinstance(rate, bool) or not isinstance(rate, Real):
        raise TypeError(f"{name} of {owner} must be a number or a schedule; got {rate!r}")
    elif not 0 < rate <= largest:
        raise ValueError(f"{legal}; got {rate!r}")


def as_index(index: Any, device: torch.device) -> Tensor:
    """Return ``index`` as a 1-d int64 tensor on ``device``."""
    if not isinstance(index, Tensor):
        array = np.array(index)
        if array.dtype.kind not in "iu" and array.size:
            raise TypeError(f"index must be of an integer dtype; got {array.dtype} in {index!r}")
        index = torch.from_numpy(array.astype(np.int64))
    if index.dim() != 1:
        raise ValueError(f"index must have the shape [B1]; got {shape_of(index)}")
    if index.shape[0] == 0:
        raise ValueError("index must not be empty; got the shape [0]")
    if index.dtype != torch.int64:
        if index.dtype == torch.bool or index.is_floating_point() or index.is_complex():
            raise TypeError(f"index must be of an integer dtype; got {index.dtype}")
        index = index.to(torch.int64)
    # A copy to the CPU must arrive before its values are read.
    return index if index.device == device else index.to(device, non_blocking=device.type != "cpu")


def check_one_each(index: Tensor, values: Tensor, name: str) -> None:
    """Refuse an index that does not have an entry for each of ``values``, which the message calls ``name``."""
    if index.shape[0] != values.shape[0]:
        raise ValueError(f"index must have the shape [{len(values)}], like {name}; got {shape_of(index)}")


def missing_index(reason: str) -> TypeError:
    """Return the error for a call without an index, which is needed for a reason."""
    return TypeError(
        f"index must be given, because {reason}; got None. fcco.data.Indexed adds it to the items of a dataset"
    )


def is_empty(values: Any) -> bool:
    """Return whether ``values`` has length 0. Anything without a length is for others to refuse."""
    return hasattr(values, "__len__") and len(values) == 0


def check_rows(rows: Tensor, n: int) -> NDArray[np.int64] | None:
    """Refuse rows outside [0, n); return them in ascending order, unless that would stall a device."""
    if not reads_are_free(rows):
        require(rows.clamp(0, n - 1) == rows, f"index must be in [0, {n})")
        return None
    ordered = rows.numpy().copy()
    ordered.sort()  # in place, since np.sort takes twice as long to call
    if ordered[0] < 0 or ordered[-1] >= n:
        place = int(((rows < 0) | (rows >= n)).nonzero()[0])
        raise IndexError(f"index must be in [0, {n}); got {int(rows[place])} at position {place}")
    return ordered


def check_same_length(inner: Tensor, rows: Tensor) -> None:
    """Refuse an index that is longer or shorter than ``inner``."""
    if inner.shape[0] != rows.shape[0]:
        raise ValueError(
            f"inner and index must have the same length; got the shapes {shape_of(inner)} and {shape_of(rows)}"
        )


def check_weight(weight: Any, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``weight`` as [B1] of ``dtype``."""
    if not isinstance(weight, Tensor) or weight.shape != rows.shape:
        got = shape_of(weight) if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"weight must be a tensor of the shape {shape_of(rows)}; got {got}")
    if weight.dtype == torch.bool:
        return weight.to(dtype)
    if not weight.is_floating_point():
        raise TypeError(f"weight must be of a floating dtype or bool; got {weight.dtype}")
    weight = weight.detach().to(dtype)
    check_finite(weight, log=False, name="weight")
    legal = weight >= 0
    if not reads_are_free(weight):
        require(legal, "weight must be at least 0")
    elif not legal.all():
        place = int((~legal).nonzero()[0])
        raise ValueError(f"weight must be at least 0; got {weight[place].item()} at position {place}")
    return weight

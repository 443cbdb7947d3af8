"""Argument checks, which run before anything is computed; messages name the argument, the value and its position."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcco._checks import reads_are_free, require, shape_of, whole_number
from fcco.functional._tensors import at_least_float32


def refuse_where(name: str, values: Tensor, bad: Tensor, wanted: str) -> None:
    """Raise for the first position where ``bad`` is True: "``name`` must be ``wanted``; got ... at position ...".

    If reading a value would stall a device or break a graph, the check is an asynchronous assertion instead.
    """
    if not reads_are_free(bad):
        require(~bad, f"{name} must be {wanted}")
        return
    if not bool(bad.any()):
        return
    place = tuple(bad.nonzero()[0].tolist())
    where = place[0] if len(place) == 1 else place
    raise ValueError(
        f"{name} must be {wanted}; got {values[place].item()} at position {where}"
        f"{_advice_on_labels(name, wanted, values[place].item())}"
    )


def _advice_on_labels(name: str, wanted: str, value: float) -> str:
    """Return what to do about labels of -1 and 1, and about classes."""
    if wanted != "0 or 1":
        return ""
    if value == -1:
        return f". If the labels are -1 and 1, pass {name} > 0"
    if value > 1 and value == int(value):
        return (
            f". If these are classes, pass {name} == k for class k; a loss that takes scores of the shape [B, C] is "
            f"made from one_hot({name})"
        )
    return ""


def _check_tensor(tensor: Any, name: str) -> None:
    """Check that a value is a tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(tensor).__name__}")


def check_floats(tensor: Any, name: str, shape: str = "[n]", *, zero_weight: bool = False, room: float = 1.0) -> None:
    """Check that a tensor is floating, nonempty, finite, and has as many dimensions as ``shape`` names.

    With ``zero_weight``, the tensor holds logarithms, and -inf, the logarithm of 0, is allowed. ``room`` is a factor by
    which every value can be multiplied without overflow, in float32 at least; the difference of two values needs 2.
    """
    _check_tensor(tensor, name)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must have a floating dtype; got {tensor.dtype}")
    if tensor.dim() != shape.count(",") + 1:
        raise ValueError(
            f"{name} must have the shape {shape}; got {shape_of(tensor)}{_advice_on_columns(name, shape, tensor)}"
        )
    if tensor.numel() == 0:
        raise ValueError(f"{name} must not be empty; got the shape {shape_of(tensor)}")
    values = tensor.detach()
    if zero_weight:
        refuse_where(name, values, ~(values < math.inf), "finite or -inf")
    elif not (reads_are_free(values) and math.isfinite(values.sum().item())):  # one reduction usually decides
        refuse_where(name, values, ~values.isfinite(), "finite")
    if room == 1.0:
        return
    largest = torch.finfo(torch.promote_types(tensor.dtype, torch.float32)).max / room
    if largest < torch.finfo(tensor.dtype).max:
        too_large = values.abs() > largest
        if zero_weight:
            too_large = too_large & (values > -math.inf)
        refuse_where(name, values, too_large, f"so small that {room:g} times the value is finite")


def _advice_on_columns(name: str, shape: str, tensor: Tensor) -> str:
    """Return what to do about what a layer with one output returns."""
    return f": pass {name}.squeeze(1)" if "," not in shape and tensor.shape[1:] == (1,) else ""


def as_value(value: Tensor, like: Tensor, name: str) -> Tensor:
    """Return the value of an objective in the dtype of its argument; raise if it is not finite in that dtype."""
    rounded = value.to(like.dtype)
    if reads_are_free(rounded) and not rounded.isfinite():
        raise ValueError(
            f"{name} must be so small that the loss is finite in {like.dtype}; got a loss of {value.item():g}"
        )
    return rounded


def check_same(tensor: Tensor, name: str, like: Tensor, like_name: str) -> None:
    """Check that two tensors have the same dtype, device and shape."""
    if tensor.dtype != like.dtype:
        raise TypeError(f"{name} and {like_name} must have the same dtype; got {tensor.dtype} and {like.dtype}")
    if tensor.shape != like.shape:
        raise ValueError(f"{name} must have the shape of {like_name}, {shape_of(like)}; got {shape_of(tensor)}")
    _check_device(tensor, name, like, like_name)


def _check_device(tensor: Tensor, name: str, like: Tensor, like_name: str) -> None:
    """Check that two tensors are on the same device."""
    if tensor.device != like.device:
        raise ValueError(
            f"{name} and {like_name} must be on the same device; got {tensor.device} and {like.device}. "
            "Move one of them with .to()"
        )


def check_per_example(tensor: Any, name: str, like: Tensor, like_name: str) -> None:
    """Check that a tensor has one value for each example of ``like`` and is on the same device."""
    _check_tensor(tensor, name)
    if tensor.shape != like.shape[:1]:
        raise ValueError(f"{name} must have the shape [{like.shape[0]}], like {like_name}; got {shape_of(tensor)}")
    _check_device(tensor, name, like, like_name)


def as_mask(values: Any, name: str, like: Tensor, like_name: str, *, signs: bool = True) -> Tensor:
    """Return a bool mask of shape (n,) from bool, 0/1 or, with ``signs``, -1/1 of any dtype."""
    check_per_example(values, name, like, like_name)
    if values.dtype == torch.bool:
        return values
    if values.is_complex():
        raise TypeError(f"{name} must have a real dtype; got {values.dtype}")
    if reads_are_free(values) and values.dtype != torch.bfloat16:  # where NumPy takes a tenth of the time
        array = values.detach().numpy()
        positive = array == 1
        if np.count_nonzero(positive) == np.count_nonzero(array):
            return torch.from_numpy(positive)
    if not values.is_floating_point():
        values = values.long()  # in uint8, 255 compares equal to -1
    zero, minus = values == 0, values == -1
    if not signs:
        refuse_where(name, values, ~(zero | (values == 1)), "0 or 1")
        return values == 1
    refuse_where(name, values, ~(zero | minus | (values == 1)), "0, 1 or -1")
    if bool(minus.any()):
        refuse_where(name, values, zero, f"-1 or 1, since {name} contains -1 (use either 0 and 1, or -1 and 1)")
    return values == 1


def check_integers(ids: Any, name: str, like: Tensor, like_name: str) -> None:
    """Check that a tensor has one integer for each example of ``like``."""
    check_per_example(ids, name, like, like_name)
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise TypeError(f"{name} must have an integer dtype; got {ids.dtype}")


def as_groups(ids: Any, name: str, like: Tensor, like_name: str) -> tuple[Tensor, int]:
    """Renumber arbitrary integers as 0 ... count - 1, in the order of their values, and count them."""
    check_integers(ids, name, like, like_name)
    distinct, group = torch.unique(ids, return_inverse=True)
    return group, len(distinct)


def check_relevance(relevance: Any, like: Tensor, like_name: str, *, signed: bool) -> None:
    """Check that there is one finite relevance for each score, and that none is negative unless ``signed``."""
    check_per_example(relevance, "relevance", like, like_name)
    if relevance.is_complex():
        raise TypeError(f"relevance must have a real dtype; got {relevance.dtype}")
    if relevance.is_floating_point():
        refuse_where("relevance", relevance, ~relevance.isfinite(), "finite")
    if not signed:
        refuse_where("relevance", relevance, relevance < 0, "at least 0")


def check_time(time: Any, like: Tensor, like_name: str) -> None:
    """Check that there is one time for each example of ``like``, and that none is negative or NaN.

    Only the order of the times matters, so inf is allowed.
    """
    check_per_example(time, "time", like, like_name)
    if time.dtype == torch.bool or time.is_complex():
        raise TypeError(f"time must have a real dtype; got {time.dtype}")
    is_array = reads_are_free(time) and time.dtype != torch.bfloat16
    if not (is_array and np.minimum.reduce(time.detach().numpy(), initial=0) >= 0):
        refuse_where("time", time, ~(time >= 0), "at least 0")


def check_entry(entry: Any, time: Tensor) -> None:
    """Check that every example enters before its time; an entry at -inf is one that was never missed."""
    check_per_example(entry, "entry", time, "time")
    if entry.dtype == torch.bool or entry.is_complex():
        raise TypeError(f"entry must have a real dtype; got {entry.dtype}")
    refuse_where("entry", entry, ~(entry < time), "below the example's time")


def check_some_weight(log_weight: Tensor, name: str) -> None:
    """Check that no row of logarithms is -inf throughout: its sum would be 0, which has no logarithm."""
    lost = (log_weight.detach() == -math.inf).all(1)
    if bool(lost.any()):
        raise ValueError(
            f"{name} must be above -inf somewhere in each row; got only -inf at row {int(lost.nonzero()[0])}"
        )


def check_directions(vectors: Tensor, name: str) -> None:
    """Check that no vector is 0, or so short that the derivative of its direction, 1 / length, overflows."""
    size = at_least_float32(vectors.detach()).abs().amax(1)
    shortest = torch.finfo(size.dtype).tiny * 2**20
    refuse_where(f"the length of each vector in {name}", size, size < shortest, "large enough to define a direction")


def check_squares(norm: Tensor, room: int = 4) -> None:
    """Check that the squared lengths of embeddings are small enough for squared distances not to overflow."""
    too_large = ~(norm.detach() < torch.finfo(norm.dtype).max / room)
    wanted = "so small that squared distances are finite"
    refuse_where("the squared length of each vector in embeddings", norm.detach(), too_large, wanted)


def check_number(value: Any, name: str, *, at_least: float | None = None, above: float | None = None) -> None:
    """Check that a value is a finite number within a bound."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number; got {type(value).__name__}")
    if at_least is not None and not at_least <= float(value) < math.inf:
        raise ValueError(f"{name} must be finite and at least {at_least}; got {value!r}")
    if above is not None and not above < float(value) < math.inf:
        raise ValueError(f"{name} must be finite and above {above}; got {value!r}")


def check_count(value: Any, name: str) -> None:
    """Check that a value is None or an integer of at least 1."""
    if value is not None:
        whole_number(name, value)


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    """Check that a value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")

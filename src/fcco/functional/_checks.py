"""Refusing input that cannot be meant, before anything is computed; messages name the culprit and its position."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from fcco._checks import reads_are_free, shape_of, whole_number
from fcco.functional._tensors import at_least_float32


def refuse_where(name: str, values: Tensor, bad: Tensor, wanted: str) -> None:
    """Raise for the first position where ``bad`` holds, if there is one; without looking where that would cost."""
    if not reads_are_free(bad):
        torch._assert_async(~bad.any(), f"{name} has a value that is {wanted}")
        return
    if not bool(bad.any()):
        return
    place = tuple(bad.nonzero()[0].tolist())
    raise ValueError(f"{name}[{', '.join(map(str, place))}] is {values[place].item()}, {wanted}")


def _check_tensor(tensor: Any, name: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")


def check_floats(tensor: Any, name: str, shape: str = "[n]", *, zero_weight: bool = False, room: float = 1.0) -> None:
    """A floating tensor with as many dimensions as ``shape`` names, not empty, finite.

    With ``zero_weight``, the tensor holds logarithms, and -inf is legal: the logarithm of 0. With ``room``, so many
    times each value is a number too, in float32 at least: differences of two take 2.
    """
    _check_tensor(tensor, name)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be of a floating dtype, got {tensor.dtype}")
    if tensor.dim() != shape.count(",") + 1:
        raise ValueError(f"{name} must have the shape {shape}, got {shape_of(tensor)}")
    if tensor.numel() == 0:
        raise ValueError(f"{name} is empty: its shape is {shape_of(tensor)}")
    values = tensor.detach()
    if zero_weight:
        refuse_where(name, values, ~(values < math.inf), "neither a finite number nor -inf")
    else:
        refuse_where(name, values, ~values.isfinite(), "not a finite number")
    largest = torch.finfo(torch.promote_types(tensor.dtype, torch.float32)).max / room
    if largest < torch.finfo(tensor.dtype).max:
        too_large = values.abs() > largest
        if zero_weight:
            too_large = too_large & (values > -math.inf)
        refuse_where(name, values, too_large, f"too large: {room:g} times that overflows")


def as_value(value: Tensor, like: Tensor, name: str) -> Tensor:
    """The value of an objective in the dtype of its argument; refuses one that is no number there."""
    rounded = value.to(like.dtype)
    if reads_are_free(rounded) and not rounded.isfinite():
        raise ValueError(f"{name} is too large: the value, {value.item():g}, overflows {like.dtype}")
    return rounded


def check_same(tensor: Tensor, name: str, like: Tensor, like_name: str) -> None:
    """Two tensors of one dtype, one device and one shape."""
    if tensor.dtype != like.dtype:
        raise TypeError(f"{name} is of {tensor.dtype}, {like_name} of {like.dtype}: they must agree")
    if tensor.shape != like.shape:
        raise ValueError(f"{name} must have the shape of {like_name}, {shape_of(like)}, got {shape_of(tensor)}")
    _check_device(tensor, name, like, like_name)


def _check_device(tensor: Tensor, name: str, like: Tensor, like_name: str) -> None:
    if tensor.device != like.device:
        raise ValueError(f"{name} is on {tensor.device}, {like_name} on {like.device}: move one with .to()")


def check_per_example(tensor: Any, name: str, like: Tensor, like_name: str) -> None:
    """One value for each row of ``like``, on its device."""
    _check_tensor(tensor, name)
    if tensor.shape != like.shape[:1]:
        raise ValueError(f"{name} must have the shape [{like.shape[0]}], as {like_name} has, got {shape_of(tensor)}")
    _check_device(tensor, name, like, like_name)


def as_mask(values: Any, name: str, like: Tensor, like_name: str, *, signs: bool = True) -> Tensor:
    """[n] of bool, from bool, 0/1 or (with ``signs``) -1/1 of any dtype."""
    check_per_example(values, name, like, like_name)
    if values.dtype == torch.bool:
        return values
    if values.is_complex():
        raise TypeError(f"{name} must be of a real dtype, got {values.dtype}")
    if not values.is_floating_point():
        values = values.long()  # 255 of uint8 compares equal to -1
    zero, minus = values == 0, values == -1
    if not signs:
        refuse_where(name, values, ~(zero | (values == 1)), "neither 0 nor 1")
        return values == 1
    refuse_where(name, values, ~(zero | minus | (values == 1)), "none of 0, 1 and -1")
    if bool(minus.any()):
        refuse_where(name, values, zero, "where others are -1: use either 0 and 1, or -1 and 1")
    return values == 1


def check_integers(ids: Any, name: str, like: Tensor, like_name: str) -> None:
    """One integer for each row of ``like``."""
    check_per_example(ids, name, like, like_name)
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise TypeError(f"{name} must be of an integer dtype, got {ids.dtype}")


def as_groups(ids: Any, name: str, like: Tensor, like_name: str) -> tuple[Tensor, int]:
    """Integers of any value as [n] of 0 ... count - 1, in the order of the values, and the count."""
    check_integers(ids, name, like, like_name)
    distinct, group = torch.unique(ids, return_inverse=True)
    return group, len(distinct)


def check_relevance(relevance: Any, like: Tensor, like_name: str, *, signed: bool) -> None:
    """One finite number for each score; not negative unless ``signed``."""
    check_per_example(relevance, "relevance", like, like_name)
    if relevance.is_complex():
        raise TypeError(f"relevance must be of a real dtype, got {relevance.dtype}")
    if relevance.is_floating_point():
        refuse_where("relevance", relevance, ~relevance.isfinite(), "not a finite number")
    if not signed:
        refuse_where("relevance", relevance, relevance < 0, "negative")


def check_time(time: Any, like: Tensor, like_name: str) -> None:
    """One time for each row of ``like``: not NaN, not negative. Only the order of times matters, so inf is one."""
    check_per_example(time, "time", like, like_name)
    if time.dtype == torch.bool or time.is_complex():
        raise TypeError(f"time must be of a real dtype, got {time.dtype}")
    refuse_where("time", time, ~(time >= 0), "not a time")


def check_some_weight(log_weight: Tensor, name: str) -> None:
    """Refuse a row of logarithms that are all -inf: its sum is 0, and has no logarithm."""
    lost = (log_weight.detach() == -math.inf).all(1)
    if bool(lost.any()):
        raise ValueError(f"{name}[{int(lost.nonzero()[0])}] is -inf throughout: the sum of the row is 0")


def check_directions(vectors: Tensor, name: str) -> None:
    """Refuse vectors that are 0, or so short that the slope of their direction, 1 over the length, overflows."""
    size = at_least_float32(vectors.detach()).abs().amax(1)
    shortest = torch.finfo(size.dtype).tiny * 2**20
    refuse_where(f"the length of {name}", size, size < shortest, "of a vector that has no direction")


def check_squares(norm: Tensor) -> None:
    """Refuse embeddings whose squared length is such that squared distances may overflow."""
    too_large = ~(norm.detach() < torch.finfo(norm.dtype).max / 4)
    refuse_where("the squared length of embeddings", norm.detach(), too_large, "too large for squared distances")


def check_number(value: Any, name: str, *, at_least: float | None = None, above: float | None = None) -> None:
    """A finite number, within a bound."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if at_least is not None and not at_least <= float(value) < math.inf:
        raise ValueError(f"{name} must be finite and at least {at_least}, got {value!r}")
    if above is not None and not above < float(value) < math.inf:
        raise ValueError(f"{name} must be finite and above {above}, got {value!r}")


def check_count(value: Any, name: str) -> None:
    """An integer of at least 1, or None."""
    if value is not None:
        whole_number(name, value)


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")

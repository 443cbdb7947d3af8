"""Descriptions of settings that are the same in every process, to compare ranks, and a saved state with a loss."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import operator
from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Longer collections are data, not options.
_LONGEST = 16
# How deep nested objects are described; a function may refer to itself.
_DEEPEST = 4

_NOTHING: Mapping[str, Any] = {}


def digest(content: Any) -> str:
    """Return 12 hexadecimal digits that identify some bytes."""
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def fingerprint(values: Tensor) -> str:
    """Return digits that identify the values of a tensor; floats are rounded to single precision first."""
    values = values.detach().cpu()
    values = values.float() if values.is_floating_point() else values
    return digest(values.double().contiguous().numpy())


def options_of(thing: object) -> dict[str, Any]:
    """Return the fields of a dataclass and the attributes without a leading underscore, by name."""
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
    found = {field.name: getattr(thing, field.name) for field in fields}
    found.update((name, value) for name, value in getattr(thing, "__dict__", {}).items() if name[0] != "_")
    if isinstance(thing, nn.Module):
        found.pop("training", None)
        for name, child in thing.named_children():
            found |= {name: type(child), **{f"{name}.{key}": value for key, value in options_of(child).items()}}
    return found


class Descriptions:
    """Texts of options, which are made anew only if an option, or something in it, is a different object.

    Comparing identities takes a fraction of the time of describing the options. A copy starts empty.
    """

    def __init__(self) -> None:
        self._of: list[Any] = []
        self._texts: dict[str, str] = {}

    def __reduce__(self) -> tuple[type[Descriptions], tuple[()]]:
        return Descriptions, ()

    def texts(self, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the description of each option, by name."""
        values = options.values()
        of = [*options, *values, *(part for value in values for part in getattr(value, "__dict__", _NOTHING).values())]
        if len(of) != len(self._of) or not all(map(operator.is_, of, self._of)):
            self._of, self._texts = of, {name: describe(value) for name, value in options.items()}
        return self._texts


def describe(value: Any, depth: int = _DEEPEST) -> str:
    """Return a text that differs if two options do, as far as another process can tell.

    A function is described by its name and the values it refers to, a callable object or a dataclass by its fields. Of
    anything else only the type is given, since the object may belong to this process: a tensor, for example.

    >>> describe(functools.partial(max, 0.5))
    'partial(max, 0.5)'
    """
    value = getattr(value, "_orig_mod", value)  # what torch.compile wraps
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1 and 1.0 are the same option
    if value is None or isinstance(value, bool | int | float | complex | str | torch.dtype):
        return repr(value)
    if depth == 0:
        return type(value).__qualname__
    if isinstance(value, tuple | list | Mapping) and len(value) <= _LONGEST:
        parts = value if isinstance(value, Mapping) else dict(enumerate(value))
        return _with_parts("", parts, depth)
    if isinstance(value, functools.partial):
        return _with_parts("partial", {0: value.func, **dict(enumerate(value.args, 1)), **value.keywords}, depth)
    value = inspect.unwrap(value) if callable(value) else value
    value = value.__func__ if isinstance(value, MethodType) else value
    if isinstance(value, FunctionType):
        return _with_parts(value.__qualname__, _held_by(value), depth)
    name = getattr(value, "__qualname__", None)  # of a type, or a function that is built in
    if name is not None or not (callable(value) or dataclasses.is_dataclass(value)):
        return name or type(value).__qualname__
    return _with_parts(type(value).__qualname__, options_of(value), depth)


def _with_parts(name: str, parts: Mapping[Any, Any], depth: int) -> str:
    """Return a name with its parts in brackets. Of a module only the type is given, since it is not an option."""
    texts = (
        (key, type(part).__qualname__ if isinstance(part, nn.Module) else describe(part, depth - 1))
        for key, part in parts.items()
    )
    return f"{name}({', '.join(text if isinstance(key, int) else f'{key}={text}' for key, text in texts)})"


def _held_by(function: FunctionType) -> dict[Any, Any]:
    """Return the defaults of a function and the variables of its closure."""
    held = dict(enumerate(function.__defaults__ or ())) | (function.__kwdefaults__ or {})
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            held[name] = cell.cell_contents
    return held

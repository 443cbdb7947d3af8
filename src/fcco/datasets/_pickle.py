"""Reading the pickles of CIFAR without running what a pickle can run."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

_PLAIN = (bytes, str, int)


class _Array:
    """Stands in for an array while its pickle is read."""

    __slots__ = ("values",)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Uint8) or not isinstance(data, bytes) or fortran:
            raise pickle.UnpicklingError("an array is not of uint8 in C order")
        self.values = np.frombuffer(data, np.uint8).reshape(shape).copy()


class _Uint8:
    """Stands in for the one dtype that is allowed."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment, of which a byte has none."""


class _MakeArray:
    __slots__ = ()

    def __call__(self, *_: Any) -> _Array:
        return _Array()


class _MakeDtype:
    __slots__ = ()

    def __call__(self, name: Any, *_: Any) -> _Uint8:
        if name not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"an array is of {name!r}, only uint8 is allowed")
        return _Uint8()


# Not the classes themselves: nothing of NumPy is called with arguments from the pickle.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _MakeArray(),
    ("numpy._core.multiarray", "_reconstruct"): _MakeArray(),
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _MakeDtype(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed")
        return _ALLOWED[module, name]


def load_plain(data: bytes) -> Any:
    """What a pickle holds, if that is dicts, lists, bytes, strings, integers and uint8 arrays only.

    Nothing that the pickle names is imported or called.

    Args:
        data: the pickle; strings of Python 2 come out as bytes.

    Raises:
        ValueError: it holds or asks for something else, which is named, or it is cut short.

    >>> load_plain(pickle.dumps({b"labels": [3, 1]}))
    {b'labels': [3, 1]}
    >>> load_plain(pickle.dumps(print))
    Traceback (most recent call last):
        ...
    ValueError: refused a pickle: it asks for builtins.print, which is not allowed
    """
    try:
        return _plain(_Unpickler(io.BytesIO(data), encoding="bytes").load())
    except pickle.UnpicklingError as refused:
        raise ValueError(f"refused a pickle: {refused}") from refused
    except Exception as broken:
        raise ValueError(f"not a pickle: {broken}") from broken


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.values
    if type(value) is dict:
        return {_plain(key): _plain(item) for key, item in value.items()}
    if type(value) is list:
        return [_plain(item) for item in value]
    if type(value) not in _PLAIN:
        raise pickle.UnpicklingError(f"it holds a {type(value).__name__}, which is not allowed")
    return value

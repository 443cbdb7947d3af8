"""The part of HDF5 that the DeepSurv files use: groups of the first version, and contiguous arrays of numbers.

Reference: The HDF Group, *HDF5 File Format Specification*, version 1.1 (superblock 0).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcco.datasets._open import naming

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_ROOT_HEADER = 64  # where the superblock has the address of the root group's object header
_DATASPACE, _DATATYPE, _LAYOUT, _CONTINUATION, _SYMBOL_TABLE = 0x01, 0x03, 0x08, 0x10, 0x11
_KINDS = {0: "i", 1: "f"}
_CONTIGUOUS = 1


def read_hdf5(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a file, by their path in it, such as ``"train/x"``.

    Raises:
        DamagedFileError: the file is cut short, or uses a part of HDF5 that is not read here.
    """
    with naming(path):
        data = path.read_bytes()
        if not data.startswith(_SIGNATURE + b"\0"):
            raise ValueError("it is no HDF5 file with a superblock of version 0")
        return dict(_walk(data, _unpack("<Q", data, _ROOT_HEADER)[0], ""))


def _unpack(form: str, data: bytes, offset: int) -> tuple[Any, ...]:
    return struct.unpack_from(form, data, offset)


def _walk(data: bytes, header: int, name: str) -> Iterator[tuple[str, NDArray[Any]]]:
    messages = dict(_messages(data, header))
    if _SYMBOL_TABLE not in messages:
        yield name, _array(data, messages)
        return
    tree, heap = _unpack("<QQ", data, messages[_SYMBOL_TABLE])
    names = _unpack("<Q", data, heap + 24)[0]
    for offset, child in _entries(data, tree):
        start = names + offset
        label = data[start : data.index(b"\0", start)].decode()
        yield from _walk(data, child, f"{name}/{label}" if name else label)


def _entries(data: bytes, tree: int) -> Iterator[tuple[int, int]]:
    """Of every link under a B-tree, where its name stands in the heap, and the address of its object header."""
    signature, _, level, used = _unpack("<4sBBH", data, tree)
    if signature != b"TREE":
        raise ValueError(f"no B-tree at byte {tree}")
    for child in _unpack("<" + "8xQ" * used, data, tree + 24):
        if level > 0:
            yield from _entries(data, child)
            continue
        signature, count = _unpack("<4s2xH", data, child)
        if signature != b"SNOD":
            raise ValueError(f"no symbol table node at byte {child}")
        for number in range(count):
            offset, header = _unpack("<QQ", data, child + 8 + 40 * number)
            yield offset, header


def _messages(data: bytes, header: int) -> Iterator[tuple[int, int]]:
    """Type and position of every message of an object header of version 1."""
    version, left, size = _unpack("<BxH4xI", data, header)
    if version != 1:
        raise ValueError(f"the object header at byte {header} is of version {version}, not 1")
    blocks = [(header + 16, size)]
    while blocks and left:
        at, size = blocks.pop()
        end = at + size
        while at < end and left:
            kind, length = _unpack("<HH", data, at)
            yield kind, at + 8
            if kind == _CONTINUATION:
                blocks.append(_unpack("<QQ", data, at + 8))
            at, left = at + 8 + length, left - 1


def _array(data: bytes, messages: dict[int, int]) -> NDArray[Any]:
    version, rank = _unpack("<BB", data, messages[_DATASPACE])
    shape = _unpack(f"<{rank}Q", data, messages[_DATASPACE] + (8 if version == 1 else 4))
    kind, flags, size = _unpack("<BBxxI", data, messages[_DATATYPE])
    if kind & 15 not in _KINDS or flags & 1:
        raise ValueError(f"an array has the type {kind & 15}, only little-endian numbers are read")
    version, layout, address = _unpack("<BBQ", data, messages[_LAYOUT])
    if version != 3 or layout != _CONTIGUOUS:
        raise ValueError(f"an array has the layout {layout} of version {version}, only contiguous ones are read")
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(data, f"<{_KINDS[kind & 15]}{size}", count, address).reshape(shape).copy()

"""Small files of the published formats."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Mapping
from typing import Any

import numpy as np


def tar(members: Mapping[str, bytes]) -> bytes:
    """A tar.gz archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def pickled(value: Any) -> bytes:
    """A pickle as Python 2 wrote those of CIFAR: byte strings, and arrays of uint8."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return b"T" + struct.pack("<I", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_opcodes(part) for item in value.items() for part in item) + b"u"
    make = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    shape = b"(" + b"".join(map(_opcodes, value.shape)) + b"t"
    return make + b"(K\x01" + shape + dtype + b"\x89" + _opcodes(value.tobytes()) + b"tb"


class Hdf5:
    """Writes groups of contiguous arrays in the oldest version of HDF5, one block after the other."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.data = bytearray(96)
        root = self._node(tree)
        self.data[:96] = b"\x89HDF\r\n\x1a\n" + bytes(5) + b"\x08\x08\0\x04\0\x10\0" + bytes(4) + struct.pack(
            "<QQQQQQIIQQ", 0, 2**64 - 1, len(self.data), 2**64 - 1, 0, root, 0, 0, 0, 0
        )  # fmt: skip

    def _add(self, block: bytes) -> int:
        self.data += bytes(-len(self.data) % 8)
        address = len(self.data)
        self.data += block
        return address

    def _header(self, *messages: tuple[int, bytes]) -> int:
        padded = [(kind, body + bytes(-len(body) % 8)) for kind, body in messages]
        body = b"".join(struct.pack("<HHBxxx", kind, len(body), 0) + body for kind, body in padded)
        return self._add(struct.pack("<BxHIIxxxx", 1, len(messages), 1, len(body)) + body)

    def _node(self, node: Any) -> int:
        if isinstance(node, np.ndarray):
            shape = struct.pack("<BB6x", 1, node.ndim) + struct.pack(f"<{node.ndim}Q", *node.shape)
            kind = struct.pack("<BBxxI", 0x10 | (node.dtype.kind == "f"), 0, node.itemsize) + bytes(12)
            layout = struct.pack("<BBQQ", 3, 1, self._add(node.tobytes()), node.nbytes)
            return self._header((0x01, shape), (0x03, kind), (0x08, layout))
        children = {name: self._node(child) for name, child in sorted(node.items())}
        names, entries = bytearray(8), b""
        for name, child in children.items():
            entries += struct.pack("<QQ24x", len(names), child)
            names += name.encode() + b"\0"
        nodes = self._add(struct.pack("<4sBxH", b"SNOD", 1, len(children)) + entries)
        tree = self._add(struct.pack("<4sBBHQQQQQ", b"TREE", 0, 0, 1, 2**64 - 1, 2**64 - 1, 0, nodes, 8))
        heap = self._add(struct.pack("<4sB3xQQQ", b"HEAP", 0, len(names), 1, self._add(bytes(names))))
        return self._header((0x11, struct.pack("<QQ", tree, heap)))

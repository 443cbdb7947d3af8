"""Small files of the published formats."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Mapping

import numpy as np
import pytest


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


def hdf5(tree: Mapping[str, Mapping[str, np.ndarray]]) -> bytes:
    """A file of groups of arrays."""
    h5py = pytest.importorskip("h5py")
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver="earliest") as file:
        for group, arrays in tree.items():
            for name, array in arrays.items():
                file[f"{group}/{name}"] = array
    return buffer.getvalue()

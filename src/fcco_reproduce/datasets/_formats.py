"""The file formats: LIBSVM and LETOR, tables of numbers, and IDX."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcco._extras import import_extra
from fcco_reproduce.datasets._open import naming, open_content
from fcco_reproduce.datasets._types import DamagedFileError

_UBYTE = 0x08


def read_libsvm(path: Path | str, features: int | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read features [n, d] of float32 and labels [n] of float64 from a LIBSVM file, compressed or not.

    A line is ``label index:value index:value ...``. Indices start at 1 and ascend, and missing features are 0.

    Parameters
    ----------
    path : Path | str
        The file.
    features : int or None
        The number of features, d. The default is the largest index.

    Returns
    -------
    tuple[NDArray[Any], NDArray[Any]]
        The features and the labels.

    Raises
    ------
    DamagedFileError
        If a line has another form, or the file ends in the middle of a compressed block.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "two.svm"
    ...     _ = path.write_text("1 1:0.5 3:2\\n-1 2:1\\n")
    ...     x, y = read_libsvm(path)
    >>> x.tolist(), y.tolist()
    ([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]], [1.0, -1.0])
    """
    x, y, _ = _read_svmlight(Path(path), features, queries=False)
    return x, y


def read_letor(path: Path | str, features: int | None = None) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Read features [n, d] and relevances [n] of float32, and queries [n], from a LETOR file, compressed or not.

    A line is ``relevance qid:query index:value index:value ... # comment``.

    Parameters
    ----------
    path : Path | str
        The file, such as one of MQ2007, MQ2008, MSLR-WEB10K or Yahoo's sets.
    features : int or None
        The number of features, d. The default is the largest index.

    Returns
    -------
    tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
        The features, the relevances, and the query of each row, numbered from 0 in the order of the file.

    Raises
    ------
    DamagedFileError
        If a line has another form, or a query's rows are not consecutive.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "train.txt"
    ...     _ = path.write_text("2 qid:10 1:0.5 #docid = a\\n0 qid:10 2:1\\n1 qid:7 1:1 2:1\\n")
    ...     x, y, query = read_letor(path)
    >>> y.tolist(), query.tolist()
    ([2.0, 0.0, 1.0], [0, 0, 1])
    """
    x, y, names = _read_svmlight(Path(path), features, queries=True)
    starts = np.r_[True, names[1:] != names[:-1]]
    if starts.sum() != len(np.unique(names)):
        first, count = np.unique(names[starts], return_counts=True)
        raise DamagedFileError(f"{path} has the rows of query {first[count > 1][0]} in more than one place")
    return x, y.astype(np.float32), np.cumsum(starts) - 1


def _read_svmlight(path: Path, features: int | None, queries: bool) -> tuple[NDArray[Any], ...]:
    load_svmlight_file = import_extra("sklearn.datasets", "a LIBSVM or LETOR file").load_svmlight_file
    with naming(path), open_content(path) as file:
        x, y, *query = load_svmlight_file(
            file, n_features=features, dtype=np.float32, zero_based=False, query_id=queries
        )
        if queries and len(query[0]) != len(y):
            raise ValueError(f"{len(y) - len(query[0])} of {len(y)} rows have no qid")
    return x.toarray(), y.astype(np.float64), query[0] if queries else y


def read_table(path: Path, columns: int, delimiter: str | None = None) -> NDArray[Any]:
    """Read numbers [n, columns] of float64 from lines of text, compressed or not.

    Raises
    ------
    DamagedFileError
        If a line does not have ``columns`` numbers.
    """
    with naming(path), open_content(path) as file:
        table = np.loadtxt(file, delimiter=delimiter, ndmin=2, dtype=np.float64)
        if table.shape[1] != columns:
            raise ValueError(f"its rows have {table.shape[1]} numbers, not {columns}")
    return table


def read_idx(path: Path | str) -> NDArray[Any]:
    """Read an array of uint8 from an IDX file, the format of MNIST, compressed or not.

    The file has the bytes 0, 0, 8 and the number of dimensions, then each size in 4 bytes (big-endian), then the
    values.

    Parameters
    ----------
    path : Path | str
        The file.

    Returns
    -------
    NDArray[Any]
        The array, of the shape that the file states.

    Raises
    ------
    DamagedFileError
        If the header is wrong, or the number of values is not the one that it states.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "labels"
    ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes([5, 0, 4]))
    ...     read_idx(path)
    array([5, 0, 4], dtype=uint8)
    """
    path = Path(path)
    with naming(path), open_content(path) as file:
        zero, kind, dimensions = struct.unpack(">HBB", file.read(4))
        if zero != 0 or kind != _UBYTE:
            raise ValueError(f"it starts with {zero:#06x} {kind:#04x}, an IDX file of bytes with 0x0000 {_UBYTE:#04x}")
        shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        values = np.frombuffer(file.read(), np.uint8)
        if values.size != np.prod(shape, dtype=np.int64):
            raise ValueError(f"it has {values.size:,} values, its header says {' x '.join(map(str, shape))}")
    return values.reshape(shape).copy()

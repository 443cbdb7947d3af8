"""CIFAR-10 and CIFAR-100, from the binary version, which needs no pickle to be trusted."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcco._extras import import_extra
from fcco.functional._checks import check_choice
from fcco_reproduce.datasets._fetch import held, locate
from fcco_reproduce.datasets._open import naming
from fcco_reproduce.datasets._types import Classification

PIXELS = 3 * 32 * 32
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
_STRIPS = 20

Images = NDArray[np.uint8]


def load_cifar10(part: str = "train") -> Classification:
    """Photographs of ten kinds of things: 32 x 32 pixels of three colours.

    Args:
        part: ``"train"`` (50,000 rows) or ``"test"`` (10,000).

    Returns:
        x [n, 3, 32, 32] of uint8, and y.

    Reference: A. Krizhevsky, *Learning multiple layers of features from tiny images*, 2009.

    >>> data = load_cifar10("test")  # doctest: +SKIP
    >>> data.x.shape, data.classes[data.y[0]]  # doctest: +SKIP
    ((10000, 3, 32, 32), 'cat')
    """
    check_choice(part, "part", tuple(BATCHES))
    if held(f"cifar10/{BATCHES[part][0]}.webp.zip"):
        sources = [locate(f"cifar10/{batch}.webp.zip") for batch in BATCHES[part]]
        batches = [read_webp(source.path) for source in sources]
    else:
        sources = [locate("cifar10/cifar-10-binary.tar.gz")]
        batches = read_cifar10(sources[0].path, BATCHES[part])
    x, y = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return Classification(x, y.astype(np.int64), CIFAR10, tuple(sources))


def load_cifar100(part: str = "train", coarse: bool = False) -> Classification:
    """Photographs of a hundred kinds of things: 32 x 32 pixels of three colours.

    Args:
        part: ``"train"`` (50,000 rows) or ``"test"`` (10,000).
        coarse: the twenty groups of five classes each instead.

    Returns:
        x [n, 3, 32, 32] of uint8, and y.

    Reference: A. Krizhevsky, *Learning multiple layers of features from tiny images*, 2009.

    >>> load_cifar100("validation")
    Traceback (most recent call last):
        ...
    ValueError: part must be one of 'train', 'test'; got 'validation'
    """
    check_choice(part, "part", tuple(BATCHES))
    source = locate("cifar100/cifar-100-binary.tar.gz")
    x, y, classes = read_cifar100(source.path, part, coarse)
    return Classification(x, y.astype(np.int64), classes, (source,))


def read_cifar10(path: Path, batches: tuple[str, ...]) -> list[tuple[Images, Images]]:
    """Images and labels of some batches, from the binary version of the published archive."""
    with naming(path):
        members = _members(path, {f"{batch}.bin" for batch in batches})
        found = [parse_binary(_get(members, f"{batch}.bin"), (len(CIFAR10),)) for batch in batches]
    return [(x, labels[:, 0]) for x, labels in found]


def read_cifar100(path: Path, part: str, coarse: bool) -> tuple[Images, Images, tuple[str, ...]]:
    """Images, labels and the names of the classes, from the binary version of the published archive."""
    data, names = f"{part}.bin", f"{'coarse' if coarse else 'fine'}_label_names.txt"
    with naming(path):
        members = _members(path, {data, names})
        x, labels = parse_binary(_get(members, data), (20, 100))
        return x, labels[:, 0 if coarse else 1], tuple(_get(members, names).decode().split())


def _members(path: Path, names: set[str]) -> dict[str, bytes]:
    """Files of a tar archive by the last part of their name; nothing is written to the disk."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.rsplit("/", 1)[-1]
            content = archive.extractfile(member) if name in names else None
            if content is not None:
                found[name] = content.read()
    return found


def _get(members: Mapping[str, bytes], name: str) -> bytes:
    if name not in members:
        raise ValueError(f"it has no {name}")
    return members[name]


def parse_binary(data: bytes, classes: tuple[int, ...]) -> tuple[Images, Images]:
    """Images [n, 3, 32, 32] and labels [n, k] from CIFAR's binary version: k bytes of labels, then the pixels.

    Args:
        data: n records.
        classes: how many classes each of the k labels has.

    Raises:
        ValueError: the data ends within a record, or a label is out of range.

    >>> x, labels = parse_binary(bytes([7]) + bytes(3072), (10,))
    >>> x.shape, labels.tolist()
    ((1, 3, 32, 32), [[7]])
    """
    size = len(classes) + PIXELS
    if not data or len(data) % size:
        raise ValueError(f"{len(data):,} bytes are not a whole number of records of {size:,} bytes")
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    labels = records[:, : len(classes)]
    _check_labels(labels, np.array(classes))
    return records[:, len(classes) :].reshape(-1, 3, 32, 32).copy(), labels


def _check_labels(labels: NDArray[Any], classes: NDArray[Any]) -> None:
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        raise ValueError(f"the label {labels[wrong][0]} is out of range")


def read_webp(path: Path) -> tuple[Images, Images]:
    """Images and labels of a batch that is kept as a zip of ``labels.bin`` and twenty strips of lossless WebP."""
    image = import_extra("PIL.Image", "a batch of WebP images")
    with naming(path), zipfile.ZipFile(path) as archive:
        labels = np.frombuffer(archive.read("labels.bin"), np.uint8)
        strips = [
            np.asarray(image.open(io.BytesIO(archive.read(f"{number:02}.webp"))).convert("RGB"))
            for number in range(_STRIPS)
        ]
        _check_labels(labels, np.array(len(CIFAR10)))
        x = np.concatenate(strips).reshape(len(labels), 32, 32, 3)
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)), labels

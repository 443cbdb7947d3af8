"""ijcnn1, covtype, USPS, MNIST and Sensorless."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcco.functional._checks import check_choice
from fcco_reproduce.datasets._fetch import locate
from fcco_reproduce.datasets._formats import read_idx, read_libsvm, read_table
from fcco_reproduce.datasets._open import check_rows
from fcco_reproduce.datasets._types import Classification, DamagedFileError, Source

DIGITS = tuple("0123456789")
IJCNN1 = {"train": "ijcnn1", "tr": "ijcnn1.tr", "val": "ijcnn1.val", "test": "ijcnn1.t"}
USPS = {"train": ("usps.bz2", "zip.train.gz"), "test": ("usps.t.bz2", "zip.test.gz")}
MNIST = {"train": "train", "test": "t10k"}
SENSORLESS = {
    "all": "Sensorless_drive_diagnosis.txt",
    "balanced": "sensorless_balanced2200.txt.gz",
    "head": "sensorless_uci_head5748.txt.gz",
}
COVTYPE_FEATURES = (
    "elevation",
    "aspect",
    "slope",
    "horizontal distance to hydrology",
    "vertical distance to hydrology",
    "horizontal distance to roadways",
    "hillshade 9am",
    "hillshade noon",
    "hillshade 3pm",
    "horizontal distance to fire points",
    *(f"wilderness area {i}" for i in range(1, 5)),
    *(f"soil type {i}" for i in range(1, 41)),
)


def _numbered(path: Any, labels: NDArray[Any], published: tuple[str, ...]) -> NDArray[np.int64]:
    """Return labels as positions in ``published``."""
    numbers = np.array(published, dtype=np.float64)
    known, position = np.isin(labels, numbers), np.searchsorted(numbers, labels)
    if not known.all():
        raise DamagedFileError(f"{path} has the label {labels[~known][0]:g} in row {np.flatnonzero(~known)[0]}")
    return position.astype(np.int64)


def _libsvm(path: str, features: int, published: tuple[str, ...], classes: tuple[str, ...]) -> Classification:
    source = locate(path)
    x, labels = read_libsvm(source.path, features)
    return Classification(x, _numbered(source.path, labels, published), classes, (source,))


def load_ijcnn1(part: str = "train") -> Classification:
    """Load ijcnn1, the problem of the IJCNN 2001 challenge: 22 features, 9.7% of class 1.

    Rows are a time series.

    Parameters
    ----------
    part : str
        ``"train"`` (49,990 rows), its two parts ``"tr"`` (35,000) and ``"val"`` (14,990), ``"test"`` (91,701).

    Returns
    -------
    Classification
        ``x`` is [n, 22], and ``y`` is 0 for the label -1 and 1 for 1.

    References
    ----------
    https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html#ijcnn1

    Examples
    --------
    >>> data = load_ijcnn1("tr")  # doctest: +SKIP
    >>> data.x.shape, int(data.y.sum())  # doctest: +SKIP
    ((35000, 22), 3415)
    """
    check_choice(part, "part", tuple(IJCNN1))
    return _libsvm(f"ijcnn1/{IJCNN1[part]}.bz2", 22, ("-1", "1"), ("-1", "1"))


def load_covtype() -> Classification:
    """Load covtype, the kinds of forest: 581,012 rows of 54 features (10 quantities, 44 of 0 and 1), 7 classes.

    Returns
    -------
    Classification
        ``x`` is [581012, 54], unscaled, and ``y`` is 0 for UCI's class 1, and so on.

    References
    ----------
    J. Blackard, *Covertype*, UCI Machine Learning Repository, https://doi.org/10.24432/C50K5N

    Examples
    --------
    >>> data = load_covtype()  # doctest: +SKIP
    >>> data.x.shape, np.bincount(data.y)[:2].tolist()  # doctest: +SKIP
    ((581012, 54), [211840, 283301])
    """
    path = "covtype/covtype.data.gz"
    source = locate(path)
    table = read_table(source.path, columns=55, delimiter=",")
    classes = tuple("1234567")
    y = _numbered(source.path, table[:, -1], classes)
    return Classification(table[:, :-1].astype(np.float32), y, classes, (source,), COVTYPE_FEATURES)


def load_usps(part: str = "train", raw: bool = False) -> Classification:
    """Load USPS, handwritten digits from envelopes: 16 x 16 pixels in [-1, 1].

    Parameters
    ----------
    part : str
        ``"train"`` (7,291 rows) or ``"test"`` (2,007).
    raw : bool
        Whether to return the scans instead of LIBSVM's smoothed images. Rows are the same in both.

    Returns
    -------
    Classification
        ``x`` is [n, 256], and ``y`` holds the digits.

    References
    ----------
    https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps and
    https://hastie.su.domains/ElemStatLearn/data.html

    Examples
    --------
    >>> data = load_usps("test")  # doctest: +SKIP
    >>> data.x.shape, data.y[:3].tolist()  # doctest: +SKIP
    ((2007, 256), [9, 6, 3])
    """
    check_choice(part, "part", tuple(USPS))
    smoothed, scanned = (f"usps/{name}" for name in USPS[part])
    if not raw:
        return _libsvm(smoothed, 256, tuple(map(str, range(1, 11))), DIGITS)
    source = locate(scanned)
    table = read_table(source.path, columns=257)
    y = _numbered(source.path, table[:, 0], DIGITS)
    return Classification(table[:, 1:].astype(np.float32), y, DIGITS, (source,))


def load_mnist(part: str = "train") -> Classification:
    """Load MNIST, handwritten digits: 28 x 28 pixels of uint8.

    Parameters
    ----------
    part : str
        ``"train"`` (60,000 rows) or ``"test"`` (10,000).

    Returns
    -------
    Classification
        ``x`` is [n, 28, 28] of uint8, and ``y`` holds the digits.

    References
    ----------
    http://yann.lecun.com/exdb/mnist

    Examples
    --------
    >>> data = load_mnist("test")  # doctest: +SKIP
    >>> data.x.shape, data.y[:3].tolist()  # doctest: +SKIP
    ((10000, 28, 28), [7, 2, 1])
    """
    check_choice(part, "part", tuple(MNIST))
    images = locate(f"mnist/{MNIST[part]}-images-idx3-ubyte.gz")
    labels = locate(f"mnist/{MNIST[part]}-labels-idx1-ubyte.gz")
    x, y = read_idx(images.path), read_idx(labels.path)
    check_rows(labels.path, len(y), len(x))
    return Classification(x, _numbered(labels.path, y, DIGITS), DIGITS, (images, labels))


def load_sensorless(part: str = "all") -> Classification:
    """Load Sensorless, faults of electric drives: 48 features of their currents, 11 classes of 5,319 rows each.

    Parameters
    ----------
    part : str
        ``"all"`` 58,509 rows, in UCI's order and not scaled; or one of two subsets, which are read from
        ``FCCO_DATA`` only: ``"balanced"``, 200 rows of each class, and ``"head"``, UCI's first 5,748 rows.

    Returns
    -------
    Classification
        ``x`` is [n, 48], and ``y`` is 0 for UCI's class 1, and so on.

    References
    ----------
    M. Bator, *Dataset for Sensorless Drive Diagnosis*, UCI, https://doi.org/10.24432/C5VP5F

    Examples
    --------
    >>> data = load_sensorless("balanced")  # doctest: +SKIP
    >>> data.x.shape, data.sources[0].state  # doctest: +SKIP
    ((2200, 48), 'subset')
    """
    check_choice(part, "part", tuple(SENSORLESS))
    path = f"sensorless/{SENSORLESS[part]}"
    source = _locate_sensorless(part, path)
    table = read_table(source.path, columns=49)
    classes = tuple(map(str, range(1, 12)))
    y = _numbered(source.path, table[:, -1], classes)
    counts = np.bincount(y, minlength=len(classes))
    if part == "all" and len(set(counts)) > 1:
        raise DamagedFileError(f"{source.path} has classes of {', '.join(map(str, counts))} rows, not of equal size")
    return Classification(table[:, :-1].astype(np.float32), y, classes, (source,))


def _locate_sensorless(part: str, path: str) -> Source:
    try:
        return locate(path)
    except FileNotFoundError as missing:
        if part == "all":
            raise FileNotFoundError(f"{missing}. Subsets are part='balanced' and part='head'") from None
        raise

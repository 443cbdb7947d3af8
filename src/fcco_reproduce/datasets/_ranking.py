"""Ranking sets: LightGBM's example, and any file of the LETOR form."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fcco.functional._checks import check_choice
from fcco_reproduce.datasets._fetch import locate
from fcco_reproduce.datasets._formats import read_letor, read_libsvm
from fcco_reproduce.datasets._open import naming
from fcco_reproduce.datasets._types import Ranking, Source


def load_lightgbm_ranking(part: str = "train") -> Ranking:
    """Load LightGBM's ``lambdarank`` example: 300 features, relevances from 0 to 4.

    Parameters
    ----------
    part : str
        ``"train"`` (3,005 documents of 201 queries) or ``"test"`` (768 of 50).

    Returns
    -------
    Ranking
        The documents.

    References
    ----------
    https://github.com/microsoft/LightGBM/tree/master/examples/lambdarank

    Examples
    --------
    >>> data = load_lightgbm_ranking("test")  # doctest: +SKIP
    >>> data.x.shape, int(data.query.max()) + 1  # doctest: +SKIP
    ((768, 300), 50)
    """
    check_choice(part, "part", ("train", "test"))
    path = f"ltr/lightgbm-lambdarank/rank.{part}"
    rows, queries = locate(path), locate(f"{path}.query")
    return read_lightgbm(rows, queries, features=300)


def read_lightgbm(rows: Source, queries: Source, features: int | None = None) -> Ranking:
    """Read documents from a LIBSVM file, and the number of documents of each query from another file.

    Raises
    ------
    DamagedFileError
        If the numbers do not add up to the number of documents.
    """
    x, relevance = read_libsvm(rows.path, features)
    with naming(queries.path):
        sizes = np.loadtxt(queries.path, dtype=np.int64, ndmin=1)
        if sizes.sum() != len(x) or (sizes < 1).any():
            raise ValueError(f"its queries have {sizes.sum():,} rows together, {rows.path} has {len(x):,}")
    query = np.repeat(np.arange(len(sizes)), sizes)
    return Ranking(x, relevance.astype(np.float32), query, (rows, queries))


def load_letor(path: Path | str, features: int | None = None) -> Ranking:
    """Load documents from a file in LETOR format, such as ``Fold1/train.txt`` of MSLR-WEB10K or MQ2007.

    The publishers hand out these sets on request; this function reads your copy.

    Parameters
    ----------
    path : Path | str
        The file, compressed or not.
    features : int or None
        The number of features (MSLR has 136, MQ2007 and MQ2008 have 46). The default is the largest index.

    Returns
    -------
    Ranking
        The documents.

    Raises
    ------
    DamagedFileError
        If a line has another form, or a query's rows are not consecutive.

    References
    ----------
    Qin and Liu, *Introducing LETOR 4.0 datasets*, arXiv:1306.2597.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "train.txt"
    ...     _ = path.write_text("2 qid:10 1:0.5 2:1\\n0 qid:10 2:1\\n1 qid:7 1:1\\n")
    ...     data = load_letor(path)
    >>> data.x.shape, data.query.tolist()
    ((3, 2), [0, 0, 1])
    """
    x, relevance, query = read_letor(path, features)
    return Ranking(x, relevance, query, (Source(Path(path), "unverified"),))

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
    """LightGBM's ``lambdarank`` example: 300 features, relevances of 0 to 4.

    Args:
        part: ``"train"`` (3,005 documents of 201 queries) or ``"test"`` (768 of 50).

    Reference: https://github.com/microsoft/LightGBM/tree/master/examples/lambdarank

    >>> data = load_lightgbm_ranking("test")  # doctest: +SKIP
    >>> data.x.shape, int(data.query.max()) + 1  # doctest: +SKIP
    ((768, 300), 50)
    """
    check_choice(part, "part", ("train", "test"))
    path = f"ltr/lightgbm-lambdarank/rank.{part}"
    rows, queries = locate(path), locate(f"{path}.query")
    return read_lightgbm(rows, queries, features=300)


def read_lightgbm(rows: Source, queries: Source, features: int | None = None) -> Ranking:
    """Documents of a LIBSVM file, and beside it the number of documents of each query.

    Raises:
        DamagedFileError: the numbers do not add up to the documents.
    """
    x, relevance = read_libsvm(rows.path, features)
    with naming(queries.path):
        sizes = np.loadtxt(queries.path, dtype=np.int64, ndmin=1)
        if sizes.sum() != len(x) or (sizes < 1).any():
            raise ValueError(f"its queries have {sizes.sum():,} rows together, {rows.path} has {len(x):,}")
    query = np.repeat(np.arange(len(sizes)), sizes)
    return Ranking(x, relevance.astype(np.float32), query, (rows, queries))


def load_letor(path: Path | str, features: int | None = None) -> Ranking:
    """Documents of a file of the LETOR form, such as ``Fold1/train.txt`` of MSLR-WEB10K or MQ2007.

    These sets are handed out by their publishers on request; this reads your copy.

    Args:
        path: the file, compressed or not.
        features: how many features there are (MSLR 136, MQ2007 and MQ2008 46); the largest index by default.

    Raises:
        DamagedFileError: a line is not of this form, or a query's rows are not consecutive.

    Reference: Qin and Liu, *Introducing LETOR 4.0 datasets*, arXiv:1306.2597.

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

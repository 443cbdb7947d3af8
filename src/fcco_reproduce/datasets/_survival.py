"""The survival sets: DeepSurv's splits, and those that ship with scikit-survival and lifelines."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcco._extras import import_extra
from fcco.functional._checks import check_choice
from fcco_reproduce.datasets._fetch import locate
from fcco_reproduce.datasets._open import naming
from fcco_reproduce.datasets._types import DamagedFileError, Survival

DEEPSURV = {
    "metabric": "metabric_IHC4_clinical_train_test.h5",
    "support": "support_train_test.h5",
    "gbsg": "gbsg_cancer_train_test.h5",
    "whas": "whas_train_test.h5",
}


@dataclass(frozen=True)
class _Table:
    path: str
    time: str
    event: str
    entry: str | None = None
    left_out: tuple[str, ...] = ()


TABLES = {
    # The cause of death tells the event.
    "flchain": _Table("sksurv/flchain.arff", "futime", "death=dead", left_out=("chapter",)),
    "whas500": _Table("sksurv/whas500.arff", "lenfol", "fstat=1"),
    "gbsg2": _Table("sksurv/GBSG2.arff", "time", "cens=1"),
    "veteran": _Table("sksurv/veteran.arff", "Survival_in_days", "Status=dead"),
    # Time to death is another outcome of the same trial.
    "actg320": _Table("sksurv/actg320.arff", "time", "censor=1", left_out=("time_d", "censor_d")),
    "breast_cancer": _Table("sksurv/breast_cancer_GSE7390-metastasis.arff", "t.tdm", "e.tdm=1"),
    "rossi": _Table("lifelines/rossi.csv", "week", "arrest"),
    "lung": _Table("lifelines/lung.csv", "time", "status", left_out=("inst",)),
    "kidney_transplant": _Table("lifelines/kidney_transplant.csv", "time", "death"),
    "stanford_heart": _Table("lifelines/stanford_heart.csv", "stop", "event", entry="start", left_out=("id",)),
    "larynx": _Table("lifelines/larynx.csv", "time", "death"),
}

Columns = dict[str, NDArray[Any]]


def load_survival(name: str, part: str | None = None) -> Survival:
    """Load a set of patients with censored times.

    Parameters
    ----------
    name : str
        ``"metabric"``, ``"support"``, ``"gbsg"`` or ``"whas"`` as split for DeepSurv; ``"flchain"``,
        ``"whas500"``, ``"gbsg2"``, ``"veteran"``, ``"actg320"`` (time to AIDS or death) or ``"breast_cancer"``
        (time to metastasis) of scikit-survival; ``"rossi"``, ``"lung"``,
        ``"kidney_transplant"``, ``"stanford_heart"`` (with entry times) or ``"larynx"`` of lifelines.
    part : str or None
        ``"train"`` or ``"test"`` of DeepSurv's; the others are not split.

    Returns
    -------
    Survival
        Features as published: a category of k levels is k - 1 columns of 0 and 1, a missing value NaN. What identifies
        a patient or tells the outcome is left out.

    References
    ----------
    Katzman et al., *DeepSurv*, BMC Medical Research Methodology 18, 2018; Pölsterl, *scikit-survival*,
    JMLR 21, 2020; Davidson-Pilon, *lifelines*, JOSS 4, 2019.

    Examples
    --------
    >>> data = load_survival("whas500")  # doctest: +SKIP
    >>> data.x.shape, int(data.event.sum())  # doctest: +SKIP
    ((500, 14), 215)
    """
    check_choice(name, "name", (*DEEPSURV, *TABLES))
    if name in DEEPSURV:
        check_choice(part, f"part of {name}", ("train", "test"))
        return _load_deepsurv(DEEPSURV[name], str(part))
    if part is not None:
        raise ValueError(f"{name} is not split; part must be None; got {part!r}")
    return _load_table(TABLES[name])


def _load_deepsurv(file: str, part: str) -> Survival:
    source = locate(f"survival/deepsurv/{file}")
    x, time, event = read_hdf5(source.path, *(f"{part}/{name}" for name in "xte"))
    return Survival(x.astype(np.float32), time.astype(np.float64), event == 1, sources=(source,))


def _load_table(table: _Table) -> Survival:
    path = f"survival/{table.path}"
    source = locate(path)
    columns = read_arff(source.path) if path.endswith(".arff") else read_csv(source.path)
    outcome = (table.time, table.event, table.entry)
    missing = [name for name in outcome if name is not None and name not in columns]
    if missing:
        raise DamagedFileError(f"{source.path} has no column {missing[0]}")
    names = [name for name in columns if name not in outcome and name.split("=")[0] not in table.left_out]
    return Survival(
        x=np.stack([columns[name] for name in names], 1).astype(np.float32),
        time=columns[table.time],
        event=columns[table.event] == 1,
        feature_names=tuple(names),
        entry=None if table.entry is None else columns[table.entry],
        sources=(source,),
    )


def read_hdf5(path: Path, *names: str) -> list[NDArray[Any]]:
    """Read arrays of an HDF5 file by their paths in it, such as ``"train/x"``."""
    h5py = import_extra("h5py", "an HDF5 file")
    with naming(path), h5py.File(path) as file:
        for name in names:
            if not isinstance(file.get(name), h5py.Dataset):
                raise ValueError(f"it has no array {name}")
        return [np.asarray(file[name]) for name in names]


def read_csv(path: Path) -> Columns:
    """Read the columns of a CSV table with a header, by name; a missing number is NaN."""
    with naming(path), path.open(newline="", encoding="utf-8") as text:
        names, *rows = csv.reader(text)
        columns = zip(*rows, strict=True)
        return {
            name: np.array([float(value or "nan") for value in column])
            for name, column in zip(names, columns, strict=True)
        }


def read_arff(path: Path) -> Columns:
    """Numbers of an ARFF table, by name. A category is a column ``name=level`` of 0 and 1 for each level but the first.

    NaN where the file has ``?``.
    """
    arff = import_extra("scipy.io.arff", "an ARFF file")
    columns = {}
    with naming(path), path.open(encoding="utf-8") as text:
        rows, meta = arff.loadarff(text)
        for name in meta.names():
            kind, levels = meta[name]
            if kind == "numeric":
                columns[name] = rows[name].astype(np.float64)
                continue
            unknown = np.where(rows[name] == b"?", np.nan, 0.0)
            columns |= {f"{name}={level}": (rows[name] == level.encode()) + unknown for level in levels[1:]}
    return columns

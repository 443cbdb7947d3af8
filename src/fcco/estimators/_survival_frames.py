"""Results of a Cox model as tables: data frames where pandas is installed, else arrays."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[Any]

_NORMAL_95 = float(special.ndtri(0.975))


def wants_frame(as_frame: bool | None) -> bool:
    """Whether to make a data frame; None: if pandas is installed."""
    return importlib.util.find_spec("pandas") is not None if as_frame is None else as_frame


def framed(values: Array, rows: Any, times: Array) -> Any:
    """A data frame of values [n, m] whose columns are times [m], with the index of ``rows`` if that is a frame."""
    import pandas as pd

    return pd.DataFrame(values, index=rows.index if isinstance(rows, pd.DataFrame) else None, columns=times)


def summarise(coef: Array, error: Array, names: list[str]) -> Any:
    """Coefficients [d], hazard ratios, standard errors, 95% bounds, z and p of w = 0, by feature."""
    lower, upper = coef - _NORMAL_95 * error, coef + _NORMAL_95 * error
    z = coef / error
    columns = {
        "coef": coef,
        "exp(coef)": np.exp(coef),
        "se(coef)": error,
        "coef lower 95%": lower,
        "coef upper 95%": upper,
        "exp(coef) lower 95%": np.exp(lower),
        "exp(coef) upper 95%": np.exp(upper),
        "z": z,
        "p": 2.0 * special.ndtr(-np.abs(z)),
    }
    if wants_frame(None):
        import pandas as pd

        return pd.DataFrame(columns, index=pd.Index(names, name="covariate"))
    labels = np.array(names, dtype=str)
    table = np.empty(len(coef), dtype=[("covariate", labels.dtype), *((name, np.float64) for name in columns)])
    for name, column in {"covariate": labels, **columns}.items():
        table[name] = column
    return table

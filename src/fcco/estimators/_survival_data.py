"""Times and events in the forms that people keep them in, and results as data frames."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from fcco.estimators._validation import first_missing, refuse_mixed

Array = NDArray[Any]


def as_survival(y: Any) -> tuple[Array, Array]:
    """Time, [n] in float64, and event, [n] of bool.

    Args:
        y: one of

            - a structured array with two fields, as scikit-survival has it: the event is the one of bool, or else the
              one beside "time", or else the first;
            - a data frame with two columns: the event is found likewise, or else is the second;
            - a [n, 2] array: time, event.

    Raises:
        ValueError: none of these; a time that is a date or a time delta, negative or not finite; an event that is
            neither 0 nor 1.

    >>> as_survival([[2.0, 1], [3.0, 0]])
    (array([2., 3.]), array([ True, False]))
    """
    if y is None:
        raise ValueError("CoxRegressor requires y to be passed, but the target y is None")
    time, event, name = _split(y)
    if getattr(time, "dtype", np.dtype(float)).kind in "mM":
        raise ValueError(
            f"the times of y must be numbers; got {time.dtype}: subtract the date of the start, if they are dates, and "
            "divide by numpy.timedelta64(1, 'D') for days"
        )
    for part, what in ((time, "times"), (event, "events")):
        values = np.ravel(part)
        if values.dtype.kind == "O" and (place := first_missing(values)) is not None:
            raise ValueError(f"the {what} of y must not be missing; got {values[place]} at position {place}")
    time = check_array(time, ensure_2d=False, dtype=np.float64, input_name="y")
    if time.ndim != 1:
        raise ValueError(f"the times of y must be one-dimensional; got shape {time.shape}")
    if len(bad := np.flatnonzero(time < 0.0)):
        raise ValueError(f"the times of y must be at least 0; got {time[bad[0]]} at position {bad[0]}")
    event = check_array(event, ensure_2d=False, dtype=None, input_name="y")
    strange = (event != 0) & (event != 1)
    if strange.any():
        if np.isin(event, (1, 2)).all():
            raise ValueError(
                "events must be 0 or 1, or False or True; got 1 and 2: if 2 is the event, pass status == 2"
            )
        raise ValueError(
            f"events must be 0 or 1, or False or True; got {event[strange].tolist()[0]!r}{name and f' in {name!r}'}; "
            "the columns of y are (time, event), and the fields of a structured array (event, time), unless one is "
            "named time or the event is of bool"
        )
    return time, event.astype(bool)


def _split(y: Any) -> tuple[Any, Any, str]:
    """Time, event and the name of the event, if it has one."""
    names = getattr(getattr(y, "dtype", None), "names", None)
    if names is not None:
        return _by_role({name: y[name] for name in names}, default=0)
    if hasattr(y, "columns"):
        return _by_role({name: y[name].to_numpy() for name in y.columns}, default=1)
    y = np.asarray(y)
    if y.ndim == 1 or y.shape[1:] == (1,):
        raise ValueError(
            f"y must have times and events; got one column, of shape {y.shape}: pass df[['time', 'event']], or "
            "numpy.column_stack([time, event]). If every time is that of an event, say so by "
            "numpy.column_stack([time, numpy.ones(len(time))])"
        )
    if y.ndim != 2 or y.shape[1] != 2:
        raise ValueError(
            f"y must be [n, 2] with columns (time, event); got shape {y.shape}: pass numpy.column_stack([time, event])"
        )
    return y[:, 0], y[:, 1], ""


def _by_role(columns: dict[Any, Any], default: int) -> tuple[Any, Any, str]:
    """Time, event and its name; ``default`` is the event's place where nothing tells the two columns apart."""
    if len(columns) != 2:
        advice = ": if every time is that of an event, add a column of ones" if len(columns) == 1 else ""
        raise ValueError(f"y must have two columns, an event and a time; got {list(columns)}{advice}")
    names, arrays = list(map(str, columns)), list(columns.values())
    known = [name.lower() for name in names]
    of_bool = [place for place in (0, 1) if arrays[place].dtype == bool]
    if len(of_bool) == 1:
        event = of_bool[0]
    elif known.count("time") == 1:
        event = 1 - known.index("time")
    else:
        event = default
    return arrays[1 - event], arrays[event], names[event]


class Cohort(NamedTuple):
    """The rows of a fit, without their features."""

    time: Array
    event: Array  # of bool
    counts: Array  # how often each row counts
    stratum: Array | None  # integers 0 ... without gaps
    entry: Array | None

    def rows(self, which: Array) -> Cohort:
        """Some of the rows."""
        return Cohort(*(None if part is None else part[which] for part in self))  # type: ignore[arg-type]


def as_labels(strata: Any, n: int) -> Array:
    """The strata of n rows, [n], of any type that can be sorted.

    Raises:
        ValueError: not one stratum for each row, or a missing one.
        TypeError: strata that cannot be sorted, as numbers next to strings.
    """
    labels = np.asarray(strata)
    if labels.shape != (n,):
        advice = ". Pass df.groupby([...]).ngroup() for several columns" if labels.ndim == 2 else ""
        if isinstance(strata, str):
            advice = f". Pass the column itself, X[{strata!r}]"
        raise ValueError(f"strata must have one stratum for each row, the shape ({n},); got {labels.shape}{advice}")
    if (place := first_missing(labels.tolist())) is not None:
        raise ValueError(f"strata must not be missing; got {labels[place]} at position {place}")
    refuse_mixed("strata", labels)
    return labels


def as_codes(strata: Any, n: int, known: Array) -> Array:
    """The place of each stratum among those that are known.

    >>> as_codes(["b", "a", "b"], 3, np.array(["a", "b"]))
    array([1, 0, 1])
    """
    labels = as_labels(strata, n)
    codes = np.searchsorted(known, labels).clip(max=len(known) - 1)
    strange = np.flatnonzero(known[codes] != labels)
    if len(strange):
        place, label = strange[0], labels[strange].tolist()[0]
        raise ValueError(f"strata must be among those of the fit, strata_; got {label!r} at position {place}")
    return codes


def as_entry(entry: Any, time: Array) -> Array:
    """Times of entry, [n] in float64; -inf for rows that have always been there.

    Raises:
        ValueError: not one for each row, a missing one, or one that is not below the row's time.
    """
    if isinstance(entry, str):
        raise TypeError(f"entry must have one time for each row; got {entry!r}. Pass the column itself, X[{entry!r}]")
    entry = check_array(entry, ensure_2d=False, dtype=np.float64, ensure_all_finite=False, input_name="entry")
    if entry.shape != time.shape:
        raise ValueError(f"entry must have one time for each row, the shape {time.shape}; got {entry.shape}")
    if (missing := np.isnan(entry)).any():
        place = np.flatnonzero(missing)[0]
        raise ValueError(
            f"entry must not be missing; got {entry[place]} at position {place}. Pass -numpy.inf for rows that have "
            "always been at risk"
        )
    late = np.flatnonzero(~(entry < time))
    if len(late):
        place = late[0]
        raise ValueError(f"entry must be below the row's time, {time[place]}; got {entry[place]} at position {place}")
    return entry


def wants_frame(as_frame: bool | None) -> bool:
    """Whether to make a data frame; None: if pandas is installed."""
    return importlib.util.find_spec("pandas") is not None if as_frame is None else as_frame


def framed(values: Array, rows: Any, times: Array | None = None) -> Any:
    """A data frame of values [n, m] whose columns are times [m], with the index of ``rows`` if that is a frame.

    Values [n] without times make a series.
    """
    import pandas as pd

    index = rows.index if isinstance(rows, pd.DataFrame) else None
    return pd.Series(values, index) if times is None else pd.DataFrame(values, index, times)

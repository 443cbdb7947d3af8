"""Harrell's concordance index as a metric in scikit-learn's form."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils import check_array, check_consistent_length

from fcco.compiled._concordance import PairCounts, count_pairs
from fcco.estimators._progress import warn_user
from fcco.estimators._survival_data import as_labels, as_survival
from fcco.estimators._validation import check_weights, refuse_first


def _refuse_events_apart(*args: Any, **_: Any) -> None:
    """Explain a call with times and events apart, as lifelines has it."""
    if len(args) > 2:
        raise TypeError(
            f"concordance_index takes two positional arguments, y and risk; got {len(args)}. Times and events are one "
            "y: pass concordance_index(df[['time', 'event']], risk), with risks and not minus risks"
        )


@refuse_first(_refuse_events_apart)
def concordance_index(y: Any, risk: Any, *, sample_weight: Any = None, strata: Any = None) -> float:
    """Return Harrell's concordance index, with ties as in scikit-survival, in O(n log n).

    It is the share of comparable pairs in which the row that has its event first has the higher risk. A pair is
    comparable if one row has an event and the other is still at risk after it. Pairs whose risks differ by 1e-8 or less
    count half.

    Parameters
    ----------
    y : array-like
        Times and events, in one of the forms that :class:`CoxRegressor` takes.
    risk : array-like of shape (n_samples,)
        The risks; higher ones mean earlier events. Pass minus the predicted times if those are what you have.
    sample_weight : array-like of shape (n_samples,), optional
        How often each row counts. A pair counts as often as the product of its weights says.
    strata : array-like of shape (n_samples,), optional
        If given, only pairs of the same stratum are compared, as in lifelines.

    Returns
    -------
    float
        If no pair can be compared, it is NaN, and an ``UndefinedMetricWarning`` is given.

    Raises
    ------
    ValueError
        If y, a risk, a weight or a stratum is invalid, or if their lengths differ.

    See Also
    --------
    fcco.functional.concordance_index : The same for tensors, on any device.

    Notes
    -----
    ``sklearn.metrics.make_scorer(concordance_index)`` scores any regressor whose predictions are risks.

    References
    ----------
    Harrell et al., *Evaluating the Yield of Medical Tests*, JAMA 1982.

    Examples
    --------
    >>> concordance_index([[1.0, 1], [2.0, 0], [3.0, 1]], [3.0, 1.0, 3.0])  # (1 + 1/2) / 2
    0.75
    """
    time, event = as_survival(y)
    risk = check_array(risk, ensure_2d=False, dtype=np.float64, input_name="risk")
    if risk.ndim != 1:
        raise ValueError(f"risk must have one risk for each row, the shape ({len(time)},); got {risk.shape}")
    check_consistent_length(risk, time)
    weight, parts = check_weights(sample_weight, len(time)), [np.arange(len(time))]
    if strata is not None:
        codes = np.unique(as_labels(strata, len(time)), return_inverse=True)[1]
        parts = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])
    counted = [count_pairs(time[own], event[own], risk[own], weight[own]) for own in parts]
    index = float(PairCounts(*np.sum(counted, axis=0)).concordance)
    if np.isnan(index):
        warn_user("no two of these times can be compared", UndefinedMetricWarning)
    return index

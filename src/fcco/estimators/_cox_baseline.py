"""Baseline hazards of a fitted Cox model, one for each stratum, and predictions from them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fcco.estimators._survival_data import as_codes, framed, wants_frame
from fcco.estimators._validation import Array


class BaselineMixin:
    """Predictions of hazards and survival, for a model with ``predict``, ``unique_times_`` and ``strata_``."""

    unique_times_: Array
    strata_: Array | None
    _steps: list[tuple[Array, Array]]  # of each stratum, event times and the logarithm of the cumulative hazard

    def predict(self, X: Any) -> Array:  # noqa: N803
        raise NotImplementedError

    def _set_baseline(self, time: Array, stratum: Array, times: Array, log_hazard: Array) -> None:
        """Keep the hazards at the event times of each stratum, which rise."""
        self.unique_times_ = np.unique(time)
        bounds = np.searchsorted(stratum, np.arange((1 if self.strata_ is None else len(self.strata_)) + 1))
        parts = [slice(begin, end) for begin, end in pairwise(bounds)]
        self._steps = [(times[part], np.logaddexp.accumulate(log_hazard[part])) for part in parts]

    @property
    def baseline_cumulative_hazard_(self) -> Array:
        """Breslow's estimate of the cumulative hazard of a row at the mean, at ``unique_times_``.

        With strata, it has a row for each of ``strata_``.
        """
        check_is_fitted(self)
        with np.errstate(over="ignore"):
            rows = [np.exp(_at(self.unique_times_, *steps)) for steps in self._steps]
        return rows[0] if self.strata_ is None else np.stack(rows)

    def predict_cumulative_hazard_function(
        self,
        X: Any,  # noqa: N803
        times: Any = None,
        as_frame: bool | None = None,
        strata: Any = None,
    ) -> Any:
        """Return cumulative hazards, step functions of time: Breslow's baseline times the risk.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        times : array-like of shape (n_times,), optional
            Where to evaluate them. By default this is ``unique_times_``, which can be many numbers. The hazard is 0
            before the first time of the training data, and constant after the last.
        as_frame : bool, optional
            Whether to return a data frame whose columns are times; lifelines returns the transpose. By default it is a
            frame if pandas is installed.
        strata : array-like of shape (n_samples,), optional
            The stratum of each row, one of ``strata_``. It must be given if, and only if, the model has strata.

        Returns
        -------
        DataFrame or ndarray of shape (n_samples, n_times)
        """
        risk = self.predict(X)
        times = self.unique_times_ if times is None else np.atleast_1d(np.asarray(times, dtype=np.float64))
        if times.ndim != 1 or np.isnan(times).any():
            raise ValueError(f"times must be one-dimensional and not NaN; got {times}")
        log_baseline = self._log_baseline_of(strata, len(risk), times)
        with np.errstate(over="ignore"):
            hazard = np.exp(risk[:, None] + log_baseline)
        return framed(hazard, X, times) if wants_frame(as_frame) else hazard

    def predict_survival_function(
        self,
        X: Any,  # noqa: N803
        times: Any = None,
        as_frame: bool | None = None,
        strata: Any = None,
    ) -> Any:
        """Return the probability to live beyond each time; see :meth:`predict_cumulative_hazard_function`."""
        return np.exp(-self.predict_cumulative_hazard_function(X, times, as_frame, strata))

    def _log_baseline_of(self, strata: Any, n: int, times: Array) -> Array:
        """The logarithm of the baseline at some times, [n_times] or, with strata, [n, n_times]."""
        if (strata is None) != (self.strata_ is None):
            fitted = "without strata" if self.strata_ is None else f"with {len(self.strata_)} strata"
            raise ValueError(f"strata must {'not ' * (self.strata_ is None)}be given: the model was fitted {fitted}")
        if self.strata_ is None:
            return _at(times, *self._steps[0])
        codes, baselines = as_codes(strata, n, self.strata_), np.empty((n, len(times)))
        for code in np.unique(codes):
            baselines[codes == code] = _at(times, *self._steps[code])
        return baselines


def _at(times: Array, steps: Array, values: Array) -> Array:
    """A step function of logarithms, that of 0 before its first step."""
    return np.concatenate([[-np.inf], values])[np.searchsorted(steps, times, side="right")]

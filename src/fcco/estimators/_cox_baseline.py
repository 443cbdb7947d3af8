"""Baseline hazards of a fitted Cox model, one for each stratum, and predictions from them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fcco.estimators._progress import warn_user
from fcco.estimators._survival_data import Cohort, as_codes, framed, wants_frame
from fcco.estimators._validation import Array


class BaselineMixin:
    """Predictions of hazards and survival, for a model with ``predict``, ``unique_times_`` and ``strata_``."""

    unique_times_: Array
    strata_: Array | None
    _ends: Array  # the last time of each stratum
    _steps: list[tuple[Array, Array]]  # of each stratum, event times and the logarithm of the cumulative hazard

    def predict(self, X: Any) -> Array:  # noqa: N803
        raise NotImplementedError

    def _set_baseline(self, cohort: Cohort, stratum: Array, times: Array, log_hazard: Array) -> None:
        """Keep the hazards at the event times of each stratum, which rise."""
        self.unique_times_ = np.unique(cohort.time)
        self._ends = np.zeros(1 if self.strata_ is None else len(self.strata_))
        codes = np.zeros(len(cohort.time), np.int64) if cohort.stratum is None else cohort.stratum
        np.maximum.at(self._ends, codes, cohort.time)
        bounds = np.searchsorted(stratum, np.arange(len(self._ends) + 1))
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
            before the first time of the training data. After the last time of the stratum nothing is known: the last
            value is returned, as in lifelines, with a warning if ``times`` is given.
        as_frame : bool, optional
            Whether to return a data frame whose columns are times; lifelines returns the transpose. By default it is a
            frame if pandas is installed.
        strata : array-like of shape (n_samples,), optional
            The stratum of each row, one of ``strata_``. It must be given if, and only if, the model has strata.

        Returns
        -------
        DataFrame or ndarray of shape (n_samples, n_times)
        """
        risk, chosen = self.predict(X), times is not None
        times = np.atleast_1d(np.asarray(times, dtype=np.float64)) if chosen else self.unique_times_
        hazard = self._hazards(risk, times, strata, warns=chosen)
        return framed(hazard, X, times) if wants_frame(as_frame) else hazard

    def predict_survival_function(
        self,
        X: Any,  # noqa: N803
        times: Any = None,
        as_frame: bool | None = None,
        strata: Any = None,
    ) -> Any:
        """Return the probability to live beyond each time: survival functions, step functions of time.

        Parameters
        ----------
        X, times, as_frame, strata
            As in :meth:`predict_cumulative_hazard_function`.

        Returns
        -------
        DataFrame or ndarray of shape (n_samples, n_times)
            The probabilities.
        """
        return np.exp(-self.predict_cumulative_hazard_function(X, times, as_frame, strata))

    def predict_median(self, X: Any, strata: Any = None) -> Any:  # noqa: N803
        """Return the median survival time of each row: the first time beyond which at most half of such rows live.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        strata : array-like of shape (n_samples,), optional
            The stratum of each row, one of ``strata_``. It must be given if, and only if, the model has strata.

        Returns
        -------
        Series or ndarray of shape (n_samples,)
            It is a Series with the index of X if X is a data frame. It is infinite for rows whose survival function
            stays above 1/2 to the last time of the training data.
        """
        risk = self.predict(X)
        codes, medians = self._codes(strata, len(risk)), np.empty(len(risk))
        for code in np.unique(codes):
            own, (times, log_hazards) = codes == code, self._steps[code]
            # Survival is exp(-exp(risk + log_hazards)), and at most 1/2 from this step on.
            step = np.searchsorted(log_hazards, np.log(np.log(2.0)) - risk[own])
            medians[own] = np.append(times, np.inf)[step]
        return framed(medians, X) if hasattr(X, "iloc") else medians

    def _hazards(self, risk: Array, times: Array, strata: Any, *, warns: bool) -> Array:
        """Cumulative hazards, [n, n_times]."""
        if times.ndim != 1 or np.isnan(times).any():
            raise ValueError(f"times must be one-dimensional and not NaN; got {times}")
        used, place = np.unique(self._codes(strata, len(risk)), return_inverse=True)
        if warns and (times > (last := self._ends[used].min())).any():
            whose = (
                "training data" if self.strata_ is None else f"stratum {self.strata_[used[self._ends[used].argmin()]]}"
            )
            warn_user(
                f"times go up to {times.max():g}, beyond {last:g}, the last time of the {whose}. Nothing is known of "
                "survival there, and the last value is returned; pass times up to it",
                UserWarning,
            )
        logs = np.stack([_at(times, *self._steps[code]) for code in used])[place]
        logs += risk[:, None]
        with np.errstate(over="ignore"):
            return np.exp(logs, out=logs)

    def _codes(self, strata: Any, n: int) -> Array:
        """The place of each row's stratum among ``strata_``, 0 without strata."""
        if (strata is None) == (self.strata_ is None):
            return np.zeros(n, np.int64) if self.strata_ is None else as_codes(strata, n, self.strata_)
        if self.strata_ is None:
            raise ValueError("strata must not be given: the model was fitted without strata")
        raise ValueError(
            f"strata must be given, one of strata_ for each row, or stratum= in plot_partial_effects: the model was "
            f"fitted with {len(self.strata_)} strata"
        )


def _at(times: Array, steps: Array, values: Array) -> Array:
    """A step function of logarithms, that of 0 before its first step."""
    return np.concatenate([[-np.inf], values])[np.searchsorted(steps, times, side="right")]

"""Plots of a fitted Cox model."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fcco._extras import import_extra, new_axes
from fcco.estimators._cox_baseline import BaselineMixin
from fcco.estimators._cox_report import ReportMixin, shortened
from fcco.estimators._survival_data import as_labels
from fcco.estimators._validation import Array

_NAMED = 10  # curves, up to which a legend can be read
_LARGEST = 300.0  # coefficient whose hazard ratio a logarithmic axis can show


class PlotsMixin(ReportMixin, BaselineMixin):
    """Plots of coefficients and survival curves. They need matplotlib: ``pip install 'fcco[plot]'``."""

    mean_: Array

    def plot_coefficients(self, *, hazard_ratios: bool = False, ax: Any = None) -> Any:
        """Plot the coefficients with their 95% confidence intervals (a forest plot), a line for each feature.

        Where the likelihood has no maximum, intervals have no end: they are cut at the limits of the plot.

        Parameters
        ----------
        hazard_ratios : bool, default=False
            Whether to plot exp(coef), on a logarithmic axis.
        ax : matplotlib.axes.Axes, optional
            Where to plot. By default it is a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            Where it is plotted.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        check_is_fitted(self)
        if ax is None:
            ax = new_axes("CoxRegressor.plot_coefficients", height=1.0 + 0.25 * len(self.coef_))
        value, lower, upper = self._intervals()
        if hazard_ratios:
            value, lower, upper = np.exp(value), np.exp(lower), np.exp(upper)
        place = np.arange(len(value))
        ax.axvline(1.0 if hazard_ratios else 0.0, color="0.6", linestyle="--", linewidth=1)
        ax.errorbar(value, place, xerr=[value - lower, upper - value], fmt="o", capsize=3)
        ax.set_yticks(place, self._names())
        ax.set_ylim(len(value) - 0.5, -0.5)  # the first feature on top
        if hazard_ratios:
            _use_log_scale(ax)
        ax.set_xlabel(f"{'hazard ratio' if hazard_ratios else 'coefficient'}, 95% interval")
        return ax

    def _intervals(self) -> tuple[Array, Array, Array]:
        """Coefficients and their bounds, which are cut at the others' where the likelihood has no maximum."""
        value, lower, upper = (np.asarray(self.summary["coef" + end]) for end in ("", " lower 95%", " upper 95%"))
        value = value.clip(-_LARGEST, _LARGEST)
        endless = np.isin(self._names(), self._endless)
        shown = np.concatenate([[0.0], value, lower[~endless], upper[~endless]])
        bounds = np.nanmin(shown), np.nanmax(shown)
        lower, upper = (np.where(endless, np.clip(bound, *bounds), bound) for bound in (lower, upper))
        return value, lower.clip(-_LARGEST, _LARGEST), upper.clip(-_LARGEST, _LARGEST)

    def plot_survival(self, X: Any, times: Any = None, strata: Any = None, *, ax: Any = None) -> Any:  # noqa: N803
        """Plot the survival curve of each row: the probability to live beyond each time.

        Up to ten rows are named, by the index of a data frame or by their number, and by their stratum if there are
        strata.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        times : array-like of shape (n_times,), optional
            Where to evaluate the curves. By default this is every time of the training data.
        strata : array-like of shape (n_samples,), optional
            The stratum of each row. It must be given if, and only if, the model has strata.
        ax : matplotlib.axes.Axes, optional
            Where to plot. By default it is a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            Where it is plotted.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        risk = self.predict(X)
        labels = [str(label) for label in (X.index if hasattr(X, "iloc") else range(len(risk)))]
        if strata is not None:
            own = as_labels(strata, len(risk)).tolist()
            labels = [f"{label}, stratum {stratum}" for label, stratum in zip(labels, own, strict=True)]
        return self._plot_curves(risk, labels, [{}] * len(risk), times, strata, ax, "CoxRegressor.plot_survival")

    def plot_partial_effects(
        self, feature: int | str, values: Any, times: Any = None, stratum: Any = None, *, ax: Any = None
    ) -> Any:
        """Plot survival curves as one feature varies and all others are at their mean over the training data.

        The dashed curve is that of a row at the mean. Nine values or fewer are named; more have a colour bar. In a
        pipeline, the values are those that the earlier steps make.

        Parameters
        ----------
        feature : str or int
            The name of the feature, or its column, counted from 0.
        values : array-like of shape (n_values,)
            The values of the feature, a curve for each.
        times : array-like of shape (n_times,), optional
            Where to evaluate the curves. By default this is every time of the training data.
        stratum : object, optional
            The stratum that the curves are of. It must be given if, and only if, the model has strata.
        ax : matplotlib.axes.Axes, optional
            Where to plot. By default it is a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            Where it is plotted.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If there is no such feature or stratum, if there are no values, or if a value is not finite.
        """
        check_is_fitted(self)
        place = self._place(feature)
        values = np.atleast_1d(np.asarray(values, dtype=np.float64))
        if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
            raise ValueError(f"values must be finite and one-dimensional, and at least one; got {values}")
        risk = self.coef_[place] * (values - self.mean_[place])
        labels = [f"{self._names()[place]} = {value:g}" for value in values]
        strata = None if stratum is None else [stratum] * (len(values) + 1)
        looks: list[dict[str, Any]] = [{}] * len(values) + [{"color": "black", "linestyle": "--", "linewidth": 1}]
        what = "CoxRegressor.plot_partial_effects"
        ax = self._plot_curves(np.append(risk, 0.0), [*labels, "mean"], looks, times, strata, ax, what)
        if len(labels) >= _NAMED:
            *lines, mean = ax.lines[-1 - len(values) :]
            _add_colour_bar(ax, lines, values, self._names()[place])
            ax.legend(handles=[mean])
        return ax

    def _plot_curves(
        self,
        risk: Array,
        labels: Sequence[str],
        looks: Sequence[dict[str, Any]],
        times: Any,
        strata: Any,
        ax: Any,
        what: str,
    ) -> Any:
        chosen = times is not None
        if not chosen:
            # Everybody lives before the first time.
            times = np.append(0.0, self.unique_times_)
        times = np.unique(np.asarray(times, dtype=np.float64))
        survival = np.exp(-self._hazards(risk, times, strata, warns=chosen))
        ax = new_axes(what) if ax is None else ax
        for curve, label, look in zip(survival, labels, looks, strict=True):
            ax.step(times, curve, where="post", label=label, **look)
        ax.set_xlabel("time")
        ax.set_ylabel("probability of survival")
        ax.set_ylim(-0.02, 1.02)
        if len(labels) <= _NAMED:
            ax.legend()
        return ax

    def _place(self, feature: int | str) -> int:
        names = self._names()
        if isinstance(feature, Integral) and 0 <= feature < len(names):
            return int(feature)
        if feature in names:
            return names.index(str(feature))
        raise ValueError(
            f"feature must be one of {shortened(names)}, or a column from 0 to {len(names) - 1}; got {feature!r}"
        )


def _add_colour_bar(ax: Any, lines: Sequence[Any], values: Array, name: str) -> None:
    """Colour lines by their values, and say which colour is which value."""
    cm, colors = (import_extra(f"matplotlib.{part}", "a colour bar", "plot") for part in ("cm", "colors"))
    colours = cm.ScalarMappable(colors.Normalize(values.min(), values.max()), "viridis")
    for line, value in zip(lines, values, strict=True):
        line.set_color(colours.to_rgba(value))
    ax.figure.colorbar(colours, ax=ax, label=name)


def _use_log_scale(ax: Any) -> None:
    """Make the x axis logarithmic, with ticks at plain numbers: over less than a decade there may be no power of 10."""
    ticker = import_extra("matplotlib.ticker", "a logarithmic axis", "plot")
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)) if high > 10 * low else ticker.AutoLocator())
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(ticker.NullLocator())

"""What a fitted Cox model says of its coefficients: a table, and the same in print."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from scipy import special
from sklearn.utils.validation import check_is_fitted

from fcco._checks import whole_number
from fcco.estimators._concordance import concordance_index
from fcco.estimators._survival_data import Cohort, wants_frame
from fcco.estimators._validation import Array

_NORMAL_95 = float(special.ndtri(0.975))
Ties = Literal["breslow", "efron"]
_LISTED = 10  # names, up to which a message is readable
_PRINTED = ("coef", "exp(coef)", "se(coef)", "coef lower 95%", "coef upper 95%", "z", "p")


class ReportMixin:
    """Tables of the coefficients, for a model with ``coef_`` and ``standard_error_``."""

    coef_: Array
    standard_error_: Array
    log_likelihood_: float
    null_log_likelihood_: float
    n_features_in_: int
    ties: Ties
    alpha: float
    _cohort: Cohort  # of the training data
    _risk: Array  # of the same rows
    _rank: int  # of the information matrix
    _flat: bool  # whether the likelihood does not depend on any coefficient, though features vary
    _endless: list[str]  # features along which the likelihood has no maximum

    @property
    def summary(self) -> Any:
        """A table like lifelines': coefficients, hazard ratios, standard errors, 95% bounds, z and p of w = 0.

        It is a data frame with a row for each feature, or without pandas a structured array. The standard errors are
        those of maximum likelihood, for alpha = 0 and a fit that converged. :meth:`print_summary` prints the table.
        """
        check_is_fitted(self)
        return summarise(self.coef_, self.standard_error_, self._names())

    @property
    def concordance_index_(self) -> float:
        """Harrell's concordance index of the training data, within strata if there are some; see :meth:`score`.

        Times of entry are not taken into account.
        """
        check_is_fitted(self)
        time, event, counts, stratum, _ = self._cohort
        y = np.column_stack([time, event])
        return concordance_index(y, self._risk, sample_weight=counts, strata=stratum)

    def print_summary(self, decimals: int = 2) -> None:
        """Print the fit in short, like lifelines: a header, and the coefficients with 95% bounds, z and p.

        The likelihood ratio test compares the fit with one in which all coefficients are 0. Its degrees of freedom are
        the number of features, less one for each that is constant or a combination of others. It is left out if alpha
        is not 0, where it has no such distribution.

        Parameters
        ----------
        decimals : int, default=2
            Number of decimals.

        Examples
        --------
        >>> from fcco.estimators import CoxRegressor
        >>> X = [[0.0, 2.0], [1.0, 1.0], [3.0, 5.0], [2.0, 1.0], [1.0, 0.0], [0.0, 3.0]]
        >>> CoxRegressor().fit(X, [[9, 1], [4, 1], [3, 1], [5, 0], [4, 1], [6, 1]]).print_summary()
                    rows  6
                  events  5, of which 2 share a time with another
                    ties  breslow
          log-likelihood  -4.50
        likelihood ratio  2.42 on 2 df, p 0.30
             concordance  0.83
        <BLANKLINE>
            coef  exp(coef)  se(coef)  coef lower 95%  coef upper 95%     z     p
        x0  0.89       2.43      0.71           -0.51            2.29  1.24  0.21
        x1  0.25       1.28      0.47           -0.68            1.17  0.52  0.60
        """
        check_is_fitted(self)
        whole_number("decimals", decimals, 0)
        header = self._header(decimals)
        width = max(map(len, header))
        print("\n".join(f"{name:>{width}}  {text}" for name, text in header.items()), end="\n\n")
        print("\n".join(_table(self.summary, self._names(), decimals)))
        if self._flat:
            print("nan: no coefficient is determined, as no event has rows at risk that differ: the likelihood is flat")
        elif np.isnan(self.standard_error_).any():
            print("nan: the coefficient is not determined, as the feature is constant or a combination of others")
        if self._endless:
            print(
                f"no maximum: the likelihood rises for ever along {shortened(self._endless)}; coefficients, standard "
                "errors and p values there mean nothing; set alpha > 0"
            )

    def _header(self, decimals: int) -> dict[str, str]:
        time, event, _, stratum, _ = self._cohort
        keys = time[event] if stratum is None else np.stack([time[event], stratum[event]])
        sizes = np.unique(keys, axis=-1, return_counts=True)[1]
        tied, df = int(sizes[sizes > 1].sum()), self._rank
        lines = {
            "rows": f"{len(time):,}",
            "events": f"{event.sum():,}" + (f", of which {tied:,} share a time with another" if tied else ""),
            "ties": self.ties,
            "log-likelihood": f"{self.log_likelihood_:.{decimals}f}",
        }
        if stratum is not None:
            lines["strata"] = f"{stratum.max() + 1:,}"
        if self.alpha > 0:
            lines["alpha"] = f"{self.alpha:g}"
        else:
            ratio = max(2.0 * (self.log_likelihood_ - self.null_log_likelihood_), 0.0)
            p = _probability(float(special.chdtrc(df, ratio)), decimals) if df else "nan"
            lines["likelihood ratio"] = f"{ratio:.{decimals}f} on {df} df, p {p}"
        entries = " (entries are ignored)" if self._cohort.entry is not None else ""
        return lines | {"concordance": f"{self.concordance_index_:.{decimals}f}{entries}"}

    def _names(self) -> list[str]:
        return list(getattr(self, "feature_names_in_", [f"x{k}" for k in range(self.n_features_in_)]))


def shortened(names: list[str]) -> str:
    """Names in a line, the first ten of them.

    >>> shortened([f"x{k}" for k in range(12)])
    'x0, x1, x2, x3, x4, x5, x6, x7, x8, x9 and 2 more'
    """
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _table(summary: Any, names: list[str], decimals: int) -> list[str]:
    """Lines of the columns that are printed, aligned to the right."""
    cells = [["", *names]]
    for title in _PRINTED:
        values = np.asarray(summary[title])
        texts = [_probability(value, decimals) if title == "p" else f"{value:.{decimals}f}" for value in values]
        cells.append([title, *texts])
    widths = [max(map(len, column)) for column in cells]
    rows = zip(*cells, strict=True)
    first = widths.pop(0)
    return [f"{name:<{first}}  " + "  ".join(map(str.rjust, texts, widths)) for name, *texts in rows]


def _probability(p: float, decimals: int) -> str:
    """A p value, rounded; one that would be rounded to 0 as an upper bound.

    >>> _probability(0.0123, 2), _probability(0.0012, 2)
    ('0.01', '<0.005')
    """
    least = 0.5 * 0.1**decimals
    return f"<{least:.{decimals + 1}f}" if p < least else f"{p:.{decimals}f}"


def summarise(coef: Array, error: Array, names: list[str]) -> Any:
    """Coefficients [d], hazard ratios, standard errors, 95% bounds, z and p of w = 0, by feature."""
    lower, upper = coef - _NORMAL_95 * error, coef + _NORMAL_95 * error
    with np.errstate(all="ignore"):  # where the likelihood has no maximum, bounds may overflow
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

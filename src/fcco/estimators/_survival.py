"""Cox's proportional hazards as a scikit-learn estimator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Self, get_args

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from fcco.compiled import OUTERS, SURROGATES, WHOLE, ClassSampler, Objective, compiling, new_update
from fcco.compiled._cox import risk_sets, sort_order
from fcco.estimators._columns import SortedRows, linear
from fcco.estimators._concordance import concordance_index
from fcco.estimators._cox_newton import Fit, Likelihood, newton
from fcco.estimators._cox_objective import CoxObjective
from fcco.estimators._cox_plots import PlotsMixin
from fcco.estimators._cox_report import Ties, shortened
from fcco.estimators._cox_truncated import TruncatedCoxObjective
from fcco.estimators._descent import Descent, StepPlan, Steps
from fcco.estimators._progress import Bar, LossCurveMixin, Progress, warn_user
from fcco.estimators._survival_data import Cohort, as_entry, as_labels, as_survival
from fcco.estimators._validation import (
    Array,
    Method,
    check_parameters,
    check_weights,
    refuse_first,
    refuse_huge,
    refuse_other_features,
    refuse_sparse,
    refuse_weights,
    show_weights_where_taken,
)
from fcco.functional._checks import check_choice, check_number

_LOOK_AHEAD = 7  # iterations of Newton's method which tell whether a likelihood has a maximum near by


def _refuse_events_apart(model: Any, *args: Any, **_: Any) -> None:
    """Explain a call with times and events apart, as other libraries have it."""
    if len(args) > 2:
        raise TypeError(
            f"{type(model).__name__} takes two positional arguments, X and y; got {len(args)}. Times and events are "
            "one y: pass df[['time', 'event']], or numpy.column_stack([time, event]). Weights and strata go by keyword"
        )


class CoxRegressor(PlotsMixin, LossCurveMixin, RegressorMixin, BaseEstimator):
    r"""Cox's proportional hazards: a log risk, linear in the features, from times some of which are censored.

    .. math:: F(w) = \frac{1}{n_E} \sum_{i : E_i = 1} \log \sum_{j : T_j \ge T_i} e^{w^T (x_j - x_i)}
              + \frac{\alpha}{2} \|w\|^2

    The default, ``method="exact"``, is Newton's method with step-halving. It takes a few iterations after one sort. An
    iteration costs O(n d²), and the memory is O(n d). It is both faster and better than mini-batches. On 10^6 rows of
    20 features, one thread, in one run of ``python benchmarks/cox.py``:

    - untied times: 1.6 s; scikit-survival 57 s, lifelines 91 s; ``method="soap"`` 12 s, to 1e-4 above the minimum;
    - tied times, by Efron: 1.2 s; scikit-survival 40 s, lifelines 5.6 s.

    ``y`` can be a structured array of event and time, as in scikit-survival. It can have two columns, time and event,
    in this order. In a data frame, a column named time may also be the second one, and so may one beside an event of
    bool. If every time is that of an event, pass ``numpy.column_stack([time, numpy.ones(len(time))])``. Times are at
    least 0, and only their order matters to the coefficients.

    ``strata`` of ``fit`` gives every stratum a baseline hazard of its own. Risk sets are then those of a stratum, and
    the coefficients are common to all. ``entry`` is for rows that enter late (left truncation), as in R's survival and
    lifelines. A row is at risk after its entry and up to its time. If another row has an event exactly when a row
    enters, the row that enters is not yet in that event's risk set. Both need method="exact". Late entries make an
    iteration several times slower, and take memory for a dense X.

    ``sample_weight`` of ``fit``, with method="exact" only, counts a row as often as it says. With Breslow's ties a
    weight of 2 is the same as the row twice, for the standard errors and the baseline too. Efron's ties are weighted as
    in lifelines and R's survival, where the events of a time share their mean weight. n_E is then the weight of all
    events.

    A Pipeline forwards ``predict`` and ``score`` only. For the other methods, transform X by the earlier steps and call
    the last one, as in the last example. ``set_output(transform="pandas")`` of the pipeline keeps the features' names.

    Constant features get a coefficient of 0. Of collinear features only the sum of the effects is determined, and they
    share it. The standard errors of both kinds are NaN, and a ``ConvergenceWarning`` names these features. With
    alpha > 0 the coefficients of collinear features are determined too.

    The likelihood may have no maximum (monotone likelihood, or complete separation). Some features then tell the events
    from their risk sets without error, and the likelihood rises for ever along them. A ``ConvergenceWarning`` names
    these features. Their coefficients are those at which the rise became negligible, or at which descent ended. With
    alpha > 0 there is a finite optimum. Descent cannot see this by itself, so ``fit`` checks for it after the last pass
    by a few iterations of Newton's method, which do not change the coefficients.

    The first fit compiles what it needs, once, for a few seconds (``verbose=1`` prints how long). Later processes find
    the compiled code on disk.

    Parameters
    ----------
    method : {"exact", "bsgd", "soap", "moap", "sox"}, default="exact"
        Newton's method, or the rule of mini-batch descent (see :class:`fcco.SOX`). Descent needs dense X and Breslow's
        ties. A pass that makes F worse is taken back, and one without a gain halves the rate.
    ties : {"breslow", "efron"}, default="breslow"
        How events at the same time are treated; see :func:`fcco.functional.cox_loss`. Without such ties both are the
        same. "efron" is the default of R's coxph and of lifelines, and the better approximation; choose it to compare
        with them. "breslow", the default of scikit-survival, statsmodels and Stata, draws coefficients towards 0 where
        there are many ties. It is the default here because all methods support it, and because only with it a weight
        of 2 is the same as the row twice, as scikit-learn requires.
    alpha : float, default=0.0
        Weight of the L2 penalty on the coefficients of X as it is given, not of standardised features. scikit-survival
        does not divide its objective by n_E, so its alpha is n_E times this one. lifelines' ``penalizer`` p is the same
        as alpha = p n / n_E for n rows of standardised features.
    learning_rate : "auto" or float, default="auto"
        Step size of descent, in units of each feature's deviation. "auto" takes the power of 4, from 16 down, that
        comes furthest in a trial of 300 steps. Before the fit ends, it tries larger ones again.
    gamma, beta : float, default=0.7, 0.1
        Rates, in (0, 1], of descent. ``gamma`` is that of the table's moving average, and ``beta`` that of the
        gradient's moving average.
    batch_size : int, default=64
        Number of rows in a batch of descent, at least 2, as the rows of a batch are compared with each other.
    max_iter : int, default=100
        Largest number of iterations of Newton's method, or of passes over the data.
    tol : float or None, default=None
        Smallest improvement that counts. Newton's method ends when its next step would raise the log-likelihood of all
        data by less than ``tol``, or by less than 3e-7 if the likelihood rises for ever. Descent ends when
        ``n_iter_no_change`` passes have not lowered F by a share ``tol`` of its size. None stands for 1e-12 in Newton's
        method, and for 1e-6 in descent.
    n_iter_no_change : int, default=5
        Number of passes without an improvement that end descent.
    warm_start : bool, default=False
        Whether to begin at the coefficients of the last fit, instead of 0.
    random_state : int, RandomState or None, default=None
        Seed of the batches of descent.
    verbose : int, default=0
        Whether to show a progress bar with F, as ``loss_curve_`` has it, and to print how long anything took to
        compile.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        The coefficients w.
    covariance_ : ndarray of shape (n_features, n_features)
        The inverse of the (penalised) observed information at ``coef_``.
    standard_error_ : ndarray of shape (n_features,)
        The square roots of the diagonal of ``covariance_``.
    mean_ : ndarray of shape (n_features,)
        The means of the features. The baseline hazard is that of a row at the mean.
    log_likelihood_ : float
        The partial log-likelihood of the training data, without the penalty.
    null_log_likelihood_ : float
        The partial log-likelihood of the training data if all coefficients are 0.
    concordance_index_ : float
        Harrell's concordance index of the training data.
    unique_times_ : ndarray of shape (n_times,)
        All times in the training data, of events and of censoring, in rising order.
    baseline_cumulative_hazard_ : ndarray of shape (n_times,)
        Breslow's estimate at these times. With strata its shape is (n_strata, n_times).
    strata_ : ndarray of shape (n_strata,) or None
        The distinct strata of the training data, sorted.
    loss_curve_ : list of float
        F at the start and after each iteration of Newton's method, or after each pass of descent.
    learning_rate_ : float
        The step size at which descent began. Newton's method has none.
    n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> life, watched = rng.exponential(np.exp(-X @ [1.0, -0.5])), rng.exponential(2.0, size=500)
    >>> y = np.column_stack([np.minimum(life, watched), life <= watched])
    >>> model = CoxRegressor().fit(X, y)
    >>> print(model.coef_.round(2), model.standard_error_.round(2), round(model.score(X, y), 2))
    [ 0.88 -0.52] [0.07 0.06] 0.74
    >>> model.predict_survival_function(X[:2], times=[0.5, 1.0], as_frame=False).round(2)
    array([[0.53, 0.27],
           [0.41, 0.16]])
    >>> model.predict_median(X[:2]).round(2)
    array([0.54, 0.35])

    In a pipeline:

    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> pipe = make_pipeline(StandardScaler(), CoxRegressor()).fit(X, y)
    >>> pipe[-1].predict_survival_function(pipe[:-1].transform(X[:2]), times=[0.5, 1.0], as_frame=False).round(2)
    array([[0.53, 0.27],
           [0.41, 0.16]])

    References
    ----------
    Cox, *Regression Models and Life-Tables*, 1972. Breslow, *Covariance Analysis of Censored Survival Data*, 1974.
    Efron, *The Efficiency of Cox's Likelihood Function for Censored Data*, 1977. Heinze and Schemper, *A Solution to
    the Problem of Monotone Likelihood in Cox Regression*, 2001.
    """

    _weighted_methods = ("exact",)

    def __init__(
        self,
        *,
        method: Method = "exact",
        ties: Ties = "breslow",
        alpha: float = 0.0,
        learning_rate: float | Literal["auto"] = "auto",
        gamma: float = 0.7,
        beta: float = 0.1,
        batch_size: int = 64,
        max_iter: int = 100,
        tol: float | None = None,
        n_iter_no_change: int = 5,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.ties = ties
        self.alpha = alpha
        self.learning_rate = learning_rate
        self.gamma = gamma
        self.beta = beta
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    @show_weights_where_taken
    @refuse_first(_refuse_events_apart)
    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        *,
        sample_weight: Any = None,
        strata: Any = None,
        entry: Any = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The features. Only method="exact" takes a sparse matrix.
        y : array-like
            Times and events; see the description of the class.
        sample_weight : array-like of shape (n_samples,), optional
            How often each row counts; a row of weight 0 is left out. Only method="exact" supports weights.
        strata : array-like of shape (n_samples,), optional
            The stratum of each row, of numbers, strings or categories. Only method="exact" supports strata.
        entry : array-like of shape (n_samples,), optional
            The time at which each row enters, below the row's own time. Only method="exact" supports entries.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If there is no event, or if a parameter, X, y, a weight, a stratum or an entry is invalid.
        TypeError
            If the method does not support sparse X, ``sample_weight``, ``strata`` or ``entry``.
        """
        self._check_parameters()
        refuse_weights(self, sample_weight)
        for name, given in (("strata", strata), ("entry", entry)):
            if given is not None and not self._exact:
                raise TypeError(f'CoxRegressor.fit does not support {name} with method={self.method!r}; use "exact"')
        before = getattr(self, "coef_", None) if self.warm_start else None
        if not self._exact:
            refuse_sparse(X, self.method)
        if before is not None:
            refuse_other_features(X, len(before))
        kinds = "csr" if self._exact else False
        x = validate_data(self, X, accept_sparse=kinds, dtype=[np.float64, np.float32])
        refuse_huge(x)
        time, event = as_survival(y)
        check_consistent_length(x, time)
        counts = check_weights(sample_weight, len(time))
        labels = None if strata is None else as_labels(strata, len(time))
        cohort = Cohort(time, event, counts, labels, None if entry is None else as_entry(entry, time))
        if not (kept := counts > 0.0).all():
            x, cohort = x[kept], cohort.rows(kept)
        if not cohort.event.any():
            raise ValueError(f"y has no event: all {len(cohort.time)} times are censored")
        self.strata_ = None
        if cohort.stratum is not None:
            self.strata_, codes = np.unique(cohort.stratum, return_inverse=True)
            cohort = cohort._replace(stratum=codes)
            if len(self.strata_) == len(codes):
                raise ValueError(f"strata must have rows to compare; got {len(codes)} strata for {len(codes)} rows")
        with compiling("CoxRegressor", self.verbose):
            self._fit(x, cohort, before)
        return self

    def _fit(self, x: Any, cohort: Cohort, before: Array | None) -> None:
        time, event, counts, stratum, _ = cohort
        order = sort_order(time, event, stratum)
        rows, ordered = SortedRows(x, order, counts), cohort.rows(order)
        self._cohort = ordered
        start = np.zeros(x.shape[1]) if before is None else before * rows.spread
        penalty, efron = self.alpha * rows.scale**-2.0, self.ties == "efron"
        if ordered.entry is not None:
            numbers = np.zeros(len(time), np.int64) if ordered.stratum is None else ordered.stratum
            times = np.stack([ordered.entry, ordered.time])
            late = TruncatedCoxObjective(rows, times, ordered.event, numbers, efron, ordered.counts, penalty)
            self._fit_newton(late, start)
            self._set_baseline(ordered, *late.log_baseline())
            return
        sets = risk_sets(ordered.time, ordered.event, efron, ordered.counts, ordered.stratum)
        objective = CoxObjective(rows, sets, penalty)
        if self._exact:
            self._fit_newton(objective, start)
        else:
            self._fit_descent(x, time, event, objective, start)
        self._set_baseline(ordered, *objective.log_baseline(ordered.time))

    @property
    def _exact(self) -> bool:
        return self.method == "exact"

    def _check_parameters(self) -> None:
        check_parameters(self, batch_size=2)  # a row alone has nothing to be compared with
        check_choice(self.ties, "ties", get_args(Ties))
        if self.ties != "breslow" and not self._exact:
            raise ValueError(f"method={self.method!r} has Breslow's ties only; got ties={self.ties!r}")
        if self.tol is not None:
            check_number(self.tol, "tol, if not None,", at_least=0.0)

    def _fit_newton(self, objective: Likelihood, start: Array) -> None:
        tol = 1e-12 if self.tol is None else float(self.tol)
        with Bar("CoxRegressor", self.max_iter + 1, self.verbose) as bar:  # the start is shown too
            fit = newton(objective, start, max_iter=self.max_iter, tol=tol, report=bar.show)
        self._set_coefficients(objective, fit)
        if fit.endless is not None:
            self._warn_endless()
        elif not fit.converged:
            warn_user(f"CoxRegressor reached max_iter={self.max_iter} before Newton's method converged")

    def _fit_descent(self, x: Array, time: Array, event: Array, objective: CoxObjective, start: Array) -> None:
        progress = Progress.of(self, "CoxRegressor", 1e-6 if self.tol is None else self.tol)
        spread, alpha = objective.rows.spread, float(self.alpha)
        plan = cox_plan(time, event, self.batch_size, self.method, self.gamma)
        scale = objective.rows.scale**-2.0
        steps = Steps(x, plan, scale, alpha, float(self.beta), lambda w: objective.value(w * spread))
        rate = None if self.learning_rate == "auto" else float(self.learning_rate)
        begin = start / np.where(spread > 0, spread, 1.0)
        descent = Descent(steps, begin, rate, progress, check_random_state(self.random_state))
        with progress:
            w, self.learning_rate_ = descent.run() * spread, descent.rate
        endless = (
            newton(objective, w, max_iter=_LOOK_AHEAD, tol=0.0, report=_silent).endless if self.alpha == 0 else None
        )
        # Newton's method for no iteration: the information at w.
        here = newton(objective, w, max_iter=0, tol=0.0, report=_silent)
        self._set_coefficients(objective, replace(here, w=w, curve=progress.curve, endless=endless))
        if endless is None:
            descent.warn()
        else:
            self._warn_endless()

    def _set_coefficients(self, objective: Likelihood, fit: Fit) -> None:
        scale = objective.rows.scale
        self.coef_ = fit.w / scale
        with np.errstate(invalid="ignore"):
            self.covariance_ = fit.covariance / scale / scale[:, None]
        self.standard_error_ = np.sqrt(np.diag(self.covariance_))
        self.mean_ = objective.rows.mean
        self.log_likelihood_ = -objective.fit
        self.null_log_likelihood_ = -objective.events * fit.at_zero
        self._risk, self._rank = objective.rows.linear(fit.w), fit.rank
        self._constant = objective.rows.spread == 0.0
        self._flat = fit.rank == 0 and not self._constant.all()
        self._endless = [] if fit.endless is None else self._features_along(fit.endless)
        self._warn_undetermined()
        self.loss_curve_ = fit.curve
        self.n_iter_ = max(1, len(fit.curve) - self._exact)  # the curve of Newton's method begins before a step

    def _features_along(self, direction: Array) -> list[str]:
        share = np.abs(direction) / np.abs(direction).max()
        return [str(name) for name, part in zip(self._names(), share, strict=True) if part > 0.1]

    def _warn_undetermined(self) -> None:
        """Name the features whose standard errors are NaN, and say why."""
        unknown, constant = np.isnan(self.standard_error_), self._constant
        names = np.array(self._names())
        if self._flat:
            warn_user("no coefficient is determined, as no event has rows at risk that differ: the likelihood is flat")
        elif unknown.any():
            kinds = {"constant": unknown & constant, "collinear, or constant in every risk set": unknown & ~constant}
            found = "; ".join(f"{kind}: {shortened(list(names[of]))}" for kind, of in kinds.items() if of.any())
            warn_user(
                f"some coefficients are not determined, and their standard errors are NaN ({found}). Leave constant "
                "features out. Of collinear ones leave one out (of dummies, by drop='first'), or set alpha > 0"
            )

    def _warn_endless(self) -> None:
        warn_user(
            "the likelihood has no maximum (monotone likelihood, or complete separation). It rises for ever along "
            f"{shortened(self._endless)}: these features tell the events from their risk sets without error, so that "
            "their coefficients have no finite optimum; set alpha > 0"
        )

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the log risk of each row relative to a row at the mean of the training data: coefᵀ (x - mean).

        This is lifelines' ``predict_log_partial_hazard``. scikit-survival's ``predict`` is the same plus
        ``mean_ @ coef_``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The features.

        Returns
        -------
        ndarray of shape (n_samples,)
            The log risks.
        """
        check_is_fitted(self)
        x = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        return linear(x, self.coef_) - self.mean_ @ self.coef_

    @refuse_first(_refuse_events_apart)
    def score(self, X: Any, y: Any, *, sample_weight: Any = None, strata: Any = None) -> float:  # noqa: N803
        """Return Harrell's concordance index of the predictions; see :func:`concordance_index`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        y : array-like
            Times and events, as in :meth:`fit`.
        sample_weight : array-like of shape (n_samples,), optional
            A pair of rows counts as often as the product of their weights says.
        strata : array-like of shape (n_samples,), optional
            If given, only pairs of the same stratum are compared, as in lifelines. If a model with strata is scored
            without them, all pairs are compared, with a warning.

        Returns
        -------
        float
            If no pair can be compared, it is NaN, and an ``UndefinedMetricWarning`` is given.

        Notes
        -----
        Times of entry are not taken into account: a row that enters late is compared with everyone who lives as long.
        """
        if strata is None and getattr(self, "strata_", None) is not None:
            warn_user(
                "CoxRegressor was fitted with strata and is scored without, so that pairs of different strata are "
                "compared; pass strata=, in a search by set_score_request(strata=True)"
            )
        return concordance_index(y, self.predict(X), sample_weight=sample_weight, strata=strata)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self._exact  # the loop over batches reads rows of an array
        tags.target_tags.required = tags.target_tags.positive_only = True
        return tags


def cox_plan(time: Array, event: Array, batch_size: int, method: Method, gamma: float) -> StepPlan:
    """Return steps on batches of any rows; events are outer rows, and their rivals those who live as long."""
    n, batch = len(time), min(int(batch_size), len(time))
    time = np.require(time, requirements=["C", "W"])
    return StepPlan(
        objective=Objective(SURROGATES["exp"], 0.0, 1.0, OUTERS["log"]),
        update=new_update(method, float(gamma), int(event.sum())),
        sampler=ClassSampler(WHOLE, batch, 0, event.astype(np.float64), time, np.ones(2)),
        first=np.arange(n),
        second=np.zeros(0, np.int64),
        count=max(1, n // batch),
    )


def _silent(value: float) -> None:
    """Report nothing."""

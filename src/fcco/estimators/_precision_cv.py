"""The linear ranker by average precision whose settings are chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fcco._checks import whole_number
from fcco.estimators._linear import store_parameters
from fcco.estimators._precision import Fold, PrecisionRanker, Results, Setting, as_table, calibrate_on, choose, mean
from fcco.estimators._progress import Bar
from fcco.estimators._sharpen import Ranking, Sharpening, as_grid, logistic_start, logistic_starts, push_start
from fcco.estimators._validation import Array
from fcco.functional._checks import check_number
from fcco.functional._surrogates import check_temperature

_INVERSE_PENALTIES = tuple(10.0 ** (k / 2) for k in range(-8, 5))


class AveragePrecisionClassifierCV(PrecisionRanker):
    r"""Linear ranker for average precision, with settings chosen by cross-validation.

    It is :class:`AveragePrecisionClassifier` with the start's C, the penalty alpha and the temperature chosen by the
    average precision of rows that are left out. First the start is chosen: logistic regression with each C, and the
    p-norm push. Then the start is sharpened with each alpha and each temperature. The start itself is one of the
    choices. It is only left if the best other choice is better by more than ``standard_errors`` standard errors of the
    difference over the folds. Finally, the chosen setting is fitted to all rows.

    Parameters
    ----------
    C : sequence of float, default=10^-4, 10^-3.5, ..., 10^2
        Inverse penalties of logistic regression as a start, on standardised features.
    alpha : sequence of float, default=(0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
        Weights of the penalty that draws the coefficients to the start.
    temperature : sequence of float, default=(0.25, 0.0625)
        Temperatures, in units of the deviation of the start's scores. Each path takes them from the largest down.
    push : bool, default=True
        Whether the p-norm push is one of the starts.
    cv : int, cross-validation generator or iterable, default=5
        The folds, as in scikit-learn; an int makes stratified folds of shuffled rows.
    pos_label : object, default=None
        The class that is to be ranked first. By default it is the last in sorted order, ``classes_[1]``, as in
        scikit-learn, and the fit warns if that class has more than half of the rows. Pass it to be sure. Rank rows by
        ``score_samples``: ``decision_function`` rises with ``classes_[1]`` whatever ``pos_label`` is.
    standard_errors : float, default=0.5
        How clearly a choice must beat the start. 0 takes the best mean.
    max_iter : int, default=25
        Largest number of iterations at each temperature.
    tol : float, default=1e-5
        Smallest improvement of the objective that counts, relative to its size.
    random_state : int, RandomState or None, default=None
        Seed of the folds.
    verbose : int or bool, default=0
        Whether to show a progress bar with the average precision of each setting, as ``cv_results_`` has it.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features)
        The coefficients w of :meth:`decision_function`, which rises with ``classes_[1]``.
    intercept_ : ndarray of shape (1,)
        Set so that ``predict`` marks as many training rows as positive as there are.
    classes_ : ndarray of shape (2,)
    pos_label_ : object
        The positive class, one of ``classes_``.
    C_ : float or None
        The chosen C; None if the start is the p-norm push.
    alpha_, temperature_ : float or None
        The chosen alpha and temperature; None if the fit remains at the start.
    best_score_ : float
        Mean average precision of the chosen setting over the folds.
    cv_results_ : dict of ndarray
        For each setting its "C", "alpha" and "temperature" (NaN for None), "mean_test_score", "std_test_score", and
        "split0_test_score" and so on for each fold. ``pandas.DataFrame(model.cv_results_)`` shows it as a table.
    loss_curve_ : list of float
        The objective of the last fit, with its penalty, after each iteration.
    n_iter_ : int
        Number of iterations of the last fit.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features, if X has them.

    See Also
    --------
    AveragePrecisionClassifier : The same with given settings.

    Notes
    -----
    ``python -m top_of_list`` in ``benchmarks`` compares this class with logistic regression; see docs/top_of_list.md.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ranker = AveragePrecisionClassifierCV(C=[0.1, 1.0], alpha=[1.0], pos_label=0, random_state=0).fit(X, y)
    >>> bool(ranker.score(X, y) > 0.99), ranker.predict_proba(X).shape
    (True, (569, 2))
    """

    method = "exact"
    warm_start = False
    _weighted_methods = ("exact",)

    def __init__(
        self,
        C: Sequence[float] = _INVERSE_PENALTIES,  # noqa: N803
        alpha: Sequence[float] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
        temperature: Sequence[float] = (0.25, 0.0625),
        *,
        push: bool = True,
        pos_label: Any = None,
        cv: Any = 5,
        standard_errors: float = 0.5,
        max_iter: int = 25,
        tol: float = 1e-5,
        random_state: Any = None,
        verbose: int | bool = 0,
    ) -> None:
        store_parameters(self, locals())

    C: Sequence[float]
    alpha: Sequence[float]  # type: ignore[assignment]
    temperature: Sequence[float]
    push: bool
    cv: Any
    standard_errors: float

    def _check_parameters(self) -> None:
        for value in as_grid("C", self.C):
            check_number(value, "C", above=0.0)
        for value in as_grid("alpha", self.alpha):
            check_number(value, "alpha", at_least=0.0)
        for value in as_grid("temperature", self.temperature):
            check_temperature(value)
        check_number(self.standard_errors, "standard_errors", at_least=0.0)
        check_number(self.tol, "tol", at_least=0.0)
        whole_number("max_iter", self.max_iter)

    def _learn(self, x: Any, positive: Array, weight: Array | None) -> None:
        folds = self._folds(x, positive, weight, self.cv)
        count = len(self.C) + bool(self.push) + len(self.alpha) * len(self.temperature)
        with Bar(type(self).__name__, count, self.verbose, "average precision") as bar:
            starts = [self._starts(fold.ranking) for fold in folds]
            results: Results = {}
            for setting in starts[0]:
                scores = [fold.average_precision(found[setting]) for fold, found in zip(folds, starts, strict=True)]
                results[setting] = scores
                bar.show(mean(scores))
            start = max(results, key=lambda setting: mean(results[setting]))
            results |= self._try_sharpening(folds, [found[start] for found in starts], start, bar)
        chosen = choose(results, start, self.standard_errors)
        ranking = Ranking.of(x, positive, weight)
        z, self.loss_curve_ = self._fit_setting(ranking, chosen)
        self.C_, self.alpha_, self.temperature_ = chosen
        self.best_score_, self.cv_results_ = mean(results[chosen]), as_table(results)
        self.coef_, self.n_iter_ = ranking.x.coefficients(z).astype(x.dtype), max(1, len(self.loss_curve_))
        self._calibration = calibrate_on(folds, [self._fit_setting(fold.ranking, chosen)[0] for fold in folds])

    def _starts(self, ranking: Ranking) -> dict[Setting, Array]:
        """Return the coefficients of all starts."""
        found = {Setting(C): z for C, z in logistic_starts(ranking, [float(C) for C in self.C]).items()}
        return found | ({Setting(None): push_start(ranking)} if self.push else {})

    def _try_sharpening(self, folds: list[Fold], starts: list[Array], start: Setting, bar: Bar) -> Results:
        results: Results = {}
        for alpha in self.alpha:
            paths = [self._path(fold.ranking, z, alpha) for fold, z in zip(folds, starts, strict=True)]
            for temperature in paths[0]:
                setting = Setting(start.C, float(alpha), temperature)
                scores = [fold.average_precision(path[temperature]) for fold, path in zip(folds, paths, strict=True)]
                results[setting] = scores
                bar.show(mean(scores))
        return results

    def _path(self, ranking: Ranking, start: Array, alpha: float) -> dict[float, Array]:
        """Return the coefficients at each temperature; those of the start if it has no scale."""
        stages = list(self._sharpening(alpha, self.temperature).path(ranking, start))[1:]
        found = {stage.temperature: stage.z for stage in stages if stage.temperature is not None}
        return found or {float(temperature): start for temperature in self.temperature}

    def _sharpening(self, alpha: float, temperatures: Sequence[float]) -> Sharpening:
        ordered = sorted((float(temperature) for temperature in temperatures), reverse=True)
        return Sharpening(ordered, float(alpha), max_iter=self.max_iter, tol=float(self.tol))

    def _fit_setting(self, ranking: Ranking, setting: Setting) -> tuple[Array, list[float]]:
        """Return the coefficients of a setting, and the objective on the way to them."""
        start = _start(ranking, setting)
        if setting.alpha is None:
            return start, []
        above = [temperature for temperature in self.temperature if temperature >= (setting.temperature or 0.0)]
        sharpening = self._sharpening(setting.alpha, above)
        return list(sharpening.path(ranking, start))[-1].z, sharpening.curve

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probabilities of both classes.

        They are fitted to the scores of the rows that the folds leave out, by Platt scaling.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The features.

        Returns
        -------
        ndarray of shape (n_samples, 2)
            The probabilities, in the order of ``classes_``.
        """
        return self._probabilities(X)

    def predict_log_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the logarithms of the probabilities of :meth:`predict_proba`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The features.

        Returns
        -------
        ndarray of shape (n_samples, 2)
            The logarithms, in the order of ``classes_``.
        """
        return self._log_probabilities(X)


def _start(ranking: Ranking, setting: Setting) -> Array:
    return push_start(ranking) if setting.C is None else logistic_start(ranking, setting.C)

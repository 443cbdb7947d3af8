"""A linear classifier that ranks: average precision."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold, check_cv
from sklearn.utils.metaestimators import available_if

from fcco._checks import whole_number
from fcco.compiled import PRECISION, compiling
from fcco.estimators._bipartite import BipartiteRanker, cut_between
from fcco.estimators._linear import RankSurrogate, Task, share_docs, store_parameters
from fcco.estimators._progress import Progress
from fcco.estimators._sharpen import (
    Ranking,
    Sharpening,
    Stage,
    best_stage,
    falling_temperatures,
    logistic_start,
    push_start,
)
from fcco.estimators._validation import Array, Method
from fcco.functional import average_precision_loss
from fcco.functional._checks import check_choice, check_number
from fcco.functional._surrogates import check_temperature

Start = Literal["logistic", "push", "auto"]
STARTS = get_args(Start)
_FOLDS = 5  # of the scores that probabilities are fitted to, with cv=None
_STANDARD_ERRORS = 2.0  # how clearly the rows that are left out must gain


def calibrate(scores: Array, positive: Array, weight: Array) -> LogisticRegression:
    """Return a logistic regression of the class on scores of rows that had no part in the fit (Platt scaling).

    As in Platt's method, the classes are not quite 0 and 1, so that classes without an overlap have a finite slope.
    Probabilities never fall as scores rise: scores that rank new rows worse than chance get a slope of 0.
    """
    centre = np.average(scores, weights=weight)
    unit = np.sqrt(np.average(np.square(scores - centre), weights=weight)) or 1.0
    sides = weight[positive].sum(), weight[~positive].sum()
    target = np.where(positive, (sides[0] + 1) / (sides[0] + 2), 1 / (sides[1] + 2))
    parts = np.concatenate([weight * target, weight * (1 - target)])
    z, labels = np.tile((scores - centre) / unit, 2)[:, np.newaxis], np.arange(2 * len(scores)) < len(scores)
    model = LogisticRegression(C=np.inf).fit(z, labels, sample_weight=parts)
    if model.coef_[0, 0] < 0.0:
        model.coef_[:], model.intercept_[:] = 0.0, np.log(parts[labels].sum() / parts[~labels].sum())
    model.coef_ /= unit
    model.intercept_ -= centre * model.coef_[0]
    return model


class Setting(NamedTuple):
    """One choice: a start (C of logistic regression, or None for the push) and how it is sharpened, if at all."""

    C: float | None
    alpha: float | None = None
    temperature: float | None = None


@dataclass(frozen=True)
class Fold:
    """Training data, and rows that are left out."""

    ranking: Ranking
    x: Any
    positive: Array
    weight: Array

    def scores(self, z: Array) -> Array:
        """Return the scores of the rows that are left out."""
        return self.x @ self.ranking.x.coefficients(z)

    def average_precision(self, z: Array) -> float:
        """Return the average precision of the rows that are left out."""
        return float(average_precision_score(self.positive, self.scores(z), sample_weight=self.weight))


Results = dict[Setting, list[float]]


def choose(results: Results, start: Setting, standard_errors: float) -> Setting:
    """Return the best setting, or the start if nothing is better by so many standard errors over the folds."""
    best = max(results, key=lambda setting: mean(results[setting]))
    gain = np.subtract(results[best], results[start])
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return best if gain.mean() > standard_errors * error else start


def mean(scores: list[float]) -> float:
    """Return the mean over the folds."""
    return float(np.mean(scores))


def as_table(results: Results) -> dict[str, Array]:
    """Return the results as columns, in the form of scikit-learn's searches."""
    columns = {name: np.array([getattr(setting, name) for setting in results], float) for name in Setting._fields}
    scores = np.array(list(results.values()))
    splits = {f"split{k}_test_score": scores[:, k] for k in range(scores.shape[1])}
    return {**columns, "mean_test_score": scores.mean(1), "std_test_score": scores.std(1), **splits}


def calibrate_on(folds: list[Fold], coefficients: list[Array]) -> LogisticRegression:
    """Return probabilities of scores above the threshold, fitted to the rows that each fold leaves out."""
    scores = []
    for fold, z in zip(folds, coefficients, strict=True):
        known = fold.ranking.x.scores(z) + fold.ranking.x.offset(z)
        scores.append(fold.scores(z) - cut_between(known, fold.ranking.positive, fold.ranking.weight))
    labels, weights = (np.concatenate([getattr(fold, name) for fold in folds]) for name in ("positive", "weight"))
    return calibrate(np.concatenate(scores), labels, weights)


class PrecisionRanker(BipartiteRanker):
    """Base of the rankers by average precision: their score, and probabilities of the classes."""

    _calibration: LogisticRegression | None

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Return :func:`sklearn.metrics.average_precision_score` of the scores.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), optional
            How often each row counts.

        Returns
        -------
        float

        Raises
        ------
        ValueError
            If y has a class that the fit did not have, or if a weight is invalid.
        """
        positive, scores, weight = self._ranked(X, y, sample_weight)
        return float(average_precision_score(positive, scores, sample_weight=weight))

    def _folds(self, x: Any, positive: Array, weight: Array | None, cv: Any) -> list[Fold]:
        weights, folds = np.ones(len(positive)) if weight is None else weight, []
        for learn, rest in self._splitter(positive, cv).split(np.zeros((len(positive), 1)), positive):
            if len(bad := np.setdiff1d(np.concatenate([learn, rest]), np.arange(len(positive)))):
                raise ValueError(
                    f"cv must have rows in [0, {len(positive)}); got {bad[0]}. Rows of weight 0 are left out before "
                    "the folds are made: leave them out of X, y and cv"
                )
            if not (0 < positive[learn].sum() < len(learn) and positive[rest].any()):
                raise ValueError("every fold of cv must have rows of both classes; use stratified folds, or fewer")
            ranking = Ranking.of(x[learn], positive[learn], None if weight is None else weight[learn])
            folds.append(Fold(ranking, x[rest], positive[rest], weights[rest]))
        if not folds:
            raise ValueError("cv must have at least one fold; an iterator is used up after one fit: give a list")
        return folds

    def _splitter(self, positive: Array, cv: Any) -> Any:
        """Return the folds; no more of them than the smaller class has rows."""
        if not isinstance(cv, Integral):
            return check_cv(cv, positive, classifier=True)
        if (fewest := fewest_of_a_class(positive)) < 2:
            raise ValueError(f"cross-validation needs at least 2 rows of each class; y has {fewest} of one")
        return StratifiedKFold(min(int(cv), fewest), shuffle=True, random_state=self.random_state)

    def _log_probabilities(self, X: Any) -> Array:  # noqa: N803
        with np.errstate(divide="ignore"):  # a probability of 0
            return np.log(self._probabilities(X))

    def _probabilities(self, X: Any) -> Array:  # noqa: N803
        scores = self.score_samples(X)
        if self._calibration is None:
            raise NotFittedError("predict_proba needs probability=True at the fit; call fit again")
        found = self._calibration.predict_proba(scores[:, np.newaxis])
        return found if self._last_is_positive else found[:, ::-1]


def _at(stage: Stage, path: list[Stage]) -> Array:
    """Return the coefficients of a path at the temperature of a stage; those of its start if it ended there."""
    return next((other.z for other in path if other.temperature == stage.temperature), path[0].z)


def fewest_of_a_class(positive: Array) -> int:
    """Return the number of rows of the smaller class."""
    return int(min(positive.sum(), (~positive).sum()))


def _has_probabilities(model: Any) -> bool:
    if not model.probability:
        raise AttributeError("predict_proba needs probability=True at the fit")
    return True


@share_docs
class AveragePrecisionClassifier(PrecisionRanker):
    r"""Linear ranker that raises the average precision of logistic regression.

    .. math:: \min_w -\frac{1}{n_+} \sum_{i \in S_+} \frac{\sum_{j \in S_+} \ell((h_j - h_i) / \tau)}
        {\sum_{j \in S} \ell((h_j - h_i) / \tau)} + \frac{\alpha}{2} \sum_k \sigma_k^2 (w_k - w^0_k)^2,
        \qquad h = X w

    The fit begins at w⁰, the coefficients of logistic regression or of the p-norm push. It lowers the temperature τ
    step by step, from about 1/4. As τ falls, the objective tends to average precision itself. Rows that are left out
    decide where the fit ends: it is repeated on folds, and ends at the temperature with the highest average precision
    of the rows that the folds leave out. If that is not above the start's by two standard errors of the difference over
    the folds, or if a class has fewer rows than there are folds, the fit ends at the start. With ``cv=None`` it ends
    with the coefficients that rank the training data best, among those of the start and of every temperature.

    Temperatures and the penalty are in units in which every feature and the scores of the start have a standard
    deviation of 1. A feature that is mostly 0 is measured by the root mean square of its other values instead. The
    penalty draws the coefficients to the start, so a large alpha leaves the start as it is.
    :class:`AveragePrecisionClassifierCV` chooses C and alpha by cross-validation too. Use it unless you know these
    values.

    Only the order of scores is learnt. ``decision_function`` is X w + ``intercept_``, as in scikit-learn, where the
    intercept is the threshold of ``predict``. It is set after training, so that as many training rows are predicted
    positive as there are. There are no class weights: the objective is of the ranking, whatever the balance.

    With ``sample_weight`` a row counts in all sums as often as its weight says, its own term included. This is as in
    scikit-learn's average precision, and only the ratios of weights matter to the objective. With the ramp and the
    sigmoid, a weight of 2 is therefore not exactly the same as the row twice. Two copies are a tie, in which each
    counts itself by 1 and the other by ℓ(0) = 1/2. A row of weight 2 counts itself by 2.

    {the methods}

    An iteration of method="exact" costs O(n log n + n d) with the ramp and the hinges, and O(n₊ n) with "logistic" and
    "sigmoid". The stochastic methods begin at the start too, and go on at the last temperature.
    ``python benchmarks/estimators.py --only average-precision`` compares the methods.

    Parameters
    ----------
    surrogate : {"ramp", "sigmoid", "squared_hinge", "hinge", "logistic"}, default="ramp"
        The function ℓ. Only the bounded ones, "ramp" and "sigmoid", tend to average precision.
    margin : float, default=1.0
        Margin of the hinges.
    temperature : float, default=0.0625
        The last temperature τ, in units of the deviation of the start's scores.
    start : {"logistic", "push", "auto"}, default="logistic"
        Where the fit begins: at logistic regression, at the p-norm push, or at whichever of the two ranks the training
        data better.
    C : float, default=1.0
        Inverse of the penalty of logistic regression as a start, as in scikit-learn, on standardised features.
    pos_label : object, default=None
        The class that is to be ranked first. By default it is the last in sorted order, ``classes_[1]``, as in
        scikit-learn, and the fit warns if that class has more than half of the rows. Pass it to be sure. Rank rows by
        ``score_samples``: ``decision_function`` rises with ``classes_[1]`` whatever ``pos_label`` is.
    cv : int, cross-validation generator, iterable or None, default=5
        The folds that decide whether the start is left, as in scikit-learn; an int makes stratified folds of shuffled
        rows. The fit takes as many times longer. None leaves no rows out, for the plain minimiser of the objective.
    probability : bool, default=False
        Whether to enable ``predict_proba``. It fits probabilities to the scores of the rows that the folds leave out;
        with ``cv=None`` there are five folds for this.
    outer_batch : int, default=32
        Positives of a batch.
    inner_batch : int, default=32
        Negatives of a batch.
    method : {"exact", "bsgd", "soap", "moap", "sox"}, default="exact"
        L-BFGS on the exact objective, or the update rule of stochastic steps; see :data:`fcco.METHODS`.
    alpha : float, default=3.0
        Weight of the penalty that draws the coefficients to the start. The start is never left if alpha is large.
    learning_rate : float or "auto", default="auto"
        Step size of the stochastic methods, in units of each feature's deviation. "auto" takes the power of 4, from 16
        down, that comes furthest in a trial of 300 steps. Before the fit ends, it tries larger ones again.
    gamma : float, default=0.7
        Rate of the table's moving average, in (0, 1].
    beta : float, default=0.1
        Rate of the gradient's moving average, in (0, 1].
    max_iter : int, default=100
        Largest number of iterations at each temperature, or of passes over the data.
    tol : float, default=1e-5
        Smallest improvement of the objective that counts, relative to its size. With 0 the fit never stops early.
    n_iter_no_change : int, default=5
        Number of iterations without an improvement that end a temperature, or the passes.
    warm_start : bool, default=False
        Whether the coefficients of the last fit are the start, if they rank the training data better. The folds begin
        without them.
    random_state : int, RandomState or None, default=None
        Seed of the batches and of the folds.
    verbose : int or bool, default=0
        Whether to show a progress bar with the objective at each temperature, as ``loss_curve_`` has it, and to print
        how long anything took to compile.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features)
        The coefficients w of :meth:`decision_function`, which rises with ``classes_[1]``.
    intercept_ : ndarray of shape (1,)
        Set so that ``predict`` marks as many training rows as positive as there are.
    classes_ : ndarray of shape (2,)
    pos_label_ : object
        The positive class, one of ``classes_``.
    temperature_ : float or None
        The temperature that the coefficients belong to; None if the fit remains at the start.
    path_ : list of tuple
        The temperatures and the average precision of the training data after each; the start comes first.
    cv_results_ : dict of ndarray or None
        The average precision of the rows that the folds leave out, at the start and at each temperature, in the form of
        :class:`AveragePrecisionClassifierCV`; None if the folds decided nothing.
    loss_curve_ : list of float
        The objective, with its penalty, after each iteration. It rises where the temperature falls. With a stochastic
        method and "logistic" or "sigmoid", it is the objective of a sample of each class, the same rows throughout the
        fit: 500 rows, or more if a pass is long.
    {shared attributes}

    References
    ----------
    Qi et al., *Stochastic Optimization of Areas Under Precision-Recall Curves with Provable Convergence*, NeurIPS 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ranker = AveragePrecisionClassifier(pos_label=0).fit(X, y)  # malignant first
    >>> bool(ranker.score(X, y) > 0.99)  # scikit-learn's average precision
    True
    """

    _weighted_methods = ("exact",)

    def __init__(
        self,
        surrogate: RankSurrogate = "ramp",
        margin: float = 1.0,
        *,
        temperature: float = 0.0625,
        start: Start = "logistic",
        C: float = 1.0,  # noqa: N803
        pos_label: Any = None,
        cv: Any = 5,
        probability: bool = False,
        method: Method = "exact",
        alpha: float = 3.0,
        learning_rate: float | Literal["auto"] = "auto",
        gamma: float = 0.7,
        beta: float = 0.1,
        outer_batch: int = 32,
        inner_batch: int = 32,
        max_iter: int = 100,
        tol: float = 1e-5,
        n_iter_no_change: int = 5,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int | bool = 0,
    ) -> None:
        store_parameters(self, locals())

    temperature: float
    start: Start
    C: float
    cv: Any
    probability: bool

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number(self.margin, "margin", above=0.0)
        check_choice(self.surrogate, "surrogate", get_args(RankSurrogate))
        check_temperature(self.temperature)
        check_choice(self.start, "start", STARTS)
        check_number(self.C, "C", above=0.0)
        if isinstance(self.cv, Integral):
            whole_number("cv", self.cv, 2)

    def _learn(self, x: Any, positive: Array, weight: Array | None) -> None:
        fewest = fewest_of_a_class(positive)
        if self.probability and fewest < 2:
            raise ValueError(f"probability=True needs at least 2 rows of each class; got {fewest} of one")
        decides = self.cv is not None and fewest >= (self.cv if isinstance(self.cv, Integral) else 2)
        folds: list[Fold] = []
        if decides or self.probability:
            folds = self._folds(x, positive, weight, _FOLDS if self.cv is None else self.cv)
        part = type(self)(**{**self.get_params(), "cv": None, "warm_start": False, "verbose": 0})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the fit of all rows warns
            paths = [part._stages(fold.ranking) for fold in folds]
        ranking = Ranking.of(x, positive, weight)
        stages = self._stages(ranking)
        best, self.cv_results_ = stages[0], None
        if self.cv is None:
            best = best_stage(stages)
        elif decides:
            pairs = list(zip(folds, paths, strict=True))
            results = {
                self._setting(stage): [fold.average_precision(_at(stage, path)) for fold, path in pairs]
                for stage in stages
            }
            chosen = choose(results, next(iter(results)), _STANDARD_ERRORS)
            best, self.cv_results_ = stages[list(results).index(chosen)], as_table(results)
        self.temperature_ = best.temperature
        self.path_ = [(stage.temperature, stage.average_precision) for stage in stages]
        self.coef_ = ranking.x.coefficients(best.z).astype(x.dtype)
        self.n_iter_ = max(1, len(self.loss_curve_))
        ends = [best_stage(path).z if self.cv is None else _at(best, path) for path in paths]
        self._calibration = calibrate_on(folds, ends) if self.probability else None

    def _stages(self, ranking: Ranking) -> list[Stage]:
        """Return the start, and the coefficients after each temperature."""
        start = self._begin(ranking)
        if self.method != "exact":
            return self._descend(ranking, start)
        sharpening = self._sharpening(falling_temperatures(self.temperature))
        stages, self.loss_curve_ = list(sharpening.path(ranking, start)), sharpening.curve
        return stages

    def _setting(self, stage: Stage) -> Setting:
        sharpened = stage.temperature is not None
        return Setting(None if self.start == "push" else self.C, self.alpha if sharpened else None, stage.temperature)

    def _begin(self, ranking: Ranking) -> Array:
        """Return the start that ranks the training data best."""
        starts = []
        if self.start in ("auto", "logistic"):
            starts.append(logistic_start(ranking, self.C))
        if self.start in ("auto", "push"):
            starts.append(push_start(ranking))
        if self.warm_start and hasattr(self, "coef_"):
            starts.insert(0, ranking.x.standard(self.coef_.ravel().astype(np.float64)))
        return max(starts, key=ranking.average_precision)

    def _sharpening(self, temperatures: list[float]) -> Sharpening:
        return Sharpening(
            temperatures,
            float(self.alpha),
            max_iter=self.max_iter,
            surrogate=self.surrogate,
            margin=float(self.margin),
            tol=float(self.tol),
            n_iter_no_change=self.n_iter_no_change,
            verbose=self.verbose,
            name=type(self).__name__,
        )

    def _descend(self, ranking: Ranking, start: Array) -> list[Stage]:
        """Return the start, and the coefficients after passes of a stochastic method at the last temperature."""
        stages = [Stage(None, start, ranking.average_precision(start))]
        deviation, self.loss_curve_ = ranking.deviation(start), []
        if not deviation > 0.0:
            return stages
        progress = Progress.of(self, type(self).__name__, float(self.tol))
        with compiling(progress.name, self.verbose), progress:
            task = self._task(ranking, start / deviation)
            z = start + deviation * self._minimise(task, np.zeros(len(start)), progress)
        self.loss_curve_ = progress.curve
        return [*stages, Stage(self.temperature, z, ranking.average_precision(z))]

    def _task(self, ranking: Ranking, start: Array) -> Task:
        """Return the objective of a change from the start, with scores in units of the temperature."""
        first, second = np.flatnonzero(ranking.positive), np.flatnonzero(~ranking.positive)
        plan = self._plan(PRECISION, first, second, sign=1.0, outer="share", dim=2, counts_itself=True)
        watched = self._watch(plan)
        target = torch.tensor(ranking.positive if watched is None else ranking.positive[watched])
        objective = partial(average_precision_loss, target=target, surrogate=self.surrogate, margin=self.margin)
        x, base = ranking.x.data / self.temperature, ranking.x.scores(start) / self.temperature
        return Task(x, plan, objective, watched=watched, base=base)

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probabilities of both classes; this needs ``probability=True``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The features.

        Returns
        -------
        ndarray of shape (n_samples, 2)
            The probabilities, in the order of ``classes_``.

        Raises
        ------
        AttributeError
            If ``probability`` is False.
        NotFittedError
            If it was False at the fit.
        """
        return self._probabilities(X)

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
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

"""Neighbourhood components analysis of any number of rows, in scikit-learn's form."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fcco._checks import whole_number
from fcco.compiled import compiling
from fcco.estimators._nca_exact import FEW, PASSES, choose_start, minimise, settling, share_out, stalls
from fcco.estimators._nca_fit import Fit, spread_of
from fcco.estimators._nca_init import INITS, Init, begin, check_start
from fcco.estimators._nca_start import LARGER, come_near
from fcco.estimators._progress import LossCurveMixin, Stall, warn_user
from fcco.estimators._validation import (
    METHODS,
    Array,
    Method,
    check_parameters,
    refuse_huge,
    refuse_weights,
    show_weights_where_taken,
)
from fcco.functional._checks import check_choice, check_number

_STEPS = (1.0, 0.1, 0.01, 0.001)  # tried by learning_rate="auto", in units of the largest
_WORSE = 1e-3  # relative to the objective at the start
_FLAT = 1e6  # mean squared distance that no descent reaches by itself
_GAP = 0.1  # between the objective and what batches take it for
_NEAR = 1e-2  # length of the first step from near a solution, relative to its norm; from elsewhere 1
_STALLS = 2  # the first divides the step by 10, the second ends the fit


class NeighborhoodComponentsAnalysis(
    LossCurveMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    r"""Neighbourhood components analysis whose memory does not grow with the square of the data.

    .. math:: \min_A F = -\frac 1 n \sum_i p_i + \frac \alpha 2 |A|^2, \qquad
        p_i = \frac{\sum_{j \ne i, y_j = y_i} e^{-|A x_i - A x_j|^2}}{\sum_{j \ne i} e^{-|A x_i - A x_j|^2}}

    A drop-in for ``sklearn.neighbors.NeighborhoodComponentsAnalysis``, which keeps all pairs of rows in memory.

    The default is one method for any number of rows. It begins with steps like Adam's. Each step follows the gradient
    of 128 rows, the anchors, against 16,384 other rows drawn anew, or against all rows if there are fewer. (With more
    than 195 features it draws fewer, but at least 4,096.) The memory is that of a batch, and the time of a step stops
    growing at this number of rows. Above 4,000 rows, these steps end at A, 1.5 A or 2.25 A, whichever is best, because
    they change the size of A most slowly.

    L-BFGS on all pairs follows, with O(n²) time for an iteration and O(n) memory. Its iterations may compare 8e8 pairs
    in all. Up to 4,000 rows that allows for 47 of 50 iterations, at 10,000 rows for 8, at 28,000 for one, and above for
    none. Up to 500 rows, where it is cheap, L-BFGS is run from several starts, and the best is kept.
    ``method="exact"`` gives L-BFGS all iterations but three at any n.

    Sums over pairs are worked out by PyTorch, on as many threads as it has (:func:`torch.set_num_threads`), but no more
    than eight. The result does not depend on the number of threads, to the last bit. Nothing is compiled.

    The methods "sox", "soap", "moap" and "bsgd" work on mini-batches, as in the paper. Each compares a batch of rows
    with itself, and all but "bsgd" also keep a table with a running sum for every row. They take O(batch_size²) memory
    and one thread, and are compiled at the first fit. On training data they end far from the optimum.

    For these four, the rows come in random order, each once in a pass. In a batch, a row's rows of the same class stand
    for all such rows of the training set, and its other rows stand for all other rows: the sums over them are scaled to
    the numbers in the training set. If a batch would hold fewer than four rows of a class on average, rows are shuffled
    in groups of four or more of a class. A row that is the only one of its class in a batch waits for the next pass.

    Parameters
    ----------
    n_components : int or None
        Number of rows of A. None stands for the number of features.
    init : {"auto", "pca", "lda", "identity", "random"} or array [n_components, n_features]
        Where A starts, as in scikit-learn. Unless it is an array, it is scaled so that the mean squared distance of two
        rows is 4. The objective is flat if rows are much farther apart, because only the nearest neighbour counts, and
        if they are much closer, because all count alike. If no feature varies, A stays the identity.
    warm_start : bool
        Whether to start from the last solution. "auto" and "exact" then begin with L-BFGS, and take at least one
        iteration of it. The other methods take the smallest of the steps of learning_rate="auto", to stay near the last
        solution.
    max_iter : int
        Largest number of iterations. With "auto" and "exact", an iteration is one of L-BFGS, or 50 steps on anchors.
        Above 500 rows, at least three iterations and at most 0.6 of them are steps on anchors. With the methods on
        mini-batches, an iteration is a pass over the rows, or as many passes as make up 50 steps.
    tol : float
        Smallest improvement of ``loss_curve_`` that counts, relative to its size. A fit by "auto" or "exact" ends when
        ``n_iter_no_change`` iterations of L-BFGS bring no such improvement, or when F is within ``tol`` of -1, which is
        its lower bound. A fit on mini-batches divides its step by ten when ``n_iter_no_change`` iterations bring no
        improvement, and ends when this happens again. With 0 the fit never stops early.

        A fit that uses up its iterations or its time warns, with two exceptions for "auto" and "exact". It does not
        warn if one of the last ``n_iter_no_change`` iterations of L-BFGS improved F by ``tol`` or less, which is where
        scikit-learn would have stopped. It does not warn either if the last ``n_iter_no_change`` iterations did so on
        average. Every fit warns if it ends worse than it began, or with rows so far apart that the objective is flat. A
        fit on mini-batches warns if these are off the objective by more than 0.1, because they are then too small for
        the number of classes.
    callback : callable or None
        A function that is called after each iteration, with A as a flat array and the number of iterations.
    verbose : int
        Whether to show a progress bar with the objective, as ``loss_curve_`` has it. scikit-learn prints a line for
        each iteration instead, with the sum of all p_i. How long anything took to compile is printed too.
    random_state : int, RandomState or None
        Seed of the order of rows, and of a random start.
    method : {"auto", "exact", "sox", "soap", "moap", "bsgd"}
        "auto" and "exact" are described above. The others work on mini-batches, and differ in how the table is updated:
        see :class:`fcco.SOX` and its siblings. "bsgd" has no table. If ``learning_rate`` is a number, "auto" is "sox".
    gamma : float
        Rate of the table's moving average, in (0, 1]. This, ``beta`` and ``batch_size`` are for mini-batches.
    beta : float
        Rate of the gradient's moving average, in (0, 1].
    batch_size : int
        Number of rows in a batch, at least 3. If there are fewer rows, a batch holds all of them.
    learning_rate : "auto" or float
        Step size of the methods on mini-batches. It falls to 0 by half a cosine.

        With a number, a step moves A by ``learning_rate`` times v. Here v is the gradient's moving average, as in
        :class:`fcco.optim.MovingAverageSGD`.

        With "auto", each entry of v is divided by the root mean square of its past gradients, as in Adam, and each
        column by the deviation of its feature, so that units do not matter. The largest step of an entry is
        min(0.3, 3 / √n_features) times the root mean square of the entries of the start, in the same units. A start
        whose mean squared distance is below 4 counts as if it were scaled up to 4. A trial of 50 steps chooses between
        this step, a tenth, a hundredth and a thousandth of it.
    alpha : float
        Weight of the penalty.
    n_iter_no_change : int
        Number of iterations without an improvement that end the fit; see ``tol``.
    max_time : float or None
        Number of seconds, counted from the start of ``fit``, after which no further iteration begins. The best A so far
        is kept. The result then depends on how fast the machine is. None stands for no limit.

    Attributes
    ----------
    components_ : array [n_components, n_features]
        The map A.
    n_features_in_ : int
    feature_names_in_ : array [n_features_in_]
        Names of the features, if X has them.
    n_iter_ : int
        Number of iterations.
    random_state_ : RandomState
    loss_curve_ : list of float
        The objective after each iteration. After an iteration of L-BFGS it is exact. After others it is the mean of the
        exact p_i over at most 500 rows, which are drawn once at random. With more rows than that it is an estimate of
        F, with a standard error of at most 0.02.

    Notes
    -----
    10,001 rows mapped to 8 dimensions: seconds of processor time on a busy machine, mean p_i on training data, and
    accuracy of 3 nearest neighbours on test data, by ``FCCO_DATA=... python benchmarks/nca.py --only auto elsewhere``.

    ===================================  ====================  ====================
    rows                                 "exact"               "auto"
    ===================================  ====================  ====================
    MNIST, 16 components, the first      37.6 s, .935, .907    13.0 s, .935, .909
    MNIST, 16 components, others         33.2 s, .933, .909    11.7 s, .928, .907
    covtype, 10 features                 41.1 s, .849, .824    14.1 s, .842, .821
    ===================================  ====================  ====================

    These are single runs. On training data "auto" thus ends below "exact", by up to .007 here, in about a third of the
    time. Some of its settings were chosen on the first rows of MNIST, none on the other two sets.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> nca = NeighborhoodComponentsAnalysis(n_components=2, max_iter=100, random_state=0).fit(x, y)
    >>> nca.transform(x).shape
    (150, 2)
    >>> nca.loss_curve_[-1] < -0.99
    True

    References
    ----------
    Goldberger et al., *Neighbourhood Components Analysis*, NIPS 2004; Wang and Yang, *Finite-Sum Coupled Compositional
    Stochastic Optimization*, ICML 2022.
    """

    components_: Array
    n_iter_: int
    _weighted_methods = ()

    def __init__(
        self,
        n_components: int | None = None,
        *,
        init: Init | Array | Sequence[Sequence[float]] = "auto",
        warm_start: bool = False,
        max_iter: int = 50,
        tol: float = 1e-4,
        callback: Callable[[Array, int], object] | None = None,
        verbose: int = 0,
        random_state: Any = None,
        method: Literal["auto"] | Method = "auto",
        gamma: float = 0.9,
        beta: float = 0.1,
        batch_size: int = 256,
        learning_rate: float | Literal["auto"] = "auto",
        alpha: float = 0.0,
        n_iter_no_change: int = 10,
        max_time: float | None = None,
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.warm_start = warm_start
        self.max_iter = max_iter
        self.tol = tol
        self.callback = callback
        self.verbose = verbose
        self.random_state = random_state
        self.method = method
        self.gamma = gamma
        self.beta = beta
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.alpha = alpha
        self.n_iter_no_change = n_iter_no_change
        self.max_time = max_time

    @show_weights_where_taken
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NeighborhoodComponentsAnalysis:  # noqa: N803
        """Learn A.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The features, of at least two rows.
        y : array-like of shape (n_samples,)
            The class of each row.
        sample_weight : None
            Not supported.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter, X or y is invalid.
        TypeError
            If ``sample_weight`` is given, or if a parameter has the wrong type.
        """
        self._check_parameters()
        refuse_weights(self, sample_weight)
        self._check_resumed(X)
        x, y = validate_data(self, X, y, ensure_min_samples=2, dtype=(np.float64, np.float32), order="C")
        check_classification_targets(y)
        refuse_huge(x)
        label = np.unique(y, return_inverse=True)[1].astype(np.int64)
        init = check_start(self.n_components, self.init, x.shape[1])
        self.random_state_ = check_random_state(self.random_state)
        self._fit_began = time.perf_counter()
        resumed = self.warm_start and hasattr(self, "components_")
        start = self.components_ if resumed else begin(self, x, label, init)
        fit, name = Fit(self, x, label, start, self.random_state_), type(self).__name__
        with compiling(name, self.verbose), fit.bar:
            settled = self._descend(fit, resumed)
        self.components_ = fit.run.a
        for doubt in self._doubts(fit, settled):
            warn_user(f"[{name}] NCA did not converge: {doubt}")
        return self

    def transform(self, X: Any) -> Array:  # noqa: N803 (scikit-learn's)
        """Return A x for every row x of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The features.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            The rows, mapped by A.
        """
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, dtype=(np.float64, np.float32))
        return x @ self.components_.T

    def _descend(self, fit: Fit, resumed: bool) -> bool:
        """Iterate until the objective settles, or max_iter times; whether it settled."""
        self.loss_curve_, self.n_iter_ = [], 0
        if self._compares_pairs():
            return self._iterate_pairs(fit, resumed)
        fit.choose_step(_STEPS[-1:] if resumed else _STEPS)
        return self._iterate(fit)

    def _compares_pairs(self) -> bool:
        return self.method == "exact" or (self.method == "auto" and self.learning_rate == "auto")

    def _iterate_pairs(self, fit: Fit, resumed: bool) -> bool:
        n, settles, settled = len(fit.rows.label), settling(self), False

        def note(value: float, a: Array) -> bool:
            nonlocal settled
            self._record(fit, value, a)
            settled = settles(value)
            return settled or self._is_late()

        def note_start(value: float, a: Array) -> bool:
            self._record(fit, value, a)
            return self._is_late()

        sampled, full = share_out(n, self.max_iter, exact=self.method == "exact")
        # Few iterations end far from where the last digits of the gradient matter, but begin near a solution.
        few = full < self.max_iter - PASSES and n > FEW
        if resumed:
            start, full = fit.start, max(full, 1)
        elif n <= FEW:
            start, full = choose_start(fit, self.max_iter), self.max_iter
        else:
            start = come_near(fit, sampled, note_start, LARGER if few else (1.0,))
        fit.run.a[:], planned = start, self.n_iter_ + full
        if self.n_iter_ and (full == 0 or self._is_late()):
            return self._is_slow() or self.tol == 0
        reach, kind = (_NEAR if resumed or few else 1.0), (fit.rough if few else None)
        value, fit.run.a[:] = minimise(fit, start, full, note, reach, kind)
        fit.check_finite(value, self.n_iter_ + 1)
        if not self.loss_curve_:  # it began at an optimum
            self._record(fit, value, fit.run.a)
            return True
        # Where it ends by itself, no step along the gradient lowers the objective.
        ended_itself = self.n_iter_ < planned and not self._is_late()
        return settled or ended_itself or self._pauses(planned - full) or self._is_slow() or self.tol == 0

    def _pauses(self, begin: int) -> bool:
        """Whether one of the last iterations, of those since ``begin``, gained tol or less: scikit-learn would end."""
        curve = np.array(self.loss_curve_[begin:][-1 - self.n_iter_no_change :])
        return bool((curve[:-1] - curve[1:] <= self.tol * np.abs(curve[1:])).any())

    def _is_slow(self) -> bool:
        """Whether the last iterations gained less than tol each, on average."""
        curve, patience = self.loss_curve_, self.n_iter_no_change
        return len(curve) > patience and curve[-1 - patience] - curve[-1] <= patience * self.tol * abs(curve[-1])

    def _is_late(self) -> bool:
        return self.max_time is not None and time.perf_counter() - self._fit_began >= self.max_time

    def _iterate(self, fit: Fit) -> bool:
        stall, count = Stall(self.n_iter_no_change), 0
        while self.n_iter_ < self.max_iter:
            value = fit.iterate(self.n_iter_, self.max_iter, count)
            self._record(fit, value, fit.run.a)
            if stalls(stall, value, self.tol):
                count += 1
                if count == _STALLS:
                    return True
            if self._is_late():
                break
        return self.tol == 0

    def _record(self, fit: Fit, value: float, a: Array) -> None:
        self.n_iter_ += 1
        self.loss_curve_.append(value)
        fit.bar.show(value)
        if self.callback is not None:
            self.callback(a.ravel().copy(), self.n_iter_)

    def _doubts(self, fit: Fit, settled: bool) -> list[str]:
        """What speaks against the solution."""
        value, first, doubts = fit.objective(fit.run.a), fit.at_start, []
        if not settled:
            limit = f"max_time={self.max_time} s" if self._is_late() else self._planned()
            doubts.append(f"the objective had not settled to within tol={self.tol} in {limit}")
        if value > first + _WORSE * max(abs(first), 1e-12):
            doubts.append(f"it ended at {value:.4g}, worse than it began, at {first:.4g}: {self._way_out()}")
        spread = spread_of(fit.rows.x[fit.anchors], fit.run.a)
        if spread > _FLAT:
            doubts.append(
                f"rows are {np.sqrt(spread):.1g} apart, where only the nearest counts and the objective is flat: "
                f"{self._way_out()}"
            )
        if fit.per_pass > 1 and not self._compares_pairs() and not abs(fit.in_batches - value) <= _GAP:
            doubts.append(
                f"batches take the objective for {fit.in_batches:.3f}, where it is {value:.3f}: batch_size="
                f"{self.batch_size} is too small for {len(fit.rows.sizes)} classes of {len(fit.rows.label)} rows"
            )
        return doubts

    def _way_out(self) -> str:
        """What keeps the steps of this method from going too far."""
        stepwise = not self._compares_pairs() and self.learning_rate != "auto"
        ways = [f"lower learning_rate={self.learning_rate!r}" if stepwise else "set alpha=0.01, or a smaller max_iter"]
        if not isinstance(self.init, str):
            ways.append("scale init down")
        return ", or ".join(ways)

    def _planned(self) -> str:
        """The iterations that have been used up, and how to get more."""
        if self.n_iter_ == self.max_iter:
            return f"max_iter={self.max_iter} iterations"
        return f'the {self.n_iter_} iterations planned for so many rows; method="exact" takes max_iter={self.max_iter}'

    def _check_parameters(self) -> None:
        check_parameters(self, methods=("auto", *METHODS), batch_size=3)
        check_number(self.tol, "tol", at_least=0.0)
        if self.max_time is not None:
            check_number(self.max_time, "max_time", above=0.0)
        if self.n_components is not None:
            whole_number("n_components", self.n_components)
        if isinstance(self.init, str):
            check_choice(self.init, "init, if not an array,", INITS)
        if self.callback is not None and not callable(self.callback):
            raise ValueError(f"callback must be callable or None; got {self.callback!r}")

    def _check_resumed(self, X: Any) -> None:  # noqa: N803 (scikit-learn's)
        """Refuse to start from a solution of other features, before ``n_features_in_`` is set to theirs."""
        if not (self.warm_start and hasattr(self, "components_")):
            return
        shape = np.shape(X)
        if len(shape) == 2 and shape[1] != self.components_.shape[1]:
            raise ValueError(
                f"The new inputs dimensionality ({shape[1]}) does not match the input dimensionality of the "
                f"previously learned transformation ({self.components_.shape[1]})."
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.components_.shape[0]

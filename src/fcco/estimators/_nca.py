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

    The default is one method for any number of rows. It begins with steps like Adam's, each along the gradient of 128
    rows, the anchors, against 16,384 others drawn anew (of more than 195 features fewer, but at least 4,096), or
    against all rows if there are fewer. The memory is that of a batch, and above as many rows as that the time of a
    step no longer grows. Above 4,000 rows the last of these ends at A, 1.5 A or 2.25 A, whichever is best: the size of
    A is what such steps change most slowly. L-BFGS on all pairs follows, with O(n²) time an iteration and O(n) memory.
    Its iterations compare 8e8 pairs in all: up to 4,000 rows that allows for 47 of 50, at 10,000 rows for 8, at 28,000
    for one, and above for none. Up to 500 rows, where it is cheap, L-BFGS is run from several starts, and the best is
    kept. ``method="exact"`` gives L-BFGS all iterations but three at any n.

    Sums over pairs are worked out by PyTorch, on as many threads as it has (:func:`torch.set_num_threads`), but no more
    than eight. The result does not depend on the number of threads, to the last bit. Nothing is compiled.

    With "sox", "soap", "moap" or "bsgd", a batch of rows is compared with itself, and a table of the running sums of
    every row makes up for the rest, as in the paper: O(batch_size²) memory, on one thread, compiled at the first fit.
    On training data these end far below the optimum.

    For these four, rows of a batch come in random order, each once a pass. A batch's mates and strangers of a row stand
    for those of the training set, however many it has of each. Where a batch would hold fewer than four rows of a class
    on average, rows are shuffled in groups of four or more of a class; a row without a mate in its batch waits for the
    next pass.

    Parameters
    ----------
    n_components : int or None
        Rows of A; None: as many as there are features.
    init : {"auto", "pca", "lda", "identity", "random"} or array [n_components, n_features]
        Where A starts, as in scikit-learn. Unless it is an array, it is scaled to where the mean squared distance of
        two rows is 4: far apart, only the nearest neighbour counts, and close together all count alike; either way the
        objective is flat. Where no feature varies, A stays the identity.
    warm_start : bool
        Start from the last solution. "auto" and "exact" then begin with L-BFGS, of which there is at least one
        iteration. The other methods take the smallest of the steps of learning_rate="auto", to stay near it.
    max_iter : int
        Iterations at most. One is 50 steps on anchors, or an iteration of L-BFGS. At most 0.6 of them, and at least
        three, are steps on anchors. With the methods on mini-batches, one is a pass over the rows, or as many passes as
        make up 50 steps.
    tol : float
        Relative improvement of the tracked objective that counts. ``n_iter_no_change`` iterations of L-BFGS without one
        end the fit, as does an objective within tol of -1, below which there is none. On mini-batches they divide the
        step by ten, and as many again end the fit. 0: none of this. A fit that uses up its iterations or its time warns
        unless one of the last ``n_iter_no_change`` iterations of L-BFGS improved the objective by tol or less, which
        is where scikit-learn stops, or unless the last ``n_iter_no_change`` iterations did so on average; on
        mini-batches it always warns. A fit also warns if it ends worse than it began, with rows so far apart that
        the objective is flat, or if its mini-batches are off the objective by more than 0.1: they are too small for
        the number of classes.
    callback : callable or None
        Called after each iteration with A, flat, and the number of iterations.
    verbose : int
        Whether to show a progress bar with the objective, as ``loss_curve_`` has it; scikit-learn prints a line for
        each iteration, with the sum of all p_i. How long anything took to compile is printed too.
    random_state : int, RandomState or None
        Of the order of rows, and of a random start.
    method : {"auto", "exact", "sox", "soap", "moap", "bsgd"}
        "auto" and "exact": see above. The others are on mini-batches, by how the table is updated, see
        :class:`fcco.SOX` and its siblings; "bsgd" has none. If learning_rate is a number, "auto" is "sox".
    gamma : float
        Rate of the table's moving average, in (0, 1]. This, ``beta`` and ``batch_size`` are for mini-batches.
    beta : float
        Rate of the gradient's moving average, in (0, 1].
    batch_size : int
        Rows of a batch, at least 3; all of them if there are fewer.
    learning_rate : "auto" or float
        Of the methods on mini-batches. A number: A moves by learning_rate · v, where v is the gradient's moving
        average, as in :class:`fcco.optim.MovingAverageSGD`. "auto": v is divided entry by entry by the root mean square
        of past gradients, as in Adam, and each column by the deviation of its feature, so that units do not matter. An
        entry's step is at most min(0.3, 3 / √n_features) times the root mean square of the start's entries, in the same
        units, of an array as if it were scaled up to a mean squared distance of 4; that, a tenth, a hundredth or a
        thousandth of it, whichever does best in a trial of 50 steps. Either way the rate falls to 0 by half a cosine.
    alpha : float
        Weight of the penalty.
    n_iter_no_change : int
        See ``tol``.
    max_time : float or None
        Seconds after which no further iteration begins, counted from the start of ``fit``; the best A so far is kept.
        None: no limit. With a limit, the result depends on how fast the machine is.

    Attributes
    ----------
    components_ : array [n_components, n_features]
        A.
    n_features_in_ : int
    feature_names_in_ : array [n_features_in_]
        Where X has names.
    n_iter_ : int
        Iterations made.
    random_state_ : RandomState
    loss_curve_ : list of float
        The objective after each iteration. After one that is not of L-BFGS it is the mean of exact p_i, over all i or,
        where there are more than 500, over 500 drawn once at random: then an estimate of F, with a standard error of
        0.02 at most.

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

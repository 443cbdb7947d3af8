"""What the estimators check before a fit: parameters, features and sample weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import update_wrapper, wraps
from types import FunctionType
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array

from fcco._checks import check_rate, whole_number
from fcco.functional._checks import check_choice, check_number

Array = NDArray[Any]
Fit = TypeVar("Fit", bound=Callable[..., Any])

Method = Literal["exact", "bsgd", "soap", "moap", "sox"]
METHODS = get_args(Method)
_LARGEST = 1e150  # size of features whose squares do not overflow


def check_parameters(model: Any, *, methods: tuple[str, ...] = METHODS, **least: int) -> None:
    """Check the parameters that all estimators have.

    Parameters
    ----------
    model : estimator
    methods : tuple of str, default=METHODS
        The values that ``method`` may have.
    **least : int
        Names of further parameters that are whole numbers, and the least value of each.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    TypeError
        If a parameter is not a number.
    """
    check_choice(model.method, "method", methods)
    for name, bound in {"max_iter": 1, "n_iter_no_change": 1, **least}.items():
        whole_number(name, getattr(model, name), bound)
    for name in ("gamma", "beta"):
        check_rate(name, type(model).__name__, getattr(model, name), largest=1.0)
    check_number(model.alpha, "alpha", at_least=0.0)
    if isinstance(model.learning_rate, str):
        check_choice(model.learning_rate, "learning_rate, if not a number,", ("auto",))
    else:
        check_number(model.learning_rate, 'learning_rate, if not "auto",', above=0.0)


def refuse_sparse(X: Any, method: str) -> None:  # noqa: N803
    """Raise a TypeError if X is sparse, for a method that steps from row to row."""
    if sparse.issparse(X):
        raise TypeError(f'method={method!r} takes dense X only; got a sparse one: take method="exact", or X.toarray()')


def refuse_huge(x: Any) -> None:
    """Raise a ValueError if a feature is so large that its variance may overflow."""
    if (largest := max(float(x.max()), -float(x.min()))) > _LARGEST:
        raise ValueError(f"features must be at most {_LARGEST:g} in size; got {largest:g}: scale them down")


def refuse_other_features(X: Any, before: int) -> None:  # noqa: N803
    """Raise a ValueError if a warm start has X of other than the ``before`` features of the last fit.

    To be called before X is validated, which sets ``n_features_in_``: what was fitted is to stay as it was.
    """
    shape = np.shape(X)
    if len(shape) == 2 and shape[1] != before:
        raise ValueError(f"warm_start: X has {shape[1]} features, and the fit before had {before}")


def first_missing(values: Iterable[Any]) -> int | None:
    """The place of the first None, NaN, NaT or pandas.NA, or None.

    >>> first_missing(["a", float("nan")])
    1
    """
    return next((place for place, value in enumerate(values) if _is_missing(value)), None)


def refuse_mixed(name: str, labels: Array) -> None:
    """Raise a TypeError if labels cannot be sorted, as numbers next to strings."""
    kinds = sorted({type(label).__name__ for label in labels}) if labels.dtype == object else []
    try:
        if len(kinds) > 1:
            np.unique(labels)
    except TypeError:
        raise TypeError(
            f"{name} must be of one type, such as all strings; got {' and '.join(kinds)}: pass {name}.astype(str)"
        ) from None


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA is neither equal to itself nor unequal
        return True


def check_weights(sample_weight: Any, n: int) -> Array:
    """The weights of n rows, [n] in float64; None: 1 for each.

    Raises:
        ValueError: not one weight for each row; a weight that is negative or not finite; all of them zero.

    >>> check_weights([2, 0, 1], 3)
    array([2., 0., 1.])
    """
    if sample_weight is None:
        return np.ones(n)
    weight = check_array(sample_weight, ensure_2d=False, dtype=np.float64, ensure_all_finite=False)
    if weight.shape != (n,):
        raise ValueError(f"sample_weight must have one weight for each row, the shape ({n},); got {weight.shape}")
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0.0)))
    if len(bad):
        raise ValueError(
            f"sample_weight must be finite and at least 0; got {float(weight[bad[0]])} at position {bad[0]}"
        )
    if not weight.any():
        raise ValueError(f"sample_weight must be above 0 for some row; all {n} weights are zero")
    return weight


def refuse_weights(model: Any, sample_weight: Any) -> None:
    """Raise a TypeError if ``fit`` is given weights that the model's method cannot use."""
    methods = model._weighted_methods
    if sample_weight is None or model.method in methods:
        return
    place = f' with method={model.method!r}; use method="{methods[0]}"' if methods else ""
    raise TypeError(f"{type(model).__name__}.fit does not support sample_weight{place}")


def refuse_first(check: Callable[..., None]) -> Callable[[Fit], Fit]:
    """Call ``check`` with the arguments of a call before they are matched with the function's signature.

    It can then explain an argument that the function does not take. The signature stays as it is.
    """

    def decorate(function: Fit) -> Fit:
        @wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            check(*args, **options)
            return function(*args, **options)

        return cast(Fit, checked)

    return decorate


class _ShownWhereTaken:
    """A ``fit`` with ``sample_weight`` in its signature if the model's method is one of its ``_weighted_methods``."""

    def __init__(self, fit: FunctionType) -> None:
        self._shown = fit
        # A copy, as a function around it would be one more frame between a warning and the user's line.
        self._hidden = FunctionType(fit.__code__, fit.__globals__, closure=fit.__closure__)
        update_wrapper(self._hidden, fit)
        self._hidden.__defaults__, signature = fit.__defaults__, inspect.signature(fit)
        self._hidden.__kwdefaults__ = fit.__kwdefaults__
        rest = [parameter for name, parameter in signature.parameters.items() if name != "sample_weight"]
        self._hidden.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]

    def __get__(self, model: Any, owner: Any = None) -> Any:
        methods = (owner or type(model))._weighted_methods
        taken = bool(methods) if model is None else model.method in methods
        return (self._shown if taken else self._hidden).__get__(model, owner)


def show_weights_where_taken(fit: Fit) -> Fit:
    """Hide ``sample_weight`` from the signature of ``fit`` where :func:`refuse_weights` refuses it.

    scikit-learn goes by the signature: BaggingClassifier draws rows by their weights if it finds the parameter, and
    by their index elsewhere, and ``check_estimator`` checks the weights.
    """
    return cast(Fit, _ShownWhereTaken(cast(FunctionType, fit)))

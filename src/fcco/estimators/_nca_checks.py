"""Which parameters neighbourhood components analysis refuses."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING

import numpy as np

from fcco.estimators._kernels import RULES

if TYPE_CHECKING:
    from fcco.estimators._nca import NeighborhoodComponentsAnalysis

METHODS = ("auto", "exact", *sorted(RULES))
_INITS = ("auto", "pca", "lda", "identity", "random")


def check_parameters(model: NeighborhoodComponentsAnalysis) -> None:
    """Refuse what cannot be meant, before any state changes."""
    for name, least in (("n_components", 1), ("max_iter", 1), ("batch_size", 3), ("n_iter_no_change", 1)):
        value = getattr(model, name)
        if value is None and name == "n_components":
            continue
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
    for name in ("tol", "alpha"):
        value = getattr(model, name)
        if not isinstance(value, Real) or not 0 <= float(value) < np.inf:
            raise ValueError(f"{name} must be a number >= 0, got {value!r}")
    for name in ("gamma", "beta"):
        value = getattr(model, name)
        if not isinstance(value, Real) or not 0 < float(value) <= 1:
            raise ValueError(f"{name} must be a number in (0, 1], got {value!r}")
    rate = model.learning_rate
    if rate != "auto" and not (isinstance(rate, Real) and 0 < float(rate) < np.inf):
        raise ValueError(f"learning_rate must be 'auto' or a positive number, got {rate!r}")
    if model.method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {model.method!r}")
    if isinstance(model.init, str) and model.init not in _INITS:
        raise ValueError(f"init must be one of {_INITS} or an array, got {model.init!r}")
    if model.callback is not None and not callable(model.callback):
        raise ValueError(f"callback must be callable or None, got {model.callback!r}")

"""The map that neighbourhood components analysis starts from, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.utils import check_array

from fcco.estimators._nca_fit import SPREAD, spread_of
from fcco.estimators._validation import Array

if TYPE_CHECKING:
    from fcco.estimators._nca import NeighborhoodComponentsAnalysis

Init = Literal["auto", "pca", "lda", "identity", "random"]
INITS = get_args(Init)


def begin(model: NeighborhoodComponentsAnalysis, x: Array, label: Array, init: Any) -> Array:
    """Return ``init`` if it is an array, else the map of that name, scaled to a mean squared distance of 4."""
    if not isinstance(init, str):
        return init
    if (x == x[0]).all():
        return np.eye(model.n_components or x.shape[1], x.shape[1])  # every A is as good, and no direction is named
    start = _named(model, x, label, init)
    counts = np.bincount(label)
    if len(counts) == 1 or counts.max() == 1:
        return start  # every A is as good
    spread = spread_of(x[model.random_state_.permutation(len(x))[:1000]], start)
    return start * np.sqrt(SPREAD / spread) if spread > 0 else start


def _named(model: NeighborhoodComponentsAnalysis, x: Array, label: Array, init: str) -> Array:
    n_classes, n_features = label.max() + 1, x.shape[1]
    k = model.n_components or n_features
    if init == "auto":
        init = "lda" if k <= min(n_features, n_classes - 1) else "pca" if k < min(x.shape) else "identity"
    if init == "identity":
        return np.eye(k, n_features)
    if init == "random":
        return model.random_state_.standard_normal(size=(k, n_features))
    if init == "pca":
        return PCA(n_components=k, random_state=model.random_state_).fit(x).components_
    return _discriminants(x, label, k, model.random_state_)


def _discriminants(x: Array, label: Array, k: int, random: np.random.RandomState) -> Array:
    """The k most discriminative directions; where there are fewer, principal ones after them."""
    try:
        found = LinearDiscriminantAnalysis(n_components=k).fit(x, label).scalings_.T[:k]
    except IndexError:  # scikit-learn's, where no row differs from the mean of its class
        found = np.zeros((0, x.shape[1]))
    if len(found) == k:
        return found
    return np.vstack([found, PCA(n_components=k - len(found), random_state=random).fit(x).components_])


def check_start(wanted: int | None, init: Any, n_features: int) -> Any:
    """Refuse a number of components or a start that does not suit the features; ``init``, checked."""
    if wanted is not None and wanted > n_features:
        raise ValueError(
            f"The preferred dimensionality of the projected space `n_components` ({wanted}) cannot be greater than "
            f"the given data dimensionality ({n_features})!"
        )
    if isinstance(init, str):
        return init
    init = check_array(init)
    if init.shape[1] != n_features:
        raise ValueError(
            f"The input dimensionality ({init.shape[1]}) of the given linear transformation `init` must match the "
            f"dimensionality of the given inputs `X` ({n_features})."
        )
    if init.shape[0] > init.shape[1]:
        raise ValueError(
            f"The output dimensionality ({init.shape[0]}) of the given linear transformation `init` cannot be "
            f"greater than its input dimensionality ({init.shape[1]})."
        )
    if wanted is not None and wanted != init.shape[0]:
        raise ValueError(
            f"The preferred dimensionality of the projected space `n_components` ({wanted}) does not match the "
            f"output dimensionality of the given linear transformation `init` ({init.shape[0]})!"
        )
    return init

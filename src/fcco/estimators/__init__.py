"""Estimators in scikit-learn's style, over compiled kernels: ``fit``, ``transform``, ``predict``.

They need scikit-learn and Numba: ``pip install 'fcco[sklearn]'``.
"""

try:
    import numba as _numba  # noqa: F401
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    # An installed package that fails to import says why, and names none.
    needed = error.name or f"Numba and scikit-learn ({error})"
    raise ImportError(f"fcco.estimators needs {needed}: pip install 'fcco[sklearn]'", name=error.name) from error

from fcco.estimators._listwise import ListwiseRanker
from fcco.estimators._nca import NeighborhoodComponentsAnalysis
from fcco.estimators._ranking import AveragePrecisionClassifier, PNormPushClassifier
from fcco.estimators._survival import CoxRegressor

__all__ = [
    "AveragePrecisionClassifier",
    "CoxRegressor",
    "ListwiseRanker",
    "NeighborhoodComponentsAnalysis",
    "PNormPushClassifier",
]

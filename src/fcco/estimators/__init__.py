"""Estimators in scikit-learn's style, over compiled kernels: ``fit``, ``transform``, ``predict``.

They need scikit-learn and Numba: ``pip install 'fcco[sklearn]'``.

What is compiled is compiled at the first fit that needs it, and kept on disk for later processes (in ``__pycache__``,
or where the environment variable NUMBA_CACHE_DIR says). If no such folder can be written to, every process compiles
for itself. The steps that all stochastic methods but NCA's share take about 12 s of one core, NCA 14 s, the exact
method of :class:`CoxRegressor` 2 s, that of the rankers nothing: ``verbose=1`` prints a line with the seconds, and
``python benchmarks/estimators.py --only compiling`` the time of a first fit and of a second one.
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
from fcco.estimators._precision import AveragePrecisionClassifier
from fcco.estimators._push import PNormPushClassifier
from fcco.estimators._survival import CoxRegressor

__all__ = [
    "AveragePrecisionClassifier",
    "CoxRegressor",
    "ListwiseRanker",
    "NeighborhoodComponentsAnalysis",
    "PNormPushClassifier",
]

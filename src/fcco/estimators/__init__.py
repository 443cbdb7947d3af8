"""Estimators in scikit-learn's style, over compiled kernels: ``fit``, ``transform``, ``predict``.

They need scikit-learn and Numba: ``pip install 'fcco[sklearn]'``.

Kernels are compiled at the first fit that needs them, and kept on disk for later processes, in ``__pycache__`` or where
the environment variable NUMBA_CACHE_DIR says. If no such folder can be written to, every process compiles for itself.
A fit that has to compile for longer than a second logs a line to the logger "fcco.compiled", and with ``verbose=1`` it
prints the seconds. ``python benchmarks/estimators.py --only compiling`` compares a first fit with a second one.
"""

try:
    import numba as _numba  # noqa: F401
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    # An installed package that fails to import says why, and names none.
    needed = error.name or f"Numba and scikit-learn ({error})"
    raise ImportError(f"fcco.estimators needs {needed}: pip install 'fcco[sklearn]'", name=error.name) from error

from fcco.estimators._concordance import concordance_index
from fcco.estimators._listwise import ListwiseRanker
from fcco.estimators._nca import NeighborhoodComponentsAnalysis
from fcco.estimators._precision import AveragePrecisionClassifier
from fcco.estimators._precision_cv import AveragePrecisionClassifierCV
from fcco.estimators._push import PNormPushClassifier
from fcco.estimators._survival import CoxRegressor

__all__ = [
    "AveragePrecisionClassifier",
    "AveragePrecisionClassifierCV",
    "CoxRegressor",
    "ListwiseRanker",
    "NeighborhoodComponentsAnalysis",
    "PNormPushClassifier",
    "concordance_index",
]

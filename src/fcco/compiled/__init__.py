"""The Numba kernels that the estimators, the studies and the reproduction share.

They need Numba: ``pip install 'fcco[sklearn]'``. Nothing is compiled on import. A kernel is compiled at its first call,
for the parts that the call needs, and is kept on disk for later processes; see :mod:`fcco.compiled._compile`.

The update rules are in ``_rules.py``; what a batch of pairs says about the inner values in ``_pairs.py``; how batches
are drawn in ``_sampling.py``; the training loop of linear models in ``_linear.py``; neighbourhood components analysis
in ``_nca.py``; sums over risk sets in ``_cox.py``.
"""

from fcco.compiled._compile import compiling, njit
from fcco.compiled._linear import LinearState, new_state, train_linear
from fcco.compiled._pairs import OUTERS, SURROGATES, Objective
from fcco.compiled._rules import RULES, Table, TableUpdate, new_table, new_update
from fcco.compiled._sampling import PRECISION, PUSH, WHOLE, ClassSampler, ListSampler

__all__ = [
    "OUTERS",
    "PRECISION",
    "PUSH",
    "RULES",
    "SURROGATES",
    "WHOLE",
    "ClassSampler",
    "LinearState",
    "ListSampler",
    "Objective",
    "Table",
    "TableUpdate",
    "compiling",
    "new_state",
    "new_table",
    "new_update",
    "njit",
    "train_linear",
]

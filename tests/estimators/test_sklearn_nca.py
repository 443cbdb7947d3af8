"""scikit-learn's own tests of NCA, run on ours."""

from __future__ import annotations

from types import FunctionType

import numpy as np
import pytest
from sklearn.neighbors.tests import test_nca as theirs

from fcco.estimators._nca import NeighborhoodComponentsAnalysis

# Their suite only shows warnings; and unlike theirs, ours warns of an unsettled fit without verbose too.
pytestmark = pytest.mark.filterwarnings("ignore:.*NCA did not converge:sklearn.exceptions.ConvergenceWarning")

EXCEPTIONS = {
    "test_toy_example_collapse_points": "reads the loss from `_loss_grad_lbfgs`; see test_nca.py for the collapse",
    "test_verbose": "reads the table that scikit-learn prints; ours shows a bar, with what `loss_curve_` holds",
    "test_finite_differences": "differentiates `_loss_grad_lbfgs`; see test_nca.py for our gradient",
}


@pytest.fixture(autouse=True)
def _ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theirs, "NeighborhoodComponentsAnalysis", NeighborhoodComponentsAnalysis)
    np.random.seed(0)  # noqa: NPY002 (their tests give no random_state; from a rare start two iterations converge)


def _adopt() -> dict[str, FunctionType]:
    found = {name: value for name, value in vars(theirs).items() if name.startswith("test_")}
    assert not EXCEPTIONS.keys() - found.keys()
    return {name: test for name, test in found.items() if name not in EXCEPTIONS}


globals().update(_adopt())

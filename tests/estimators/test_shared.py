"""What all estimators promise alike: whose line a warning names, and what a fit or a refused one leaves behind."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

from fcco.estimators import (
    AveragePrecisionClassifier,
    CoxRegressor,
    ListwiseRanker,
    NeighborhoodComponentsAnalysis,
    PNormPushClassifier,
)

ESTIMATORS = [
    AveragePrecisionClassifier(),
    CoxRegressor(),
    ListwiseRanker(),
    NeighborhoodComponentsAnalysis(2, random_state=0),
    PNormPushClassifier(),
]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    return x, np.where(x[:, 0] + rng.normal(size=60) > 0, 2, 1)


def suited(model, data):
    """The data, for a survival model with two columns in y."""
    x, y = data
    return x, np.column_stack([y, np.ones(60)]) if isinstance(model, CoxRegressor) else y


def output(model, x):
    return model.transform(x) if hasattr(model, "transform") else model.predict(x)


@pytest.mark.parametrize("model", [AveragePrecisionClassifier(method="soap", random_state=0), *ESTIMATORS[1:]])
def test_warnings_name_the_users_line_even_in_a_pipeline(model, data):
    model, data = clone(model).set_params(max_iter=1), suited(model, data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", ".* was given neither qid nor group")
        model.fit(*data)
        make_pipeline(StandardScaler(), model).fit(*data)
        if hasattr(model, "fit_transform"):
            model.fit_transform(*data)
    assert {warning.filename for warning in caught} == {__file__}
    assert {warning.category for warning in caught} == {ConvergenceWarning}


@pytest.mark.parametrize("model", ESTIMATORS)
def test_a_refused_warm_start_leaves_the_fit_as_it_was(model, data):
    x, y = suited(model, data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = clone(model).set_params(warm_start=True, max_iter=5).fit(x, y)
    before = output(model, x)
    with pytest.raises(ValueError, match=r"warm_start: X has 3 features|previously learned transformation"):
        model.fit(x[:, :3], y)
    np.testing.assert_array_equal(output(model, x), before)


def test_concurrent_fits_restore_the_threads_of_blas():
    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    data = load_iris(return_X_y=True)
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        models = [NeighborhoodComponentsAnalysis(2, max_iter=k, random_state=0) for k in (1, 3, 2, 4, 1, 2)]
        with warnings.catch_warnings(), ThreadPoolExecutor(3) as pool:
            warnings.simplefilter("ignore")
            list(pool.map(lambda model: model.fit(*data), models))
        assert threads() == before

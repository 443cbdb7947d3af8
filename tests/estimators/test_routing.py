"""Every estimator in scikit-learn's model selection: alone and in a pipeline, with metadata routing and without."""

from functools import partial

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.metrics import silhouette_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from estimators.survival_data import OnlyEvents
from fcco.estimators import (
    AveragePrecisionClassifier,
    ListwiseRanker,
    NeighborhoodComponentsAnalysis,
    PNormPushClassifier,
)

pytestmark = pytest.mark.filterwarnings("ignore:.* was given neither qid nor group:UserWarning")
MODELS = {
    "push": PNormPushClassifier(alpha=0.1, pos_label=2),
    "push by batches": PNormPushClassifier(alpha=0.1, method="sox", max_iter=3, tol=0, random_state=0),
    "precision": AveragePrecisionClassifier(alpha=0.1, cv=None),
    "cox": OnlyEvents(alpha=0.1),
    "cox by batches": OnlyEvents(alpha=0.1, method="sox", max_iter=3, tol=0, random_state=0),
    "lists": ListwiseRanker(alpha=0.1),
    "nca": NeighborhoodComponentsAnalysis(2, alpha=0.1, tol=0, max_iter=3, random_state=0),
}
# Of each, what may be routed to fit and to score.
ROUTES = [
    *((name, (), ()) for name in MODELS),
    ("push", ("sample_weight",), ("sample_weight",)),
    ("push by batches", (), ("sample_weight",)),
    ("precision", (), ("sample_weight",)),
    ("cox", ("sample_weight",), ("sample_weight",)),
    ("cox by batches", (), ("sample_weight",)),
    ("lists", ("qid",), ("qid",)),
]
SPLITS = KFold(3)
WAYS = [("cross_val_score", False), ("GridSearchCV", True)]


@pytest.fixture(scope="module")
def data():
    """Lists of 12 rows, of which no fold cuts one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(144, 4))
    y = (x[:, 0] + rng.normal(size=144) > 0).astype(int) + 1
    return x, y, {"sample_weight": rng.integers(0, 4, 144).astype(float), "qid": np.arange(144) // 12}


def spread(model, x, y):
    """A score of what has none."""
    return silhouette_score(model.transform(x), y)


def request(model, fit, score):
    """A copy of the model that requests, by name, what is routed to each method, and nothing else that is given."""
    model = clone(model)
    for method, wanted in (("fit", fit), ("score", score)):
        known = getattr(model.get_metadata_routing(), method).requests
        for name in known.keys() & {*fit, *score}:
            getattr(model, f"set_{method}_request")(**{name: name in wanted})
    return model


def by_hand(model, piped, fit, score, data):
    """The score of each split."""
    x, y, metadata = data
    scores = []
    for train, test in SPLITS.split(x):
        scaler = MinMaxScaler().fit(x[train]) if piped else None
        seen, unseen = (x[rows] if scaler is None else scaler.transform(x[rows]) for rows in (train, test))
        fitted = clone(model).fit(seen, y[train], **{name: metadata[name][train] for name in fit})
        known = {name: metadata[name][test] for name in score}
        measure = fitted.score if hasattr(fitted, "score") else partial(spread, fitted)
        scores.append(measure(unseen, y[test], **known))
    return scores


def by_tool(tool, model, data, names):
    x, y, metadata = data
    metadata, scoring = {name: metadata[name] for name in names}, None if hasattr(model, "score") else spread
    options = {"cv": SPLITS, "scoring": scoring, "error_score": "raise"}
    if tool == "cross_val_score":
        return cross_val_score(model, x, y, params=metadata, **options)
    grid = [name for name in model.get_params() if name.endswith("alpha")]
    search = GridSearchCV(model, {grid[-1]: [0.1, 10.0]}, **options).fit(x, y, **metadata)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    return [search.cv_results_[f"split{k}_test_score"][0] for k in range(3)]


@pytest.mark.parametrize(("tool", "piped"), WAYS, ids=["alone", "in a pipeline"])
@pytest.mark.parametrize(("name", "fit", "score"), ROUTES)
def test_model_selection_with_routing(name, fit, score, piped, tool, data):
    with sklearn.config_context(enable_metadata_routing=True):
        model = request(MODELS[name], fit, score)
        whole = make_pipeline(MinMaxScaler(), model) if piped else model
        found = by_tool(tool, whole, data, {*fit, *score})
    np.testing.assert_allclose(found, by_hand(MODELS[name], piped, fit, score, data), rtol=1e-9)


@pytest.mark.parametrize(("tool", "piped"), WAYS, ids=["alone", "in a pipeline"])
@pytest.mark.parametrize("name", MODELS)
def test_model_selection_without_routing(name, piped, tool, data):
    model = MODELS[name]
    found = by_tool(tool, make_pipeline(MinMaxScaler(), model) if piped else model, data, ())
    np.testing.assert_allclose(found, by_hand(model, piped, (), (), data), rtol=1e-9)

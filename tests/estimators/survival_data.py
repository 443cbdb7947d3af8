"""Survival data for the tests: made up, and with golden values."""

import json
from pathlib import Path

import numpy as np
from sklearn.utils import column_or_1d

from fcco.estimators import CoxRegressor
from fcco.estimators._validation import show_weights_where_taken

_FOLDER = Path(__file__).parent / "golden"
GOLDEN, WEIGHTED, STRATIFIED = (
    json.loads((_FOLDER / f"{name}survival.json").read_text()) for name in ("", "weighted_", "stratified_")
)
TIES = ("breslow", "efron")


def make_data(n=300, d=3, *, tied=True, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    life, watched = rng.exponential(np.exp(-x @ np.linspace(1.0, -0.5, d))), rng.exponential(2.0, size=n)
    time = np.minimum(life, watched)
    return x, np.ceil(time * 10) if tied else time, life <= watched


def columns(time, event):
    return np.column_stack([time, event])


class OnlyEvents(CoxRegressor):
    """CoxRegressor for what scikit-learn's tools and checks take for y, one column: times, all of events."""

    @show_weights_where_taken
    def fit(self, X, y, *, sample_weight=None):  # noqa: N803
        return super().fit(X, all_events(y), sample_weight=sample_weight)

    def score(self, X, y, *, sample_weight=None):  # noqa: N803
        return super().score(X, all_events(y), sample_weight=sample_weight)


def all_events(time):
    return None if time is None else columns(time := column_or_1d(time, warn=True), np.ones(len(time)))


def golden(name):
    case = GOLDEN[name]
    return np.array(case["x"]), columns(case["time"], case["event"]), case

"""Linear models of the library that are trained for the top of the list."""

from __future__ import annotations

import time

from sklearn.model_selection import GridSearchCV

from top_of_list._linear import FOLDS, folds, learning_part, named
from top_of_list._metrics import Result, result_of

ALPHAS = (1e-3, 1e-1)


def average_precision(task: str, data: str, seed: int, path: str) -> Result:
    """Fit ``AveragePrecisionClassifierCV`` as it comes; ``task`` and ``data`` only distinguish results."""
    from fcco.estimators import AveragePrecisionClassifierCV

    learn, test = learning_part(path, seed)
    began = time.process_time()
    model = AveragePrecisionClassifierCV(cv=FOLDS, random_state=seed).fit(learn.x, learn.y)
    seconds = time.process_time() - began
    start = "push" if model.C_ is None else f"C={model.C_:g}"
    sharpened = "" if model.temperature_ is None else f", alpha={model.alpha_:g}, temperature={model.temperature_:g}"
    scores, valid = model.decision_function(test.x), float(model.best_score_)
    return result_of(test.y, scores, valid=valid, setting=start + sharpened, seconds=seconds)


def push(task: str, data: str, seed: int, alphas: list[float], path: str) -> Result:
    """Fit ``PNormPushClassifier`` with alpha from a grid."""
    from fcco.estimators import PNormPushClassifier

    learn, test = learning_part(path, seed)
    began = time.process_time()
    search = GridSearchCV(
        PNormPushClassifier(random_state=seed), {"alpha": alphas}, scoring="average_precision", cv=folds(seed)
    ).fit(learn.x, learn.y)
    seconds = time.process_time() - began
    chosen = named("alpha", search.best_params_["alpha"], alphas)
    scores, valid = search.decision_function(test.x), float(search.best_score_)
    return result_of(test.y, scores, valid=valid, setting=chosen, seconds=seconds)

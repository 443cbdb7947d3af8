"""The usual ways to a linear model, and gradient-boosted trees as a reference that is not linear.

Every method has the training and the validation part together, and chooses its settings by five-fold cross-validation
of average precision. No function here leads to code of the library, so results stay valid when the library changes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse, vstack
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold

from top_of_list._metrics import Result, result_of
from top_of_list._prepared import Part, split

FOLDS = 5
CS = tuple(10.0 ** (k / 2) for k in range(-12, 9))  # 1e-6 to 1e4; where L-BFGS is used, up to 1e2, for its cost
LEAVES, TREES, RATE = (4, 31), (50, 100, 200, 400), 0.1
COLUMNS = 64  # that a tree may split on, drawn at random where there are more
NARROW = 150  # up to so many features, Newton's method is faster than L-BFGS


def learning_part(path: str, seed: int) -> tuple[Part, Part]:
    """Return the training and validation parts together, in float64, and the test part."""
    parts = split(path, seed)
    stack = vstack if issparse(parts.test.x) else np.concatenate
    x: Any = stack([parts.train.x, parts.valid.x]).astype(np.float64)
    y = np.concatenate([parts.train.y, parts.valid.y])
    return Part(x.tocsr() if issparse(x) else x, y), Part(parts.test.x.astype(np.float64), parts.test.y)


def named(name: str, value: float, grid: Sequence[float]) -> str:
    """Return a choice as text, which says whether it lies at the end of its grid."""
    return f"{name}={value:.3g}" + (", end of grid" if value in (min(grid), max(grid)) else "")


def folds(seed: int) -> StratifiedKFold:
    """Return the folds, which are the same for all methods."""
    return StratifiedKFold(FOLDS, shuffle=True, random_state=seed)


def logistic_regression(task: str, data: str, seed: int, balanced: bool, cs: list[float], path: str) -> Result:
    """Fit logistic regression with C from a grid; ``task`` and ``data`` only distinguish results."""
    learn, test = learning_part(path, seed)
    began = time.process_time()
    narrow = learn.x.shape[1] <= NARROW and not issparse(learn.x)
    cs = cs if narrow else [c for c in cs if c <= 100.0]
    model = LogisticRegressionCV(
        Cs=cs,
        cv=folds(seed),
        scoring="average_precision",
        class_weight="balanced" if balanced else None,
        solver="newton-cholesky" if narrow else "lbfgs",
        l1_ratios=(0.0,),
        max_iter=5000,
        tol=1e-5,  # at the default of 1e-4, L-BFGS ends where test AP still changes by .01
        use_legacy_attributes=False,
    ).fit(learn.x, learn.y)
    seconds = time.process_time() - began
    valid = float(np.max(np.mean(np.asarray(model.scores_).reshape(FOLDS, -1), axis=0)))
    chosen = named("C", float(model.C_), cs)
    return result_of(test.y, model.decision_function(test.x), valid=valid, setting=chosen, seconds=seconds)


def boosted_trees(task: str, data: str, seed: int, leaves: list[int], trees: list[int], path: str) -> Result:
    """Fit LightGBM with the number of leaves and of trees from a grid."""
    from lightgbm import LGBMClassifier

    learn, test = learning_part(path, seed)
    began = time.process_time()

    def fitted(leaves: int, rows: NDArray[Any]) -> Any:
        made = LGBMClassifier(
            num_leaves=leaves,
            n_estimators=max(trees),
            learning_rate=RATE,
            colsample_bytree=min(1.0, COLUMNS / learn.x.shape[1]),
            random_state=seed,
            n_jobs=1,
            verbosity=-1,
        )
        return made.fit(learn.x[rows], learn.y[rows])

    def scores(model: Any, x: Any, count: int) -> NDArray[Any]:
        return np.asarray(model.predict(x, raw_score=True, num_iteration=count))

    found: dict[tuple[int, int], list[float]] = {}
    for rows, held in folds(seed).split(learn.x, learn.y):
        for some in leaves:
            model = fitted(some, rows)
            for count in trees:
                ap = average_precision_score(learn.y[held], scores(model, learn.x[held], count))
                found.setdefault((some, count), []).append(float(ap))
    best = max(found, key=lambda setting: np.mean(found[setting]))
    model = fitted(best[0], np.arange(len(learn.y)))
    seconds = time.process_time() - began
    chosen = f"leaves={best[0]}, {named('trees', best[1], trees)}"
    valid = float(np.mean(found[best]))
    return result_of(test.y, scores(model, test.x, best[1]), valid=valid, setting=chosen, seconds=seconds)

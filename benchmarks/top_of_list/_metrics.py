"""What is reported of scores on the test part."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

MAX_FPR = 0.1


class Result(TypedDict):
    """What a job returns.

    ``ap``, ``partial_auc`` and ``precision`` are of the test part, ``valid`` is the average precision by which settings
    were chosen, ``setting`` names the choice, and ``seconds`` is CPU time.
    """

    ap: float
    partial_auc: float
    precision: float
    valid: float
    setting: str
    seconds: float


def result_of(y: NDArray[Any], scores: NDArray[Any], *, valid: float, setting: str, seconds: float) -> Result:
    """Return the result of a method that gave these scores to the test part."""
    return Result(
        ap=float(average_precision_score(y, scores)),
        partial_auc=float(roc_auc_score(y, scores, max_fpr=MAX_FPR)),
        precision=precision_at_positives(y, scores),
        valid=valid,
        setting=setting,
        seconds=seconds,
    )


def precision_at_positives(y: NDArray[Any], scores: NDArray[Any]) -> float:
    """Return the precision among the k highest scores, where k is the number of positives.

    Of rows that tie for the last places, each is as likely to be taken.

    Examples
    --------
    >>> precision_at_positives(np.array([1, 1, 0, 0]), np.array([3.0, 1.0, 2.0, 0.0]))
    0.5
    >>> precision_at_positives(np.array([1, 1, 0, 0]), np.array([3.0, 1.0, 1.0, 0.0]))
    0.75
    """
    k = int(y.sum())
    last = np.sort(scores)[-k]
    above, tied = scores > last, scores == last
    return float((y[above].sum() + (k - above.sum()) * y[tied].mean()) / k)

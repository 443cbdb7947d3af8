"""Refitting the last layer of a network by exact average precision, on features that stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

from fcco._checks import whole_number
from fcco.estimators._sharpen import Ranking, Sharpening, as_grid
from fcco.estimators._validation import Array
from fcco.functional._checks import as_mask, check_floats, check_number
from fcco.functional._surrogates import check_temperature

_RESAMPLES = 200  # of the validation rows, for the standard error of a gain


@dataclass(frozen=True)
class HeadRefit:
    """What :func:`refit_head` has done.

    Attributes
    ----------
    changed : bool
        Whether the head has new weights. If not, it was left as it is.
    alpha, temperature : float or None
        The chosen setting; None if the head was left as it is.
    train, valid : tuple of float
        Average precision before and after, of the training rows and of the validation rows.
    gain_error : float
        Standard error of the gain on the validation rows, of the best setting that was tried.
    """

    changed: bool
    alpha: float | None
    temperature: float | None
    train: tuple[float, float]
    valid: tuple[float, float]
    gain_error: float


@dataclass(frozen=True)
class _Rows:
    """Features and labels."""

    x: Array
    positive: Array

    def average_precision(self, w: Array) -> float:
        """Return the average precision of the logits."""
        return float(average_precision_score(self.positive, self.x @ w))

    def error_of_gain(self, first: Array, second: Array) -> float:
        """Return the standard error of the difference of two average precisions, by resampling within each class."""
        random = np.random.default_rng(0)
        classes = [np.flatnonzero(side) for side in (self.positive, ~self.positive)]
        before, after = self.x @ first, self.x @ second
        gains = []
        for _ in range(_RESAMPLES):
            rows = np.concatenate([random.choice(side, len(side)) for side in classes])
            scores = (average_precision_score(self.positive[rows], values[rows]) for values in (before, after))
            gains.append(-np.subtract(*scores))
        return float(np.std(gains))


@dataclass(frozen=True)
class _Weights:
    """Weights of the head, how they were found, and how well they rank the training rows."""

    alpha: float | None
    temperature: float | None
    values: Array
    average_precision: float


def refit_head(
    head: nn.Linear,
    features: Tensor,
    target: Tensor,
    *,
    valid: tuple[Tensor, Tensor],
    alpha: Sequence[float] = (0.03, 0.3, 3.0, 30.0),
    temperature: Sequence[float] = (0.25, 0.0625),
    standard_errors: float = 1.0,
    max_iter: int = 25,
) -> HeadRefit:
    """Refit the last layer of a trained network by average precision, or leave it as it is.

    The features stay as they are. Starting from the weights of the head, L-BFGS minimises the exact objective of
    :class:`AveragePrecisionClassifier` for each alpha, at falling temperatures. Weights that rank the training rows
    worse than the head does are dropped. Of the others, those with the highest average precision of the validation rows
    are taken, if they beat the head by more than ``standard_errors`` standard errors.

    Parameters
    ----------
    head : Linear
        A layer with one output. Its weight and bias are changed in place. The logits of the training rows keep their
        mean and their standard deviation. Features that are the same in all training rows keep their weights, up to
        this scale.
    features : Tensor of shape (n, d)
        The inputs of the head for the training rows.
    target : Tensor of shape (n,)
        The labels: 0 and 1, -1 and 1, or bool.
    valid : tuple of Tensor
        Features and labels of rows that had no part in training the network.
    alpha : sequence of float
        Weights of the penalty that draws the weights to those of the head.
    temperature : sequence of float
        Temperatures, in units of the deviation of the logits.
    standard_errors : float, default 1.0
        How clearly new weights must beat the head on the validation rows. 0 takes the best.
    max_iter : int, default 25
        The largest number of iterations at each temperature.

    Returns
    -------
    HeadRefit
        What was chosen, and the average precision before and after.

    Raises
    ------
    ValueError
        If the head has more than one output, if shapes disagree, if a part has only one class, or if an option is out
        of range.
    TypeError
        If an argument has the wrong type.

    Notes
    -----
    docs/top_of_list.md says on which data this pays.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(400, 5), torch.arange(400) % 8 == 0
    >>> x[y, 0] += 1.0
    >>> head = nn.Linear(5, 1)
    >>> found = refit_head(head, x[:200], y[:200], valid=(x[200:], y[200:]))
    >>> found.train[1] >= found.train[0], found.valid[1] >= found.valid[0]
    (True, True)
    """
    _check_head(head)
    for value in as_grid("alpha", alpha):
        check_number(value, "alpha", at_least=0.0)
    temperatures = sorted((check_temperature(value) for value in as_grid("temperature", temperature)), reverse=True)
    check_number(standard_errors, "standard_errors", at_least=0.0)
    whole_number("max_iter", max_iter)
    if not isinstance(valid, Sequence) or len(valid) != 2:
        raise TypeError(f"valid must be a pair, features and labels; got {type(valid).__name__}")
    rows = _as_rows(features, target, head, "features", "target")
    held = _as_rows(*valid, head, "features of valid", "target of valid")
    paths = [Sharpening(temperatures, float(value), max_iter=max_iter) for value in alpha]
    found = _candidates(head, rows, paths)
    scores = [held.average_precision(weights.values) for weights in found]
    chosen = int(np.argmax(scores))
    error = held.error_of_gain(found[0].values, found[chosen].values) if chosen else 0.0
    if not scores[chosen] - scores[0] > standard_errors * error:
        chosen = 0
    else:
        _assign(head, rows.x, found[0].values, found[chosen].values)
    return HeadRefit(
        changed=chosen > 0,
        alpha=found[chosen].alpha,
        temperature=found[chosen].temperature,
        train=(found[0].average_precision, found[chosen].average_precision),
        valid=(scores[0], scores[chosen]),
        gain_error=error,
    )


def _check_head(head: nn.Linear) -> None:
    if not isinstance(head, nn.Linear) or head.out_features != 1:
        raise ValueError(f"head must be a torch.nn.Linear with one output; got {head}")
    if not isinstance(head.weight, nn.Parameter):
        raise ValueError("the weight of head must be a parameter; got a parametrized one: remove its parametrization")
    check_floats(head.weight, "the weight of head", "[1, d]")


def _as_rows(features: Tensor, target: Tensor, head: nn.Linear, name: str, target_name: str) -> _Rows:
    """Check features and labels, and return them as arrays."""
    check_floats(features, name, "[n, d]")
    if features.shape[1] != head.in_features:
        raise ValueError(f"{name} must have {head.in_features} columns, as the head has; got {features.shape[1]}")
    positive = as_mask(target, target_name, features, name).cpu().numpy()
    if not 0 < positive.sum() < len(positive):
        raise ValueError(
            f"{target_name} must have both classes; got {positive.sum()} positives of {len(positive)} rows"
        )
    return _Rows(features.detach().cpu().double().numpy(), positive)


def _candidates(head: nn.Linear, rows: _Rows, paths: Sequence[Sharpening]) -> list[_Weights]:
    """Return the weights of the head, and those on the paths that rank the training rows at least as well."""
    ranking = Ranking.of(rows.x, rows.positive)
    old = head.weight.detach().cpu().double().numpy()[0]
    found, deviation = [_Weights(None, None, old, rows.average_precision(old))], (rows.x @ old).std()
    for path in paths:
        for stage in list(path.path(ranking, ranking.x.standard(old)))[1:]:
            new = np.where(ranking.x.unit > 0.0, ranking.x.coefficients(stage.z), old)
            if (spread := (rows.x @ new).std()) > 0.0:
                values = _rounded(deviation / spread * new, head.weight.dtype)
                found.append(_Weights(path.alpha, stage.temperature, values, rows.average_precision(values)))
    return [weights for weights in found if weights.average_precision >= found[0].average_precision]


def _rounded(values: Array, dtype: torch.dtype) -> Array:
    """Return the values that a tensor of a dtype has, which may rank otherwise."""
    largest = torch.finfo(dtype).max
    return torch.from_numpy(values).clamp(-largest, largest).to(dtype).double().numpy()


def _assign(head: nn.Linear, x: Array, old: Array, new: Array) -> None:
    """Set the weights of the head, and its bias such that the logits keep their mean."""
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(new)[None])
        if head.bias is not None:
            head.bias.add_(float((x @ (old - new)).mean()))

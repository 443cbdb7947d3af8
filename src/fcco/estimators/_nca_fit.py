"""A fit of neighbourhood components under way: how rows are drawn, how long a step is, and what an iteration does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fcco.estimators._kernels import RULES, Array, Table
from fcco.estimators._nca_kernel import Rows, Rule, Run, mean_and_deviation, train

if TYPE_CHECKING:
    from fcco.estimators._nca import NeighborhoodComponentsAnalysis

_TRIAL = 50  # steps of a trial, and the least of an iteration
_MATES = 4  # of a class, that a batch is to hold


class Batches(NamedTuple):
    """The batches of an iteration: order[bounds[t] : bounds[t + 1]]."""

    order: Array
    bounds: Array


class Fit:
    """A fit under way: the data, the state, and the steps."""

    def __init__(
        self, model: NeighborhoodComponentsAnalysis, x: Array, label: Array, start: Array, random: np.random.RandomState
    ) -> None:
        self.model, self.random = model, random
        self.normalise = model.learning_rate == "auto"
        center, deviation = mean_and_deviation(x)
        scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
        self.rows = Rows(x, label, np.bincount(label), center, scale if self.normalise else np.ones_like(scale))
        self.start = np.ascontiguousarray(start, x.dtype)
        size = float(np.sqrt(np.mean(np.square(self.start * deviation, dtype=np.float64))))
        self.largest_step = size * min(0.3, 3 / np.sqrt(x.shape[1]))
        self.rule = Rule(RULES[model.method], float(model.gamma))
        self.per_pass = -(-len(x) // min(model.batch_size, len(x)))
        self.batches = self._draw()
        self.step = 0.0
        self.run = self._fresh()

    def _fresh(self) -> Run:
        a, n = self.start.copy(), len(self.rows.label)
        square = np.zeros_like(a) if self.normalise else np.zeros((0, 0), a.dtype)
        return Run(a, np.zeros_like(a), square, Table(np.zeros((n, 2)), np.zeros(n, np.int64)), np.zeros(1, np.int64))

    def _draw(self) -> Batches:
        return draw_batches(self.random, self.rows.label, self.per_pass, max(1, -(-_TRIAL // self.per_pass)))

    def choose_step(self, candidates: Sequence[float]) -> None:
        """The step that does best in a short trial on the first batches."""
        if self.model.learning_rate != "auto":
            self.step = float(self.model.learning_rate)
            return
        steps = self.largest_step * np.array(candidates)
        outcomes = [self._train(self._fresh(), np.full(_TRIAL, step))[_TRIAL // 2 :].mean() for step in steps]
        self.step = float(steps[np.argmin(np.nan_to_num(outcomes, nan=np.inf))])

    def iterate(self, number: int, stalls: int) -> float:
        """An iteration; the objective as tracked in its last pass."""
        model = self.model
        if number > 0:
            self.batches = self._draw()
        done = (number + np.linspace(0, 1, len(self.batches.bounds) - 1, endpoint=False)) / model.max_iter
        lr = self.step * 0.1**stalls * 0.5 * (1 + np.cos(np.pi * done))
        values = self._train(self.run, lr)
        if not np.isfinite(values).all() or not np.isfinite(self.run.a).all():
            raise FloatingPointError(
                f"{type(model).__name__}: A or the objective is no longer finite after iteration {number + 1}; lower "
                f"learning_rate={model.learning_rate!r}, or scale the features"
            )
        penalty = 0.5 * model.alpha * float(np.sum(np.square(self.run.a, dtype=np.float64)))
        return float(values[-self.per_pass :].mean()) + penalty

    def _train(self, run: Run, lr: Array) -> Array:
        values = np.zeros(len(lr))
        model = self.model
        train(self.rows, self.rule, run, *self.batches, lr, float(model.beta), float(model.alpha), values)
        return values


def draw_batches(random: np.random.RandomState, label: Array, per_pass: int, passes: int) -> Batches:
    """Passes over all rows in random order, each in batches of equal size, give or take one."""
    n = len(label)
    sizes = np.bincount(label)
    grouped = n / per_pass < _MATES * np.count_nonzero(sizes)
    orders = [_shuffle_groups(random, label, sizes) if grouped else random.permutation(n) for _ in range(passes)]
    ends = n * np.arange(1, per_pass + 1) // per_pass
    bounds = np.concatenate([[0], *(ends + n * k for k in range(passes))])
    return Batches(np.concatenate(orders), bounds)


def _shuffle_groups(random: np.random.RandomState, label: Array, sizes: Array) -> Array:
    """Rows in random order, but in groups of ``_MATES`` or a few more of a class."""
    order = random.permutation(len(label))
    order = order[np.argsort(label[order], kind="stable")]
    own = label[order]
    place = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[own]
    # What is left over at the end of a class joins the group before it.
    group = np.minimum(place // _MATES, np.maximum(sizes[own] // _MATES - 1, 0))
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(own) != 0) | (np.diff(group) != 0)]))
    rank = random.permutation(len(begins))[np.cumsum(np.bincount(begins, minlength=len(order))) - 1]
    return order[np.argsort(rank, kind="stable")]

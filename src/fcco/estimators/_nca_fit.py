"""A fit of neighbourhood components under way: how rows are drawn, how long a step is, and what an iteration does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from fcco.compiled import RULES, new_update
from fcco.compiled._nca import NCAState, nca_rows, nca_state, train_nca
from fcco.estimators._columns import column_moments
from fcco.estimators._nca_pairs import Pairs
from fcco.estimators._progress import Bar
from fcco.estimators._validation import Array

if TYPE_CHECKING:
    from fcco.estimators._nca import NeighborhoodComponentsAnalysis

ANCHORS = 500  # rows whose p_i the tracked objective is the mean of
SPREAD = 4.0  # mean squared distance that a start by name is scaled to
_TRIAL = 50  # steps of a trial, and the least of an iteration
_SINGLE = 1e4  # mean squared distance up to which single precision knows distances to within 0.01
_MATES = 4  # of a class, that a batch is to hold


class Batches(NamedTuple):
    """The batches of an iteration: order[bounds[t] : bounds[t + 1]]."""

    order: Array
    bounds: Array


class _OneThread:
    """BLAS on one thread as long as anybody is inside; the last to leave restores what the first has found."""

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limit = _controller().limit(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.restore_original_limits()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all libraries, which takes longer than many an iteration


one_thread = _OneThread()  # the limit is the process's: fits that ran side by side would restore each other's


class Fit:
    """A fit under way: the data, the state, and the steps."""

    def __init__(
        self, model: NeighborhoodComponentsAnalysis, x: Array, label: Array, start: Array, random: np.random.RandomState
    ) -> None:
        self.model, self.random = model, random
        self.bar = Bar(type(model).__name__, model.max_iter, model.verbose)
        self.normalise = model.learning_rate == "auto"
        center, variance = column_moments(x)
        deviation = np.sqrt(variance).astype(x.dtype)
        scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
        self.unit = scale if self.normalise else np.ones_like(scale)
        self.rows = nca_rows(x, label, center, self.unit)
        self.anchors = random.permutation(len(x))[:ANCHORS]
        self.pairs = Pairs(x, label, center)
        self.watched = np.sort(self.pairs.position[self.anchors])
        self.start = np.ascontiguousarray(start, x.dtype)
        spread = spread_of(x[self.anchors], start)
        self.largest_step = _largest_step(self.start * deviation.astype(np.float64), spread)
        self.rough = np.float32 if spread <= _SINGLE else None  # type of sums over pairs that need few digits
        rule = model.method if model.method in RULES else "sox"
        self.update = new_update(rule, float(model.gamma), len(x))
        self.per_pass = -(-len(x) // min(model.batch_size, len(x)))
        self.batches = self._draw()
        self.step = 0.0
        self.run = self._fresh()
        self.in_batches = np.nan  # the objective as the batches of the last iteration estimate it; NaN: they cannot

    def _fresh(self) -> NCAState:
        return nca_state(self.start, len(self.rows.label), normalise=self.normalise)

    def _draw(self) -> Batches:
        return draw_batches(self.random, self.rows.label, self.per_pass, max(1, -(-_TRIAL // self.per_pass)))

    def choose_step(self, candidates: Sequence[float]) -> None:
        """The step that does best in a short trial on the first batches, of falling ones until they get worse."""
        if self.model.learning_rate != "auto":
            self.step = float(self.model.learning_rate)
            return
        self.step = self.largest_step * candidates[0]
        if len(candidates) == 1:
            return
        best = np.inf
        for step in self.largest_step * np.array(candidates):
            value = self._try(step)
            if value < best:
                self.step, best = float(step), value
            elif best < self.at_start:
                return

    def _try(self, step: float) -> float:
        run = self._fresh()
        self._train(run, np.full(_TRIAL, step))
        return self.objective(run.a)

    def iterate(self, number: int, of: int, stalls: int = 0) -> float:
        """An iteration, of as many as the rate falls to 0 in; the objective after it."""
        if number > 0:
            self.batches = self._draw()
        done = (number + np.linspace(0, 1, len(self.batches.bounds) - 1, endpoint=False)) / of
        self.in_batches = self._train(self.run, self.step * 0.1**stalls * 0.5 * (1 + np.cos(np.pi * done)))
        value = self.objective(self.run.a)
        self.check_finite(value, number + 1)
        return value

    def check_finite(self, value: float, number: int) -> None:
        """Raise a FloatingPointError if A or the objective is not finite after an iteration."""
        if not np.isfinite(value) or not np.isfinite(self.run.a).all():
            rate = self.model.learning_rate
            lower = "" if rate == "auto" else f"lower learning_rate={rate!r}, or "
            raise FloatingPointError(
                f"{type(self.model).__name__}: A or the objective is no longer finite after iteration {number}; "
                f"{lower}scale the features or init"
            )

    def objective(self, a: Array) -> float:
        """F at ``a``, from the p_i of the anchors."""
        return self.penalty(a) - self.pairs.share(a, self.watched)

    @cached_property
    def at_start(self) -> float:
        """F at the start, from the p_i of the anchors."""
        return self.objective(self.start)

    def penalty(self, a: Array) -> float:
        """alpha/2 |A|²."""
        return 0.5 * self.model.alpha * float(np.sum(np.square(a, dtype=np.float64)))

    def _train(self, run: NCAState, lr: Array) -> float:
        """Take a step for each of ``lr``, and return the objective as the batches of the last pass estimate it."""
        rates: Any = {"beta": self.model.beta, "alpha": self.model.alpha}
        # Products this small are slower on several threads than on one.
        with one_thread:
            values, known = train_nca(self.rows, self.update, run, *self.batches, lr, **rates)
        values, known = values[-self.per_pass :], known[-self.per_pass :]
        return float(values @ known / known.sum()) + self.penalty(run.a) if known.any() else np.nan


def spread_of(x: Array, a: Array) -> float:
    """The mean squared distance of two rows once embedded."""
    # Centred first: a common offset costs digits.
    centred = (x - x.mean(axis=0)).astype(np.float64)
    return 2 * float(np.sum(np.var(centred @ np.asarray(a, np.float64).T, axis=0)))


def _largest_step(start: Array, spread: float) -> float:
    """Of an entry of A in units of its feature's deviation, from a start in the same units."""
    size = float(np.sqrt(np.mean(np.square(start))))
    # A start of any size, however small, is to reach where distances count.
    reach = np.sqrt(SPREAD / spread) if 0 < spread < SPREAD else 1.0
    return float(size * reach * min(0.3, 3 / np.sqrt(start.shape[1])))


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

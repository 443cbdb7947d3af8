"""Where L-BFGS for neighbourhood components begins: steps like Adam's, on a few anchors and many rivals each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fcco.estimators._nca_fit import Fit
from fcco.estimators._validation import Array

STEPS = 50  # of an iteration
_ANCHORS = 128  # whose gradient a step follows
_RIVALS = 4096, 16384  # that they are compared with, at most: of wide rows, and of narrow ones
_ENTRIES = 3_200_000  # of the rows of that many rivals, which every step embeds
_RATE, _SECOND_RATE = 0.1, 1e-3  # of the moving averages of the gradient and of its square, as in Adam
_EPSILON = 1e-30  # far below any squared gradient that is not rounding, where features have a deviation of 1
_SMALLER = (1.0, 0.1, 0.01, 0.001)  # steps that are tried, in units of the largest
LARGER = (1.0, 1.5, 2.25)  # multiples of A that are tried in the end: its size is what changes most slowly

Note = Callable[[float, Array], bool]


class _Descent:
    """Steps along the gradient of the anchors' mean p_i, normalised entry by entry.

    All of a batch's rivals are embedded anew in every step: there is nothing to remember, and nothing goes stale.
    """

    def __init__(self, fit: Fit, step: float, steps: int) -> None:
        self.fit, self.rates = fit, step * 0.5 * (1 + np.cos(np.pi * np.arange(steps) / steps))
        self.a = fit.start.astype(np.float64)
        self.average, self.square, self.taken = np.zeros_like(self.a), np.zeros_like(self.a), 0
        self._order = np.empty(0, np.int64)

    def _drawn(self) -> tuple[Array, Array | None]:
        n, random = len(self.fit.rows.label), self.fit.random
        if len(self._order) < min(_ANCHORS, n):
            self._order = random.permutation(n)
        anchors, self._order = np.sort(self._order[:_ANCHORS]), self._order[_ANCHORS:]
        most = int(np.clip(_ENTRIES // self.a.shape[1], *_RIVALS))
        return anchors, np.sort(random.choice(n, most, replace=False)) if n > most else None

    def advance(self, steps: int) -> Array:
        """Take steps, and return A."""
        kind, unit, alpha = self.fit.start.dtype, self.fit.unit.astype(np.float64), float(self.fit.model.alpha)
        for _ in range(steps):
            _, slope = self.fit.pairs.share_and_gradient(self.a.astype(kind), *self._drawn(), self.fit.rough)
            gradient = unit * (slope + alpha * self.a)
            rate = self.rates[self.taken]
            self.taken += 1
            self.average += _RATE * (gradient - self.average)
            self.square += _SECOND_RATE * (gradient**2 - self.square)
            # Both averages start from 0, and are divided by the weight that they have gathered since.
            gathered = np.sqrt(1 - (1 - _SECOND_RATE) ** self.taken) / (1 - (1 - _RATE) ** self.taken)
            self.a -= rate * gathered * unit * (self.average / np.sqrt(self.square + _EPSILON))
        return self.a.astype(kind)


def come_near(fit: Fit, iterations: int, note: Note, sizes: Sequence[float] = (1.0,)) -> Array:
    """Where some iterations lead, if that is lower than the start; ``note`` is told of each, and may end them.

    The first step size with which the first iteration is no worse than the start is taken. The last iteration ends at
    the best multiple of A of ``sizes``.
    """
    best, at_best = fit.start, fit.at_start
    for number in range(iterations):
        if number == 0:
            descent, value, a = _begin(fit, iterations * STEPS)
        else:
            a = descent.advance(STEPS)
            value = fit.objective(a)
        if number == iterations - 1 and len(sizes) > 1:
            value, a = min(((fit.objective(size * a), size * a) for size in sizes), key=lambda found: found[0])
        if value <= at_best:
            best, at_best = a, value
        if note(value, a):
            break
    return best


def _begin(fit: Fit, steps: int) -> tuple[_Descent, float, Array]:
    for size in _SMALLER:
        descent = _Descent(fit, size * fit.largest_step, steps)
        a = descent.advance(STEPS)
        value = fit.objective(a)
        if value <= fit.at_start:
            break
    return descent, value, a

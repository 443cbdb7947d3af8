"""Losses whose surrogate compares scores in units of a temperature."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from fcco._checks import reads_are_free, require
from fcco._leave_out import leave_out_what_does_not_fit
from fcco.core.arrays import Array, cast, counted, namespace, ones, stacked, taken, wide
from fcco.core.objective import Objective
from fcco.core.step import Batch
from fcco.core.weights import TINY
from fcco.functional._surrogates import check_temperature
from fcco.losses.loss import ObjectiveLoss

Temperature = float | Callable[[Any], Any]
AutoTemperature = Temperature | Literal["auto"]

_OF_DEVIATION = 0.0625  # the temperature, in units of the standard deviation of the scores
_DECAY = 0.99  # of the weight of earlier batches, a step
_LEAST_DEVIATION = 1e-6  # relative to the mean, or to 1; scores that differ less are constant


class TemperedLoss(ObjectiveLoss):
    """Base class of the losses with a temperature, which is a number or a function of the step.

    A number may be changed at any time by assigning to :attr:`temperature`, and is part of ``state_dict``. At each step
    the objective has it as ``tau``.

    Parameters
    ----------
    objective : Objective
        The objective, whose ``tau`` need not be given.
    n : int
        The number of rows of the table.
    temperature : float or callable
        The temperature, or a function of the number of steps taken so far.
    **options
        Further arguments of :class:`fcco.ObjectiveLoss`.
    """

    temperature: AutoTemperature
    """τ, in units of the scores: a number above 0, or a function of the number of steps taken so far."""
    deviation: ScoreDeviation | None
    """What ``temperature="auto"`` follows; None for other temperatures."""

    _loaded: tuple[float, list[str]] | None = None
    """The temperature of a state that is being loaded, and the errors so far."""

    def __init__(self, objective: Any, n: int, temperature: Temperature, **options: Any) -> None:
        temperature = temperature if callable(temperature) else check_temperature(temperature)
        if not callable(temperature):
            objective.tau = temperature
        super().__init__(objective, n, **options)
        self.temperature, self.deviation = temperature, None
        self.register_load_state_dict_post_hook(_take_temperature)

    def at_step(self, objective: Any, batch: Batch, *, is_step: bool) -> tuple[Objective, Callable[[], None] | None]:
        """Return the objective at the temperature of this step.

        Parameters
        ----------
        objective : Objective
            The objective, in the library of the batch.
        batch : Batch
            The examples of all ranks.
        is_step : bool
            Whether a step is taken, rather than a batch evaluated.

        Returns
        -------
        tuple
            The objective, and a function that keeps the moments of scores, or None.
        """
        temperature, then = self.temperature, None
        if temperature is objective.tau and not is_compiling():
            return objective, None
        objective = copy.copy(objective)
        if temperature != "auto":
            objective.tau = self._temperature_now()
        elif self.deviation is None:
            raise ValueError("temperature must be a number or a function; pass temperature='auto' to the constructor")
        else:
            sizes = self._objective_like(batch.x[0]).sizes
            if batch.apart is not None:  # the temperature is that of all ranks
                batch = batch._replace(pool=objective.pool(batch.x, ones(batch.x[0])))
            objective.tau, then = self.deviation.temperature(batch, sizes, is_step=is_step)
        return objective, then

    def _temperature_now(self) -> float | Tensor:
        """Return τ of this step; a tensor if reading the number of steps would stall a device or break a graph."""
        temperature, table = self.temperature, self.table.block
        if not callable(temperature):
            number = check_temperature(temperature)
            # A graph is compiled once for all values of a tensor, and again for every value of a number.
            return table.u.new_ones(()) * number if is_compiling() else number
        if reads_are_free(table.step):
            return check_temperature(float(temperature(int(table.step))))
        # The compiler may work out τ again for the backward pass, from a step that has been counted up meanwhile. It
        # does not repeat a cumulative sum, which here is one of a single number.
        tau = temperature(table.step.reshape(1).cumsum(0)[0].to(table.u.dtype))
        if not isinstance(tau, Tensor):
            return check_temperature(tau)
        require((tau > 0) & (tau < math.inf), "temperature must be finite and above 0")
        return tau

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not callable(self.temperature) and self.temperature != "auto":
            destination[f"{prefix}temperature"] = torch.tensor(self.temperature, dtype=torch.float64)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        leave_out_what_does_not_fit(self, state_dict, prefix)  # before the temperature is taken out of it
        saved = state_dict.pop(f"{prefix}temperature", None)  # absent from states of a schedule
        errors: list[str] = args[-1]
        if saved is not None and not callable(self.temperature) and self.temperature != "auto":
            try:
                self._loaded = check_temperature(float(saved)), errors
            except ValueError as error:
                errors.append(f"{prefix}temperature: {error}")
        super()._load_from_state_dict(state_dict, prefix, *args)


def _take_temperature(loss: TemperedLoss, _: Any) -> None:
    """Take the temperature of a state, unless its table has been refused."""
    loaded, loss._loaded = loss._loaded, None
    if loaded is not None and not loaded[1]:
        loss.temperature = loaded[0]


class ScoreDeviation(nn.Module):
    """The standard deviation of recent scores over the population, of each class, and the temperature that it gives.

    Parameters
    ----------
    classes : int or None
        The number of classes; None: there is one, of which the temperature is a number.
    """

    moments: Tensor
    """The weight, mean and variance of recent scores of negatives and of positives, of shape (2, C, 3)."""

    def __init__(self, classes: int | None) -> None:
        super().__init__()
        self.classes = classes
        self.register_buffer("moments", torch.zeros(2, classes or 1, 3, dtype=torch.float64))

    def temperature(
        self, batch: Batch, sizes: Array, *, is_step: bool
    ) -> tuple[float | Array, Callable[[], None] | None]:
        """Return τ of each class, and what keeps the moments if the step succeeds.

        ``sizes``, [2 C], are how many negatives and positives of each class the population has.
        """
        score = batch.x[0]
        held: Any = self.moments if isinstance(score, Tensor) else self.moments.numpy()
        earlier, of_class = held.swapaxes(0, 2), wide(sizes).reshape(-1, 2)  # [3, C, 2] and [C, 2]
        latest = _moments_of(batch, len(of_class))
        kept = _joined(earlier, latest, _DECAY)
        if is_step:
            deviation = _deviation(kept, of_class)
        else:
            known = earlier[0].sum(1) > 0
            deviation = namespace(score).where(known, _deviation(earlier, of_class), _deviation(latest, latest[0]))
        tau = _OF_DEVIATION * deviation
        can_read = not isinstance(tau, Tensor) or reads_are_free(tau)
        if not can_read:
            require(tau.isfinite(), "the standard deviation of scores must be finite")
            # As above: the backward pass must not work τ out again, from moments that have changed.
            tau = tau.unsqueeze(0).cumsum(0)[0]
        elif not math.isfinite(tau.sum()):
            raise ValueError("the standard deviation of scores must be finite for temperature='auto', on all ranks")

        def keep() -> None:
            held[...] = kept.swapaxes(0, 2)

        if self.classes is None:
            return float(tau[0]) if can_read else cast(tau, score)[0], keep
        return cast(tau, score), keep

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Casts of a model are not for sums over its population; some devices have no float64.
        kept = self.moments
        self.moments = kept.float()
        super()._apply(fn, recurse)
        if not kept.is_meta:
            self.moments = kept.to(
                self.moments.device, torch.float32 if self.moments.device.type == "mps" else kept.dtype
            )
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        if not args[-1]:  # otherwise the table has been refused
            super()._load_from_state_dict(state_dict, prefix, *args)


def _moments_of(batch: Batch, classes: int) -> Array:
    """Return the weight, mean and variance of the scores of each class and label, [3, C, 2]."""
    kind, weight, there = batch.pool.kind, wide(batch.pool.weight), wide(batch.pool.there)
    score, count = wide(batch.x[0]), there.clip(1, None)
    mean = counted(kind, len(there), weight * score) / count
    away = score - taken(mean, kind)
    variance = counted(kind, len(there), weight * away * away) / count
    return stacked([there, mean, variance]).reshape(3, classes, 2)


def _joined(one: Array, two: Array, decay: float = 1.0) -> Array:
    """Return the weight, mean and variance of two parts together, from those of each; the first loses weight."""
    total = decay * one[0] + two[0]
    share, away = two[0] / (total + TINY), two[1] - one[1]
    mean = one[1] + share * away
    variance = one[2] + share * (two[2] - one[2] + (1 - share) * away * away)
    return stacked([total, mean, variance])


def _deviation(moments: Array, sizes: Array) -> Array:
    """Return the standard deviation of each class in a population, given how many it has of both labels, [C, 2]."""
    weight = sizes * (moments[0] > 0)
    one, two = ((weight[:, k], moments[1, :, k], moments[2, :, k]) for k in (0, 1))
    _, mean, variance = _joined(one, two)
    deviation = variance**0.5
    return namespace(mean).where(deviation <= _LEAST_DEVIATION * abs(mean).clip(1, None), 1.0, deviation)

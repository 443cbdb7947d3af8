"""Losses whose surrogate compares scores in units of a temperature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from fcco._checks import reads_are_free
from fcco._coupled import CoupledLoss
from fcco._leave_out import leave_out_what_does_not_fit
from fcco.functional._checks import check_floats
from fcco.functional._surrogates import check_temperature
from fcco.functional._tensors import widen
from fcco.losses._base import Loss

Temperature = float | Callable[[Any], Any]
AutoTemperature = Temperature | Literal["auto"]

_OF_DEVIATION = 0.0625  # the temperature, in units of the standard deviation of the scores
_DECAY = 0.99  # of the weight of earlier batches, a step
_LEAST_DEVIATION = 1e-6  # relative to the mean, or to 1; scores that differ less are constant


class TemperedLoss(Loss):
    """Base class of the losses with a temperature, which is a number or a function of the step.

    A number may be changed at any time by assigning to :attr:`temperature`, and is part of ``state_dict``.
    """

    temperature: AutoTemperature
    """τ, in units of the scores: a number above 0, or a function of the number of steps taken so far."""

    _loaded: tuple[float, list[str]] | None = None
    """The temperature of a state that is being loaded, and the errors so far."""

    def _set_temperature(self, temperature: Temperature) -> None:
        self.temperature = temperature if callable(temperature) else check_temperature(temperature)
        self.register_load_state_dict_post_hook(_take_temperature)

    def _temperature_now(self) -> float | Tensor:
        """Return τ of this step; a tensor if reading the number of steps would stall a device or break a graph."""
        temperature = self.temperature
        if not callable(temperature):
            number = check_temperature(temperature)
            # A graph is compiled once for all values of a tensor, and again for every value of a number.
            return self.table.u.new_ones(()) * number if is_compiling() else number
        step, u = self.table.step, self.table.u
        if reads_are_free(step):
            return check_temperature(float(temperature(int(step))))
        # The compiler may work out τ again for the backward pass, from a step that has been counted up meanwhile. It
        # does not repeat a cumulative sum, which here is one of a single number.
        tau = temperature(step.reshape(1).cumsum(0)[0].to(u.dtype))
        if not isinstance(tau, Tensor):
            return check_temperature(tau)
        torch._assert_async((tau > 0) & (tau < math.inf), "temperature must be finite and above 0")
        return tau

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not callable(self.temperature) and self.temperature != "auto":
            destination[f"{prefix}temperature"] = torch.tensor(self.temperature, dtype=torch.float64)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        leave_out_what_does_not_fit(self, state_dict, prefix)  # before the temperature is taken out of it
        saved = state_dict.pop(f"{prefix}temperature", None)  # absent from states of a schedule, and from early ones
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
    sizes : sequence of C pairs of ints
        How many negatives and positives of each class the population has.
    """

    moments: Tensor
    """The weight, mean and variance of recent scores of negatives and of positives, of shape (2, C, 3)."""
    sizes: Tensor
    """How many negatives and positives the population has, of shape (2, C)."""

    def __init__(self, sizes: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.register_buffer("sizes", torch.tensor(sizes, dtype=torch.float64).T, persistent=False)
        self.register_buffer("moments", torch.zeros(2, len(sizes), 3, dtype=torch.float64))

    def temperature(self, coupled: CoupledLoss, scores: Any, target: Any) -> tuple[Any, Tensor | None]:
        """Return τ of each class, and the moments to keep if the step succeeds; None where no step is taken.

        τ is a list if reading values is free, and otherwise a tensor.
        """
        placement, latest = coupled.placement(), self._moments_of(scores, target)
        if placement is None:
            kept, dev = None, self._deviation(self.moments, self.sizes)
            dev = torch.where(self.moments[..., 0].sum(0) > 0, dev, self._deviation(latest, latest[..., 0]))
        else:
            parts, earlier = latest.unsqueeze(0), self.moments.clone()
            if not placement.alone:
                parts = coupled._eagerly(lambda: placement.gather_all([parts], {})[0])
            earlier[..., 0] *= _DECAY
            kept = _joined(torch.cat([earlier.unsqueeze(0), parts]))
            dev = self._deviation(kept, self.sizes)
        tau = _OF_DEVIATION * dev
        if reads_are_free(tau):
            return _checked(tau.tolist(), scores), kept
        torch._assert_async(tau.isfinite().all(), "the standard deviation of scores must be finite")
        # As in _temperature_now: the backward pass must not work τ out again, from moments that have changed.
        return tau.unsqueeze(0).cumsum(0)[0].to(coupled.table.u.dtype), kept

    def _moments_of(self, scores: Any, target: Any) -> Tensor:
        """Return the moments of a batch; zeros if it is not valid, which the step then says."""
        nothing = torch.zeros_like(self.moments)
        fits = isinstance(scores, Tensor) and isinstance(target, Tensor) and scores.is_floating_point()
        if not fits or scores.numel() == 0 or scores.device != target.device or scores.device != nothing.device:
            return nothing
        values, count = widen(scores.detach()), self.sizes.shape[1]
        if target.shape != scores.shape:
            if scores.dim() != 2 or target.shape != scores.shape[:1] or target.is_floating_point():
                return nothing
            classes = torch.arange(count, device=target.device)
            target = torch.where(target.unsqueeze(1) < 0, -1, (target.unsqueeze(1) == classes).long())
        if values.shape != target.shape or values.dim() > 2 or values.reshape(len(values), -1).shape[1] != count:
            return nothing
        values, target = values.reshape(-1, count), target.reshape(-1, count)
        member = torch.stack([target == 0, target == 1])
        weight = member.to(values).sum(1)
        share = member / weight.clamp(min=1).unsqueeze(1)
        mean = torch.where(member, share * values, 0.0).sum(1)
        variance = torch.where(member, share * (values - mean.unsqueeze(1)).square(), 0.0).sum(1)
        return torch.stack([weight, mean, variance], -1).to(nothing)

    def _deviation(self, moments: Tensor, sizes: Tensor) -> Tensor:
        """Return the standard deviation over a population, of which some sizes are those of the two labels."""
        weight, mean, variance = moments.unbind(-1)
        _, mean, variance = _joined(torch.stack([sizes * (weight > 0), mean, variance], -1)).unbind(-1)
        deviation = variance.sqrt()
        constant = deviation <= _LEAST_DEVIATION * mean.abs().clamp(min=1)
        return torch.where(constant, 1.0, deviation)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Casts of a model are not for sums over its population; some devices have no float64.
        kept = dict(self._buffers)
        self._buffers.update({name: buffer.float() for name, buffer in kept.items() if buffer is not None})
        super()._apply(fn, recurse)
        for name, buffer in kept.items():
            device = self._buffers[name].device  # type: ignore[union-attr]
            if buffer is not None and not buffer.is_meta:
                self._buffers[name] = buffer.to(device, torch.float32 if device.type == "mps" else buffer.dtype)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        if not args[-1]:  # otherwise the table has been refused
            super()._load_from_state_dict(state_dict, prefix, *args)


def _joined(parts: Tensor) -> Tensor:
    """Return the weight, mean and variance of several parts together, from those of each, of shape (parts, ..., 3)."""
    weight, mean, variance = parts.unbind(-1)
    total = weight.sum(0)
    share = weight / torch.where(total > 0, total, 1.0)
    centre = (share * mean).sum(0)
    return torch.stack([total, centre, (share * (variance + (mean - centre).square())).sum(0)], -1)


def _checked(temperature: list[float], scores: Tensor) -> list[float]:
    """Return τ; raise if it is not finite."""
    if not all(map(math.isfinite, temperature)):
        check_floats(scores, "scores", "[B]" if scores.dim() == 1 else "[B, C]")
        raise ValueError("the standard deviation of scores must be finite for temperature='auto', on all ranks")
    return temperature

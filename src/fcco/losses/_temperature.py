"""Losses whose surrogate compares scores in units of a temperature."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from fcco._checks import reads_are_free
from fcco._leave_out import leave_out_what_does_not_fit
from fcco.functional._surrogates import check_temperature
from fcco.losses._base import Loss

Temperature = float | Callable[[Any], Any]


class TemperedLoss(Loss):
    """Base class of the losses with a temperature, which is a number or a function of the step.

    A number may be changed at any time by assigning to :attr:`temperature`, and is part of ``state_dict``.
    """

    temperature: Temperature
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
        if not callable(self.temperature):
            destination[f"{prefix}temperature"] = torch.tensor(self.temperature, dtype=torch.float64)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        leave_out_what_does_not_fit(self, state_dict, prefix)  # before the temperature is taken out of it
        saved = state_dict.pop(f"{prefix}temperature", None)  # absent from states of a schedule, and from early ones
        errors: list[str] = args[-1]
        if saved is not None and not callable(self.temperature):
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

"""Losses whose surrogate compares scores in units of a temperature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fcco._checks import reads_are_free
from fcco.functional._surrogates import check_temperature
from fcco.losses._base import Loss

Temperature = float | Callable[[Any], Any]


class TemperedLoss(Loss):
    """Base class of the losses with a temperature, which is a number or a function of the step.

    A number may be changed at any time by assigning to :attr:`temperature`, and is part of ``state_dict``.
    """

    temperature: Temperature
    """τ, in units of the scores: a number above 0, or a function of the number of steps taken so far."""

    def _set_temperature(self, temperature: Temperature) -> None:
        self.temperature = temperature if callable(temperature) else check_temperature(temperature)

    def _temperature_now(self) -> float | Tensor:
        """Return τ of this step; a tensor if reading the number of steps would stall a device or break a graph."""
        temperature = self.temperature
        if not callable(temperature):
            return check_temperature(temperature)
        step = self.table.step
        if reads_are_free(step):
            return check_temperature(float(temperature(int(step))))
        return temperature(step.to(torch.float32))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not callable(self.temperature):
            destination[f"{prefix}temperature"] = torch.tensor(self.temperature, dtype=torch.float64)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        saved = state_dict.pop(f"{prefix}temperature", None)  # absent from states of a schedule, and from early ones
        if saved is not None and not callable(self.temperature):
            self.temperature = check_temperature(float(saved))
        super()._load_from_state_dict(state_dict, prefix, *args)

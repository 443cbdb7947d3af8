"""Loading a model without its loss: a state that does not fit is left out, where ``strict=False`` allows it."""

from __future__ import annotations

import copy
import sys
import warnings
from typing import Any

from torch import nn

from fcco._table import LEAVE_OUT
from fcco.placement._sharded_table import ShardedTable


def leave_out_what_does_not_fit(loss: nn.Module, state_dict: dict[str, Any], prefix: str) -> None:
    """Replace the state that ``loss`` is about to load by the one it has, if it would be refused and strict is False.

    All or nothing: a loss has several parts, and the table of one population must not meet the memory of another. The
    weights of an outer function that is a module are not part of it, and are loaded like those of the model.
    """
    level = _level_of_lenient_call()
    outer = tuple(f"{prefix}{path}." for path, _ in loss.named_modules() if path.split(".")[-1] == "outer")
    saved = [key for key in state_dict if key.startswith(prefix) and not key.startswith(outer)]
    if level is None or not saved:
        return
    try:  # with assign=True, nothing is copied
        _twin(loss).load_state_dict({key.removeprefix(prefix): state_dict[key] for key in saved}, assign=True)
        return
    except RuntimeError as error:
        reason = str(error).split("\n\t")[1].strip().removesuffix(LEAVE_OUT)
    for key in saved:
        del state_dict[key]
    state_dict |= {key: value for key, value in loss.state_dict(prefix=prefix).items() if not key.startswith(outer)}
    name = f"'{prefix[:-1]}' ({type(loss).__name__})" if prefix else type(loss).__name__
    message = f"the saved state of the loss {name} does not fit and is left out, so that a new loss starts afresh"
    warnings.warn(f"{message}: {reason}", stacklevel=level)


def _level_of_lenient_call() -> int | None:
    """Return the stack level of who called ``load_state_dict(strict=False)``, or None if strict is True.

    torch tells modules that strict is True whatever it is, so that it has to be looked up.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None:
        frame, level = frame.f_back, level + 1
        if frame.f_code.co_name == "load_state_dict" and "strict" in frame.f_locals:
            return None if frame.f_locals["strict"] else level + 1
    return None


def _twin(module: nn.Module) -> nn.Module:
    """Return a copy to try a state on. It shares the memory of all tensors, and leaves outer functions out."""
    twin = copy.copy(module)
    twin._buffers = {name: None if buffer is None else buffer.detach() for name, buffer in module._buffers.items()}
    twin._parameters = dict(module._parameters)
    parts = {name: part for name, part in module._modules.items() if name != "outer"}
    twin._modules = {name: None if part is None else _twin(part) for name, part in parts.items()}
    if isinstance(module, ShardedTable):
        twin.__dict__["_held"] = (_twin(module._held[0]),)
    return twin

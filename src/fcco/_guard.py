"""The guard of a memory: does what is remembered push the batch as a whole away from itself?

Where remembered outputs only repel, as negatives of a contrastive loss do, the outputs of a deep model can flee from
them together. All remembered outputs then look far away and all fresh ones alike: the model collapses while the loss
falls. In small encoders the mean force of the memory on the batch points to where the batch has
already moved, with a cosine of .6 to .9; in runs where a memory helps, of -.4 to .45. The guard therefore averages this
cosine, and as long as it is above .5, the step is that of the batch by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

EVERY = 8
"""How many steps there are between two checks."""
CHECKS = 8
"""How many checks there are before a verdict."""
_LIMIT = 0.5
_RATE = 0.1


def new_state() -> Tensor:
    """Return the state before the first check: averages of F·D, |F|² and |D|², and the number of checks."""
    return torch.zeros(4)


def alignment(state: Tensor) -> Tensor:
    """Return the average cosine of the force F on the batch and its displacement D from what is remembered."""
    along, force, distance, _ = state.unbind()
    return along / (force * distance).sqrt().clamp(min=torch.finfo(state.dtype).tiny)


def is_open(state: Tensor, *, waits: bool) -> Tensor:
    """Return whether the memory may be used; one that waits does so until there is a verdict."""
    has_verdict = state[-1] >= CHECKS
    return torch.where(has_verdict, alignment(state) < _LIMIT, not waits)


def after_check(
    state: Tensor, gradients: Sequence[Tensor], fresh: Sequence[Tensor], remembered: Sequence[Tensor]
) -> Tensor:
    """Return the state after a check.

    Parameters
    ----------
    state : Tensor of shape (4,)
        The state before.
    gradients : sequence of Tensors of shape (B, d)
        The gradient of the loss of the pool with respect to every output of the batch.
    fresh, remembered : sequence of Tensors of shapes (B, d) and (M, d)
        The outputs. If there are several, such as two views, they are vectors of one space.
    """
    force = -torch.cat(list(gradients)).sum(0)
    force = force / force.norm().clamp(min=torch.finfo(force.dtype).tiny)  # a single large force must not decide
    moved = torch.cat(list(fresh)).mean(0) - torch.cat(list(remembered)).mean(0)
    now = torch.stack([force @ moved, force @ force, moved @ moved]).to(state.dtype)
    checks = state[-1:] + 1
    return torch.cat([torch.lerp(state[:3], now, torch.clamp(1 / checks, min=_RATE)), checks])

"""Drawing the outer batch."""

from __future__ import annotations

import torch
from torch import Tensor


def draw_rows(n: int, size: int, generator: torch.Generator) -> Tensor:
    """``size`` different rows of n, every set of them equally likely, in O(size) time.

    >>> draw_rows(10**12, 3, torch.Generator().manual_seed(0)).unique().shape
    torch.Size([3])
    """
    device = generator.device
    if 2 * size > n:
        return torch.randperm(n, generator=generator, device=device)[:size]
    # The first `size` different ones of a sequence of draws; at most half of the draws are repeats, on average.
    rows: dict[int, None] = {}
    while len(rows) < size:
        draws = torch.randint(n, (size - len(rows),), generator=generator, device=device)
        rows.update(dict.fromkeys(draws.tolist()))
    return torch.tensor(list(rows), device=device)

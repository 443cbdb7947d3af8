"""CIFAR with rare positives, as tensors; random crops and flips."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fcco_reproduce.datasets import Classification, Split, load_cifar10, load_cifar100, split_imbalanced

LOADERS = {"cifar10": load_cifar10, "cifar100": load_cifar100}
PADDING = 4
# Over the training images of CIFAR-10, of pixels in [0, 1]; CIFAR-100's are within 0.03 of them.
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True, eq=False)
class Images:
    """Images of one part of a split.

    Args:
        padded: [n, height + 8, width + 8, 3] of uint8, with four black pixels on every side.
        target: [n], 1 for positive.
    """

    padded: Tensor
    target: Tensor

    def __len__(self) -> int:
        return len(self.target)

    def plain(self, rows: Tensor) -> Tensor:
        """Images as they are, [B, 3, height, width]."""
        height, width = (size - 2 * PADDING for size in self.padded.shape[1:3])
        centre = self.padded[rows, PADDING : PADDING + height, PADDING : PADDING + width]
        return _scaled(centre)

    def augmented(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Images moved by up to four pixels and mirrored half of the time, [B, 3, height, width]."""
        height, width = (size - 2 * PADDING for size in self.padded.shape[1:3])
        moves = torch.randint(2 * PADDING + 1, (2, len(rows), 1), generator=generator)
        mirrored = torch.randint(2, (len(rows), 1), generator=generator).bool()
        across = torch.arange(width)
        down = moves[0] + torch.arange(height)
        across = moves[1] + torch.where(mirrored, width - 1 - across, across)
        device = self.padded.device
        down, across = down.to(device), across.to(device)
        return _scaled(self.padded[rows[:, None, None], down[:, :, None], across[:, None, :]])


def _scaled(pixels: Tensor) -> Tensor:
    """[B, height, width, 3] of bytes as [B, 3, height, width] of floats, in the memory format that is fastest."""
    mean, deviation = (torch.tensor(values, device=pixels.device) * 255 for values in (MEAN, DEVIATION))
    return ((pixels.float() - mean) / deviation).permute(0, 3, 1, 2)


def _images(part: Classification, device: str) -> Images:
    pixels = torch.from_numpy(np.ascontiguousarray(part.x.transpose(0, 2, 3, 1)))
    padded = torch.nn.functional.pad(pixels, (0, 0, PADDING, PADDING, PADDING, PADDING))
    return Images(padded.to(device), torch.from_numpy(part.y).to(device))


@dataclass(frozen=True, eq=False)
class Parts:
    """A split on a device."""

    train: Images
    validation: Images
    test: Images


@lru_cache(maxsize=2)
def load(name: str, share: float, device: str = "cpu") -> Parts:
    """The authors' split: the lower half of the classes against ``share`` of the upper half."""
    if name == "made":
        return parts_of(made(), device)
    loader = LOADERS[name]
    return parts_of(split_imbalanced(loader("train"), loader("test"), share), device)


def parts_of(split: Split, device: str = "cpu") -> Parts:
    """A split as tensors on a device."""
    assert split.validation is not None
    return Parts(*(_images(part, device) for part in (split.train, split.validation, split.test)))


def made(n: int = 1_200, size: int = 8) -> Split:
    """Images of noise, in which positives have a brighter patch: for ``--quick``, and no evidence of anything."""
    generator = np.random.default_rng(0)

    def part(count: int) -> Classification:
        y = np.arange(count) % 10
        x = generator.integers(0, 200, size=(count, 3, size, size))
        x[y >= 5, :, : size // 2, : size // 2] += 40
        return Classification(x.astype(np.uint8), y, tuple("abcdefghij"))

    return split_imbalanced(part(n), part(n // 2), share=0.1)


def at_hand(name: str) -> bool:
    """Whether a set can be had: read from ``FCCO_DATA``, or downloaded."""
    try:
        LOADERS[name]("test")
    except FileNotFoundError:
        return False
    except OSError:
        if os.environ.get("FCCO_DATA"):
            raise
        return False
    return True

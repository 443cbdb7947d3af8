"""ResNets in the form that CIFAR's small images ask for: a first convolution of 3 x 3, and no pooling after it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class _Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = _convolution(before, width, 3, stride), nn.BatchNorm2d(width)
        self.second, self.second_norm = _convolution(width, width, 3, 1), nn.BatchNorm2d(width)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.around = nn.Sequential(_convolution(before, width, 1, stride), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        inside = self.second_norm(self.second(F.relu(self.first_norm(self.first(x)))))
        return F.relu(inside + self.around(x))


class ResNet(nn.Module):
    """Scores of images [B, 3, height, width].

    Parameters
    ----------
    widths : tuple of int
        Channels of each stage; every stage but the first halves the image.
    blocks : tuple of int
        Residual blocks of each stage.
    outputs : int
        Scores of an image; with one of them, the result is [B], else [B, outputs].
    stride : int
        Of the first convolution: 2 halves the image at once, and the cost by four.

    The ResNet-18 of the paper is ``ResNet((64, 128, 256, 512), (2, 2, 2, 2))``, its ResNet-34 has the blocks 3, 4, 6
    and 3.

    Examples
    --------
    >>> sum(p.numel() for p in ResNet((64, 128, 256, 512), (2, 2, 2, 2), outputs=10).parameters())
    11173962

    References
    ----------
    He et al., *Deep Residual Learning for Image Recognition*, CVPR 2016.
    """

    def __init__(self, widths: tuple[int, ...], blocks: tuple[int, ...], *, outputs: int = 1, stride: int = 1) -> None:
        super().__init__()
        if len(widths) != len(blocks) or not widths:
            raise ValueError(f"widths and blocks must be as many; got {widths} and {blocks}")
        self.stem, self.stem_norm = _convolution(3, widths[0], 3, stride), nn.BatchNorm2d(widths[0])
        stages, before = [], widths[0]
        for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            for block in range(count):
                stages.append(_Block(before, width, 2 if stage and not block else 1))
                before = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores."""
        features = self.stages(F.relu(self.stem_norm(self.stem(x)))).mean((2, 3))
        return self.head(features).squeeze(1) if self.head.out_features == 1 else self.head(features)


def _convolution(before: int, width: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(before, width, size, stride, padding=size // 2, bias=False)

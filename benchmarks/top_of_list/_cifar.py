"""Features of CIFAR-10's photographs: the last hidden layer of a small ResNet that was trained on other photographs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fcco_reproduce.ap._network import ResNet
from fcco_reproduce.datasets import load_cifar10
from harness.cache import sources
from top_of_list._sources import Loaded, some_rows

FOLDER = Path("build/top_of_list")
TRAINED_ON = 20_000  # the first photographs; the features are of later ones
WIDTHS = (16, 32, 64, 128)
PASSES, BATCH, LR = 18, 64, 0.2


def cifar(kind: int, n: int, share: float) -> Loaded:
    """Return the features of photographs, one of the ten kinds against the rest."""
    x, y = _features()
    rows = some_rows(y == kind, n, share)
    return x[rows], (y[rows] == kind).astype(np.int64)


def _features() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return features and kinds of the photographs that the network has not seen, from a file if there is one."""
    path = FOLDER / f"cifar10-{sources(features_of)[:12]}.npz"
    if not path.exists():
        data = load_cifar10("train")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # so that the features do not depend on the number of cores
        features = features_of(torch.from_numpy(data.x), torch.from_numpy(data.y))
        torch.set_num_threads(threads)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{os.getpid()}-{path.name}")
        np.savez(part, x=features, y=data.y[TRAINED_ON:])
        part.replace(path)
    with np.load(path) as held:
        return held["x"], held["y"]


def features_of(images: Tensor, kinds: Tensor) -> NDArray[Any]:
    """Train a network on the first photographs by cross entropy, and return its features [n, 128] of the others."""
    torch.manual_seed(0)
    net = ResNet(WIDTHS, (1,) * len(WIDTHS), outputs=10, stride=2)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _train(net, images[:TRAINED_ON], kinds[:TRAINED_ON])
    net.eval()
    with torch.no_grad():
        return np.concatenate([_hidden(net, _scaled(some)).numpy() for some in images[TRAINED_ON:].split(500)])


def _hidden(net: ResNet, x: Tensor) -> Tensor:
    """Return what the last layer of the network sees."""
    return net.stages(F.relu(net.stem_norm(net.stem(x)))).mean((2, 3))


def _train(net: nn.Module, images: Tensor, kinds: Tensor) -> None:
    """Train by SGD with momentum, on photographs of which half are mirrored."""
    steps = PASSES * (len(images) // BATCH)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, steps)
    for _ in range(PASSES):
        for rows in torch.randperm(len(images))[: steps // PASSES * BATCH].view(-1, BATCH):
            x = _scaled(images[rows])
            x = torch.where(torch.rand(BATCH, 1, 1, 1) < 0.5, x.flip(3), x)
            optimizer.zero_grad()
            F.cross_entropy(net(x), kinds[rows]).backward()
            optimizer.step()
            schedule.step()


def _scaled(images: Tensor) -> Tensor:
    return ((images.float() - 120) / 64).contiguous(memory_format=torch.channels_last)

"""Contrastive learning: an encoder is trained without labels, and judged by a linear probe of its features."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import fcco
from applications import DIVERGED, Application, Case, Method, Result, Table
from fcco.functional import contrastive_loss
from fcco_reproduce.datasets import load_cifar10
from harness.splits import Part, Parts
from harness.tasks import shuffled
from harness.training import DivergedError, train

OURS, IN_BATCH, LARGER = "ContrastiveLoss", "InfoNCE", "InfoNCE, 8 times the batch"
TIMES = 8


@lru_cache
def load(name: str) -> Parts:
    """Load images of 16 x 16 pixels in [0, 1]: 4,000 for training, 1,000 and 2,000 others. Digits are for the tests."""
    if name == "digits":
        bunch = load_digits()
        x = F.interpolate(torch.tensor(bunch.images / 16, dtype=torch.float32).unsqueeze(1), 16).repeat(1, 3, 1, 1)
        y = torch.tensor(bunch.target)
        return Parts(*(Part(x[a:b], (y[a:b],)) for a, b in ((0, 200), (200, 400), (400, 600))))
    made = []
    for part, first, last in (("train", 0, 4000), ("train", 4000, 5000), ("test", 0, 2000)):
        data = _cifar10(part)
        x = F.avg_pool2d(torch.tensor(data[0][first:last]).float() / 255, 2)
        made.append(Part(x, (torch.tensor(data[1][first:last]),)))
    return Parts(*made)


@lru_cache
def _cifar10(part: str) -> tuple[np.ndarray, np.ndarray]:
    data = load_cifar10(part)
    return data.x, data.y


def view(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random crop of each image to 12 x 12, with random mirroring, brightness and contrast."""
    draw = lambda high: torch.randint(high, (len(x), 1, 1, 1), generator=generator)  # noqa: E731
    across = torch.arange(12)
    columns = torch.where(draw(2) == 1, across.flip(0), across) + draw(5)
    rows = across.view(1, 1, 12, 1) + draw(5)
    image = torch.arange(len(x)).view(-1, 1, 1, 1)
    cropped = x[image, torch.arange(3).view(1, 3, 1, 1), rows, columns]
    contrast, brightness = (torch.rand(len(x), 1, 1, 1, generator=generator) for _ in range(2))
    middle = cropped.mean((1, 2, 3), keepdim=True)
    return (cropped - middle) * (0.6 + 0.8 * contrast) + middle + 0.4 * brightness - 0.2


class Encoder(nn.Module):
    """Three convolutions lead to 64 features, and a head, which only the loss uses, to 32."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 16), (16, 32), (32, 64))
        layers = [layer for a, b in sizes for layer in (nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(4, b), nn.ReLU())]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings of shape [B, 32]."""
        return self.head(self.features(x))


def objective(model: Encoder, x: Tensor) -> float:
    """Return the exact loss, on one pair of views of every training image."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return float(contrastive_loss(*(model(view(x, generator)) for _ in range(2))))


def probe(model: Encoder, parts: Parts) -> tuple[float, float]:
    """Return the validation and test accuracy of a logistic regression on the features of the images' centres."""
    with torch.no_grad():
        features = [model.features(part.x[..., 2:14, 2:14]).numpy() for part in parts]
    labels = [part.y[0].numpy() for part in parts]
    mean, deviation = features[0].mean(0), features[0].std(0) + 1e-6
    scaled = [(each - mean) / deviation for each in features]
    fitted = LogisticRegression(C=0.1, max_iter=200).fit(scaled[0], labels[0])
    return float(fitted.score(scaled[1], labels[1])), float(fitted.score(scaled[2], labels[2]))


def loss_of(method: str, n: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the loss of that name. InfoNCE has the positive among the candidates, as in SimCLR."""
    if method == OURS:
        return fcco.losses.ContrastiveLoss(n)
    return fcco.losses.ContrastiveLoss(n, include_positive=True, own_term="sampled", rule=fcco.BSGD())


def run(case: Case, method: str, lr: float, seed: int) -> Result:
    """Train once."""
    parts = load(case.data)
    x = parts.train.x
    torch.manual_seed(seed)
    model, loss_fn, generator = Encoder(), loss_of(method, len(x)), torch.Generator().manual_seed(seed)
    batch = case.batch * TIMES if method == LARGER else case.batch
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def step(rows: Tensor) -> Tensor:
        first, second = model(torch.cat([view(x[rows], generator) for _ in range(2)])).chunk(2)
        return loss_fn(first, second, rows)

    try:
        seconds = train(step, shuffled(len(x), batch, case.passes, seed), [optimizer])
    except DivergedError:
        return DIVERGED
    return Result(objective(model, x), *probe(model, parts), seconds)


def methods(_: Case) -> tuple[Method, ...]:
    """Return the methods. With 8 times the batch, an epoch has an eighth of the steps."""
    return Method(OURS, "ours"), Method(IN_BATCH, "in-batch"), Method(LARGER, "field")


def goal(table: Table) -> str:
    """Return the verdict on the objective beside that of InfoNCE with larger batches."""
    sentences = [f"Goal: a global contrastive loss as low as that of InfoNCE with batches {TIMES} times as large."]
    for case, entries in table.items():
        mean = {name: float(np.mean(entry.objective)) for name, entry in entries.items()}
        sentences.append(
            f"At batch {case.batch}, our objective is {mean[OURS]:.3f}. That of InfoNCE is {mean[IN_BATCH]:.3f} with "
            f"the same batch and {mean[LARGER]:.3f} with {TIMES} times the batch: "
            f"**{'reached' if mean[OURS] <= mean[LARGER] else 'missed'}**."
        )
    return " ".join(sentences)


APPLICATION = Application(
    title="Contrastive learning",
    text=(
        "An encoder is trained on 4,000 images of CIFAR-10 without their labels, at 16 x 16 pixels. Another 1,000 "
        "images are for validation and 2,000 for testing. The views of an image are random crops to 12 x 12 pixels, "
        "randomly mirrored and with random brightness and contrast. The encoder has three convolutions that lead to 64 "
        "features, and a head that maps them to 32 dimensions. The optimizer is Adam. A pass goes once over the "
        "images, whatever the batch size.\n\n"
        "- *ContrastiveLoss* has its defaults: it is a loss within the batch, without a table or a memory, and the "
        "positive is not among the candidates.\n"
        "- *InfoNCE* is SimCLR's loss within the batch, with the positive among the candidates.\n"
        "- *InfoNCE, 8 times the batch* is the same loss with batches that are 8 times as large. It makes the same "
        "number of passes and takes an eighth of the steps.\n\n"
        "The objective compares every training image with all others. Like *ContrastiveLoss*, it leaves the positive "
        "out of the candidates. The linear probe is a logistic regression on the 64 features of the training images, "
        "with their labels. The defaults of *ContrastiveLoss* were chosen on scikit-learn's digits; see "
        "[docs/defaults.md](docs/defaults.md)."
    ),
    objective="global contrastive loss of a pair of views of every training image",
    metric="accuracy of a linear probe",
    cases=(Case("cifar10", 16, 3), Case("cifar10", 64, 5)),
    methods=methods,
    run=run,
    lr=lambda case: 0.002,
    quick=Case("digits", 16, 1),
    goal=goal,
)

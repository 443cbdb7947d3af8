"""Several classes at once."""

import itertools

import numpy as np
import pytest
import torch

import fcco
import fcco.functional as F
from fcco.core import kernels
from fcco.core.step import as_batch, estimate, take_step
from fcco.core.surrogates import as_surrogate
from fcco.losses.table import FirstRows
from fcco.objectives.bipartite import AUC, AUCMargin, AveragePrecision
from fcco.objectives.classes import by_class
from fcco.objectives.partial_auc import PartialAUC

from .checks import all_draws, as_loss, assert_equal, bias, steps, value_and_gradient

LIBRARIES = ("numpy", "torch")
RULES = (fcco.BSGD(), fcco.SOAP(0.7), fcco.SOX(0.5))
KINDS = ("ap", "auc", "min_max", "partial")
N, C = 40, 6
torch.manual_seed(0)
SCORES = torch.randn(N, C, dtype=torch.float64)
LABELS = torch.where(torch.rand(N, C) < 0.2, -1, (torch.rand(N, C) < 0.3).long())
LABELS[:, 3] = -1  # no label at all
LABELS[:, 4] = torch.where(LABELS[:, 4] == 0, 1, LABELS[:, 4])  # no negatives
LABELS[:, 5] = torch.where(LABELS[:, 5] == 1, 0, LABELS[:, 5])  # no positives


def sizes_of(labels):
    """Return how many negatives and positives there are of each class."""
    return torch.stack([(labels == 0).sum(0), (labels == 1).sum(0)], 1).flatten().numpy().astype(float)


def objective_of(kind, name="squared_hinge", sizes=None, *, classes=C, tau=1.0, **options):
    """Return an objective of several classes."""
    ell = as_surrogate(name)
    if kind == "ap":
        return AveragePrecision(ell, tau, sizes, classes=classes, **options)
    if kind == "partial":
        return PartialAUC(ell, 0.7, sizes, classes)
    return AUC(ell, sizes, classes) if kind == "auc" else AUCMargin(1.0, sizes, classes)


def flat(loss):
    """Return a loss of scores and labels of all classes."""

    def call(scores, labels, index):
        x, rows = by_class(scores, labels, index)
        return loss(*x, index=rows)

    return call


def exact(kind, labels, name="squared_hinge"):
    """Return today's objective of all data."""
    return {
        "ap": lambda x: F.average_precision_loss(x, labels, surrogate=name),
        "auc": lambda x: F.auc_loss(x, labels, surrogate=name),
        "min_max": lambda x: F.auc_loss(x, labels, form="min_max"),
        "partial": lambda x: F.partial_auc_loss(x, labels, surrogate=name, temperature=0.7),
    }[kind]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("many", "few"), [(kernels.MANY, kernels.FEW), (kernels.MANY, 10**9), (kernels.MANY, 0), (0, 0)]
)
@pytest.mark.parametrize("name", ["ramp", "sigmoid", "hinge", "exp"])
@pytest.mark.parametrize("kind", KINDS)
def test_of_all_data_it_is_the_exact_mean_over_classes(kind, name, many, few, library, monkeypatch):
    """Pairs in one matrix, in a matrix of each class, and sorted."""
    monkeypatch.setattr(kernels, "MANY", many)
    monkeypatch.setattr(kernels, "FEW", few)
    loss, rows = as_loss(objective_of(kind, name), N * C, fcco.BSGD(), library), torch.arange(N)
    target = exact(kind, LABELS, name)
    assert_equal(lambda x: flat(loss)(x, LABELS, rows), target, SCORES)
    assert_equal(lambda x: flat(loss.eval())(x, LABELS, rows), target, SCORES)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_may_be_the_numbers_of_classes_or_nan(kind):
    loss, rows = as_loss(objective_of(kind), N * C, fcco.BSGD()), torch.arange(N)
    classes = torch.randint(-1, C, (N,))
    assert_equal(lambda x: flat(loss)(x, classes, rows), exact(kind, classes), SCORES)
    floats = LABELS.double().masked_fill(LABELS < 0, torch.nan)
    assert_equal(lambda x: flat(loss)(x, floats, rows), exact(kind, LABELS), SCORES)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_labels_may_stay_in_fixed_shapes(kind):
    objective = objective_of(kind)
    (x, rows), (every, all_rows) = (by_class(SCORES, LABELS, torch.arange(N), fixed=fixed) for fixed in (False, True))
    assert len(all_rows) == N * C
    one = take_step(objective, fcco.BSGD(), FirstRows(), as_batch(objective, x, rows))
    two = take_step(objective, fcco.BSGD(), FirstRows(), as_batch(objective, every, all_rows, fixed=True))
    assert torch.isclose(one.value, two.value, rtol=1e-12)
    assert torch.allclose(one.gradients[0], two.gradients[0][LABELS.flatten() >= 0], rtol=1e-12, atol=1e-15)
    assert not two.gradients[0][LABELS.flatten() < 0].any()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("many", [kernels.MANY, 0])
@pytest.mark.parametrize("name", ["ramp", "hinge", "exp", "sigmoid"])
def test_each_class_may_have_its_own_temperature(name, many, library, monkeypatch):
    monkeypatch.setattr(kernels, "MANY", many)
    tau = np.linspace(0.3, 2.0, C)
    loss = as_loss(objective_of("ap", name, tau=tau), N * C, fcco.BSGD(), library)
    scaled = exact("ap", LABELS, name)
    assert_equal(lambda x: flat(loss)(x, LABELS, torch.arange(N)), lambda x: scaled(x / torch.as_tensor(tau)), SCORES)


@pytest.mark.parametrize("name", ["ramp", "exp"])
@pytest.mark.parametrize("kind", ["ap", "auc", "partial"])
def test_with_a_memory_the_gradient_is_unbiased(kind, name):
    labels = torch.tensor([[0, 1, 1], [0, 0, 1], [0, 0, 1], [1, 1, 1], [1, 0, 1], [1, -1, -1]])  # one without negatives
    options = {"term": "exact"} if kind == "ap" else {}
    rng = np.random.RandomState(0)
    objective = objective_of(kind, name, sizes_of(labels), classes=3, **options)
    objective.refreshes = False
    x, rows = by_class(rng.randn(6, 3), labels.numpy(), np.arange(6))
    place = {row: k for k, row in enumerate(rows.tolist())}
    u = rng.rand(len(rows), 2)[:, slice(None) if objective.dim > 1 else 0] + 1
    u = np.log(u) if objective.log else u
    for size in (2, 3):
        examples = itertools.combinations(range(6), size)
        batches = [tuple(place[3 * i + k] for i in batch for k in range(3) if labels[i, k] >= 0) for batch in examples]
        for disjoint in (False, True):
            assert bias(objective, x, u, all_draws(batches, disjoint=disjoint)) < 1e-12


@pytest.mark.parametrize("kind", ["ap", "auc", "partial"])
def test_steps_with_a_memory_are_alike_in_numpy_and_torch(kind):
    """And each class remembers its own positives and negatives."""
    objective = objective_of(kind, "hinge", sizes_of(LABELS))
    losses = [as_loss(objective, N * C, fcco.SOAP(0.7), library, 4) for library in LIBRARIES]
    steps(flat(losses[0]), flat(losses[1]), SCORES, LABELS)
    held = losses[0].memory
    labelled = {(k, y) for k in range(C) for y in (0, 1) if (LABELS[:, k] == y).any()}
    born = held.born.numpy() >= 0
    found = set(zip(held.column2.numpy()[born].tolist(), held.column1.numpy()[born].tolist(), strict=True))
    assert found == labelled


@pytest.mark.parametrize("kind", ["ap", "auc", "partial"])
def test_each_process_weighs_its_anchors_by_those_of_all(kind):
    objective = objective_of(kind)
    x, rows = by_class(SCORES, LABELS, torch.arange(N))
    whole = estimate(objective, as_batch(objective, x, rows)).share
    parts = [
        estimate(objective, as_batch(objective, x, rows, mine=part)).share
        for part in (slice(0, 33), slice(33, len(rows)))
    ]
    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("memory", [0, 4])
@pytest.mark.parametrize("name", ["ramp", "squared_hinge", "sigmoid", "exp"])
@pytest.mark.parametrize("kind", ["ap", "auc", "partial"])
def test_extreme_scores_give_finite_losses(kind, name, memory, dtype):
    loss = flat(as_loss(objective_of(kind, name, sizes_of(LABELS)), N * C, fcco.SOAP(0.7), memory=memory))
    x = SCORES if kind == "ap" or name != "exp" else SCORES.abs() * (2 * LABELS - 1)
    for scale in (0.0, 1e2, 1e4):
        for _ in range(2):
            value_and_gradient(lambda x: loss(x, LABELS, torch.arange(N)), (scale * x).to(dtype))


def test_a_batch_without_any_label_keeps_its_pairs():
    """No batch is empty, and this one has no term."""
    x, rows = by_class(SCORES[:2], 0 * LABELS[:2] - 1, torch.arange(2))
    assert len(rows) == 2 * C
    step = take_step(objective_of("ap"), fcco.BSGD(), FirstRows(), as_batch(objective_of("ap"), x, rows))
    assert step.value == 0.0
    assert not step.gradients[0].any()

"""Losses with the samplers that feed them: the batch is stratified, the objective is not."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset

import fcco
from fcco import data, functional, losses

N = 240
FROZEN = fcco.SOX(1e-9)  # rows stay as they are


def binary():
    target = (torch.arange(N) % 6 == 0).long()
    return [target]


def ranking():
    """Lists of 6 to 74 items, a third to a half of them relevant: many more than fit into a batch."""
    sizes = torch.tensor([6, 10, 20, 30, 40, 60, 74])
    query = torch.arange(7).repeat_interleave(sizes)
    relevant = torch.rand(N) < torch.tensor([0.5, 0.3, 0.5, 0.4, 0.3, 0.5, 0.4])[query]
    return [torch.where(relevant, torch.randint(1, 4, (N,)), 0), query]


def survival():
    """A third have events, and those live longer than others were followed."""
    event = (torch.arange(N) % 3 == 0).long()
    return [torch.rand(N, dtype=torch.float64) + 0.4 * event, event]


def of_relevant_items(relevance, query):
    return data.QuerySampler(query, relevance, queries=3, items=16)


def of_all_items(relevance, query):
    return data.QuerySampler(query, queries=3, items=16)


@dataclass(frozen=True)
class Pair:
    """A loss that knows the population, one that does not (if there is such), and what they are fed and measured by."""

    population: object
    make: object
    ignorant: object
    exact: object
    sampler: object


PAIRS = {
    "average precision": Pair(
        binary,
        partial(losses.AveragePrecisionLoss.from_targets, rule=FROZEN),
        lambda target: losses.AveragePrecisionLoss(N, N // 2, rule=FROZEN),
        functional.average_precision_loss,
        partial(data.PositiveNegativeSampler, positives=16),
    ),
    "p-norm push": Pair(
        binary,
        partial(losses.PNormPushLoss.from_targets, p=2, rule=FROZEN),
        None,
        partial(functional.p_norm_push_loss, p=2),
        partial(data.PositiveNegativeSampler, positives=16, outer="negative"),
    ),
    "partial AUC": Pair(
        binary,
        partial(losses.PartialAUCLoss.from_targets, rule=FROZEN),
        None,
        functional.partial_auc_loss,
        partial(data.PositiveNegativeSampler, positives=16),
    ),
    "ListNet": Pair(
        ranking,
        partial(losses.ListNetLoss.from_targets, rule=FROZEN),
        lambda *_: losses.ListNetLoss(N, rule=FROZEN),
        functional.list_net_loss,
        of_relevant_items,
    ),
    "ListMLE": Pair(
        ranking,
        partial(losses.ListMLELoss.from_targets, rule=FROZEN),
        lambda *_: losses.ListMLELoss(N, rule=FROZEN),
        functional.list_mle_loss,
        of_all_items,
    ),
    "NDCG": Pair(
        ranking,
        partial(losses.NDCGLoss.from_targets, surrogate="sigmoid", rule=FROZEN),
        lambda *_: losses.NDCGLoss(N, surrogate="sigmoid", rule=FROZEN),
        partial(functional.ndcg_loss, surrogate="sigmoid"),
        of_relevant_items,
    ),
    "Cox": Pair(
        survival,
        lambda _, event: losses.CoxLoss.from_targets(event, rule=FROZEN, own_term="exact"),
        lambda *_: losses.CoxLoss(N, rule=FROZEN, own_term="exact"),
        functional.cox_loss,
        lambda _, event: data.EventSampler(event, events=16),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_mean_gradient_is_that_of_the_exact_objective(name):
    """With a table that holds the exact values, over the batches of 40 epochs: within 12%, most of it noise.

    A loss that takes the batch's make-up for the population's misses by 20% (Cox, average precision) to 90% (ListNet).
    """
    pair = PAIRS[name]
    others = pair.population()
    features = torch.randn(N, 3, dtype=torch.float64) + (others[0] > others[0].double().median()).unsqueeze(1)
    weights = torch.full((3,), 0.1, dtype=torch.float64, requires_grad=True)
    wanted = pair.exact(features @ weights, *others)
    gradient = torch.autograd.grad(wanted, weights)[0]
    exact = pair.make(*others).double()
    exact(features @ weights, *others, torch.arange(N))

    def error(loss_fn):
        with fcco.load_anyway():  # the table of a loss that knows the population, into one that does not
            loss_fn.load_state_dict(exact.state_dict())
        mean, values = 0.0, []
        sampler = pair.sampler(*others)
        for rows in (torch.tensor(rows) for _ in range(40) for rows in sampler):
            loss = loss_fn(features[rows] @ weights, *(x[rows] for x in others), rows)
            values.append(loss.item())
            mean = mean + torch.autograd.grad(loss, weights)[0]
        return (mean / len(values) - gradient).norm() / gradient.norm(), np.mean(values)

    off, value = error(pair.make(*others))
    assert off < 0.12
    assert value == pytest.approx(wanted.item(), rel=0.05)
    assert pair.ignorant is None or error(pair.ignorant(*others))[0] > 0.15


def train(make_loss, sampler, features, others, epochs, lr):
    """A linear model, trained with a loader over indexed rows."""
    torch.manual_seed(0)
    model = torch.nn.Linear(features.shape[1], 1)
    loss_fn = make_loss()
    optimizer = fcco.optim.MovingAverageSGD(model.parameters(), lr=lr, beta=0.5)
    loader = DataLoader(data.Indexed(TensorDataset(features, *others)), batch_sampler=sampler)
    for _ in range(epochs):
        for x, *targets, index in loader:
            optimizer.zero_grad()
            loss_fn(model(x).squeeze(1), *targets, index).backward()
            optimizer.step()
    with torch.no_grad():
        return model(features).squeeze(1)


def diabetes():
    features, y = load_diabetes(return_X_y=True)
    return torch.tensor(StandardScaler().fit_transform(features)).float(), torch.tensor(y).float()


def test_average_precision_on_breast_cancer():
    """From chance, that all 569 scores are equal and 212 of them are positive, to nearly all."""
    features, target = load_breast_cancer(return_X_y=True)
    features = torch.tensor(StandardScaler().fit_transform(features)).float()
    target = torch.tensor(1 - target)
    scores = train(
        lambda: losses.AveragePrecisionLoss.from_targets(target),
        data.PositiveNegativeSampler(target, positives=16),
        features,
        [target],
        epochs=5,
        lr=0.3,
    )
    start = functional.average_precision_loss(torch.zeros(len(target)), target)
    assert start.item() == pytest.approx(-(1 + 211 / 2) / (1 + 568 / 2))
    assert functional.average_precision_loss(scores, target) < start - 0.3


@pytest.mark.parametrize("loss", [losses.ListNetLoss, losses.NDCGLoss])
def test_ranking_patients_of_twenty_clinics(loss):
    """Lists of 22 of which batches hold 8, the relevant ones first."""
    features, y = diabetes()
    query, relevance = torch.arange(len(y)) % 20, (y > 150).long() + (y > 250).long()
    exact = functional.list_net_loss if loss is losses.ListNetLoss else functional.ndcg_loss
    scores = train(
        lambda: loss.from_targets(relevance, query),
        data.QuerySampler(query, relevance, queries=4, items=8),
        features,
        [relevance, query],
        epochs=10,
        lr=0.3,
    )
    start, end = exact(torch.zeros(len(y)), relevance, query), exact(scores, relevance, query)
    assert end < start - 0.1


def test_survival_of_patients():
    """Most of the way to the minimum of the partial likelihood."""
    features, y = diabetes()
    event = (torch.arange(len(y)) % 3 > 0).long()
    time = 400 - y
    scores = train(
        lambda: losses.CoxLoss.from_targets(event),
        data.EventSampler(event, events=8),
        features,
        [time, event],
        epochs=20,
        lr=0.1,
    )
    weights = torch.zeros(features.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = functional.cox_loss(features @ weights, time, event)
        loss.backward()
        return loss

    best = optimizer.step(closure) and closure()
    start, end = functional.cox_loss(torch.zeros(len(y)), time, event), functional.cox_loss(scores, time, event)
    assert end - best < 0.25 * (start - best)

"""The compiled loop against the engine, on the same rows."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fcco
from compiled.parts import fill
from fcco.compiled import RULES, new_state, train_linear
from fcco.compiled._pairs import new_batch
from fcco.estimators._listwise import ListwiseRanker
from fcco.estimators._precision import AveragePrecisionClassifier
from fcco.estimators._push import PNormPushClassifier
from fcco.estimators._sharpen import Ranking

ENGINE_RULES = {"bsgd": fcco.BSGD(), "soap": fcco.SOAP(0.3), "moap": fcco.MOAP(0.3), "sox": fcco.SOX(0.3)}
N, D, ALPHA, BETA, LR = 40, 4, 0.05, 0.3, 0.001


def binary(rng):
    return rng.permutation(np.arange(N) % 3 == 0)


def relevance_and_query(rng, lowest=0):
    """Lists of 1, 3, 4, ... items; the second has no relevant one, the last has nothing else."""
    query = np.repeat(np.arange(6), [1, 3, 4, 6, 18, 8])
    relevance = rng.integers(lowest, 4, N).astype(float)
    relevance[query == 1], relevance[query == 5] = 0, rng.integers(1, 4, 8)
    return relevance, query


def push(surrogate, p=3.0):
    def make(rng, rule):
        positive = binary(rng)
        loss = fcco.losses.PNormPushLoss.from_targets(positive, p=p, surrogate=surrogate, margin=0.7, rule=rule)
        ranker = PNormPushClassifier(p, surrogate=surrogate, margin=0.7, outer_batch=6, inner_batch=5)
        return ranker, (positive,), (positive,), loss

    return make


def precision(surrogate):
    def make(rng, rule):
        positive = binary(rng)
        options = {"surrogate": surrogate, "margin": 0.7}
        loss = fcco.losses.AveragePrecisionLoss.from_targets(
            positive, rule=rule, own_term="sampled", temperature=0.5, **options
        )
        ranker = AveragePrecisionClassifier(**options, temperature=0.5, outer_batch=6, inner_batch=5)
        return ranker, (positive,), (positive,), loss

    return make


def lists(objective, kind, inner, lowest=0, **options):
    def make(rng, rule):
        relevance, query = relevance_and_query(rng, lowest)
        loss = kind.from_targets(relevance, query, rule=rule, own_term="sampled", **options)
        ranker = ListwiseRanker(objective, outer_batch=3, inner_batch=inner, **options)
        return ranker, (relevance, query), (relevance, query), loss

    return make


CASES = {
    **{
        f"push-{surrogate}": push(surrogate)
        for surrogate in ("exp", "squared_hinge", "hinge", "logistic", "sigmoid", "ramp")
    },
    **{
        f"precision-{surrogate}": precision(surrogate) for surrogate in ("squared_hinge", "logistic", "sigmoid", "ramp")
    },
    **{f"listnet-{inner}": lists("listnet", fcco.losses.ListNetLoss, inner) for inner in (2, 5, 100)},
    **{f"listmle-{inner}": lists("listmle", fcco.losses.ListMLELoss, inner) for inner in (2, 5, 100)},
    **{f"ndcg-{inner}": lists("ndcg", fcco.losses.NDCGLoss, inner) for inner in (2, 5, 100)},
    "listmle-signed": lists("listmle", fcco.losses.ListMLELoss, 5, lowest=-3),
    "ndcg-sigmoid": lists("ndcg", fcco.losses.NDCGLoss, 5, surrogate="sigmoid"),
    "ndcg-squared_hinge": lists("ndcg", fcco.losses.NDCGLoss, 5, surrogate="squared_hinge"),
}


def prepare(case, rule_name, start=0.0, gamma=0.3, seed=0):
    """(task, w, the engine's loss, what it is called with beside scores and rows)."""
    rng = np.random.default_rng(seed)
    rule = ENGINE_RULES[rule_name]
    ranker, targets, known, loss = CASES[case](rng, rule)
    ranker.set_params(method=rule_name, gamma=gamma)
    x = rng.normal(size=(N, D))
    if isinstance(ranker, AveragePrecisionClassifier):
        ranking = Ranking(SimpleNamespace(data=x, scores=lambda z: x @ z), *targets, np.ones(N))
        task = ranker._task(ranking, np.zeros(D))  # its features are x / temperature
        loss.temperature = 1.0
    else:
        task = ranker._task(x, *targets)
    return task, start * rng.normal(size=D), loss, [torch.as_tensor(np.asarray(v) * 1) for v in known]


def start_of(task, w, seed, n=N):
    return new_state(w, n, task.plan.dim, task.plan.first, task.plan.second, seed)


def run_compiled(task, w, steps, seed=5, scale=None, alpha=ALPHA):
    state, plan = start_of(task, w, seed), copy.deepcopy(task.plan)
    rates = np.full(steps, LR)
    options = {"beta": BETA, "alpha": alpha, "scale": scale}
    return state, train_linear(task.x, plan.objective, plan.update, plan.sampler, state, rates, **options)


def run_engine(task, w, loss, known, steps, seed=5):
    """The same with fcco.losses and MovingAverageSGD, on the batches that the sampler draws."""
    state, sampler = start_of(task, w, seed), copy.deepcopy(task.plan.sampler)
    batch, x = new_batch(sampler.size, task.plan.dim), torch.from_numpy(task.x)
    weights = torch.tensor(w, requires_grad=True)
    optimizer = fcco.optim.MovingAverageSGD([weights], lr=LR, beta=BETA, weight_decay=ALPHA)
    values = []
    for _ in range(steps):
        rows = torch.from_numpy(fill(sampler, state, batch))
        optimizer.zero_grad()
        value = loss(x[rows] @ weights, *(v[rows] for v in known), rows)
        value.backward()
        optimizer.step()
        values.append(value.item())
    return weights.detach().numpy(), np.array(values)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", CASES)
def test_matches_the_engine(case, rule):
    task, w, loss, known = prepare(case, rule, start=0.3)
    run, values = run_compiled(task, w, steps=60)
    expected_w, expected = run_engine(task, w, loss, known, steps=60)
    np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(run.w, expected_w, rtol=1e-10, atol=1e-10)
    assert np.abs(run.w - w).max() > 1e-4


@pytest.mark.parametrize("case", ["listnet-5", "listmle-5"])
@pytest.mark.parametrize("rule", RULES)
def test_scores_far_apart(case, rule):
    """Scores 10⁴ apart: most exponentials underflow, relative to the batch's highest."""
    task, w, loss, known = prepare(case, rule, start=3000.0)
    run, values = run_compiled(task, w, steps=10)
    expected_w, expected = run_engine(task, w, loss, known, steps=10)
    assert np.ptp(task.x @ w) > 1e4
    np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(run.w, expected_w, rtol=1e-10)


@pytest.mark.parametrize("case", ["push-exp", "precision-squared_hinge", "listmle-5"])
def test_float32_features(case):
    """The features' dtype decides over nothing but their own rounding."""
    task, w, _, _ = prepare(case, "soap")
    narrow = copy.copy(task)
    object.__setattr__(narrow, "x", task.x.astype(np.float32))
    expected, found = run_compiled(task, w, 40)[0].w, run_compiled(narrow, w, 40)[0].w
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_scaled_steps_are_steps_in_scaled_features():
    """With scale s² a step in w is one in w / s on features s x, with the penalty of w."""
    task, w, _, _ = prepare("push-exp", "sox", start=0.1)
    s = np.array([0.5, 1.0, 2.0, 3.0])
    scaled = copy.copy(task)
    object.__setattr__(scaled, "x", task.x * s)
    runs = []
    for one, start, scale in ((task, w, s**2), (scaled, w / s, np.ones(D))):
        runs.append(run_compiled(one, start, 30, seed=3, scale=scale, alpha=0.0)[0])
    np.testing.assert_allclose(runs[0].w, runs[1].w * s, rtol=1e-10)


def test_a_batch_larger_than_the_data_is_all_of_it():
    task, _, _, _ = prepare("push-exp", "soap")
    plan, state = task.plan, start_of(task, np.zeros(D), seed=1)
    sampler = plan.sampler._replace(outer=1000, inner=1000)
    values = train_linear(task.x, plan.objective, plan.update, sampler, state, np.zeros(3), beta=1.0, alpha=0.0)
    np.testing.assert_allclose(values, 1.0)  # exp(0) to any power

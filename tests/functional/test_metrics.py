"""Metrics, against scikit-learn's, and against loops over pairs."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score

import fcco.functional as F
from fcco.compiled._concordance import count_pairs

SEEDS = range(4)


def draw(seed, n=60, levels=12):
    """Scores with many ties, labels, weights of which some are 0, and queries."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, size=n) / 4 if seed % 2 else rng.normal(size=n)
    target = rng.permutation(np.arange(n) % 4 == 0)
    return scores, target, rng.integers(0, 4, size=n).astype(float), rng.choice([-3, 5, 10**12], size=n)


def tensors(*arrays):
    return [torch.as_tensor(array) for array in arrays]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("ours", "theirs"), [(F.average_precision, average_precision_score), (F.roc_auc, roc_auc_score)]
)
def test_scikit_learn(ours, theirs, weighted, seed):
    scores, target, weight, _ = draw(seed)
    weight = weight if weighted else None
    h, y, *w = tensors(scores, target, *([weight] if weighted else []))
    value = ours(h, y, weight=w[0] if weighted else None)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(theirs(target, scores, sample_weight=weight), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [None, 1, 5, 100])
def test_ndcg_of_scikit_learn(k, seed):
    scores, _, relevance, query = draw(seed)
    values = []
    for q in np.unique(query):
        own = query == q
        values.append(ndcg_score([2 ** relevance[own] - 1], [scores[own]], k=k))
    h, y, q = tensors(scores, relevance, query)
    assert F.ndcg(h, y, query=q, k=k).item() == pytest.approx(np.mean(values), abs=1e-12)
    alone = ndcg_score([relevance], [scores], k=k)
    assert F.ndcg(h, torch.log2(1 + y), k=k).item() == pytest.approx(alone, abs=1e-12)


def naive_places(scores, target, k, rng, draws=4000):
    """The mean number of positives at the top over random orders of ties."""
    found = [target[np.lexsort((rng.random(len(scores)), -scores))[:k]].sum() for _ in range(draws)]
    return np.mean(found), 4 * np.std(found) / math.sqrt(draws) + 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_places_at_the_top(seed):
    scores, target, _, _ = draw(seed, n=20, levels=5)
    found, error = naive_places(scores, target, 6, np.random.default_rng(0))
    h, y = tensors(scores, target)
    assert F.precision_at_k(h, y, 6).item() * 6 == pytest.approx(found, abs=error)
    assert F.recall_at_k(h, y, 6).item() * target.sum() == pytest.approx(found, abs=error)


def test_places_of_queries():
    """The second query has one item, and the third no positive."""
    scores, target = torch.tensor([0.1, 0.3, 0.2, 0.5, 0.4]), torch.tensor([1, 0, 1, 1, 0])
    query = torch.tensor([7, 7, 7, 2, 3])
    assert F.precision_at_k(scores, target, 2, query=query).item() == pytest.approx((1 / 2 + 1 / 2 + 0) / 3)
    assert F.recall_at_k(scores, target, 2, query=query).item() == pytest.approx((1 / 2 + 1) / 2)


def naive_concordance(risk, time, event, weight):
    right = pairs = 0.0
    for i in range(len(risk)):
        for j in range(len(risk)):
            if event[i] and (time[j] > time[i] or (time[j] == time[i] and not event[j])):
                pairs += weight[i] * weight[j]
                right += weight[i] * weight[j] * ((risk[i] > risk[j]) + 0.5 * (risk[i] == risk[j]))
    return right / pairs


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", [2, 3, 8, 33, 64])
def test_concordance(n, seed):
    rng = np.random.default_rng(100 * n + seed)
    risk, time = rng.integers(0, n, size=n) / 2, rng.integers(1, 2 + n // 2, size=n).astype(float)
    event, weight = rng.random(n) < 0.7, rng.integers(1, 4, size=n).astype(float)
    time[np.argmax(time)] = n
    event[np.argmin(time)] = True
    h, t, e, w = tensors(risk, time, event, weight)
    plain = F.concordance_index(h, t, e)
    assert plain.item() == pytest.approx(naive_concordance(risk, time, event, np.ones(n)), abs=1e-12)
    assert plain.item() == pytest.approx(count_pairs(time, event, risk).concordance, abs=1e-12)
    weighted = naive_concordance(risk, time, event, weight)
    assert F.concordance_index(h.float(), t, e, weight=w).item() == pytest.approx(weighted, abs=1e-12)


class TestClasses:
    def test_mean_over_classes_that_have_both(self):
        """The last class has no positive, and the first lacks a label."""
        scores = torch.tensor([[0.1, 0.9, 0.0], [0.4, 0.2, 0.0], [0.3, 0.3, 0.0], [0.2, 0.1, 0.0]])
        target = torch.tensor([[1.0, 1, 0], [0, 0, 0], [math.nan, 1, 0], [1, 0, 0]])
        single = [F.roc_auc(scores[[0, 1, 3], 0], torch.tensor([1, 0, 1])), F.roc_auc(scores[:, 1], target[:, 1])]
        torch.testing.assert_close(F.roc_auc(scores, target), torch.stack(single).mean())
        torch.testing.assert_close(F.roc_auc(scores, target.nan_to_num(-1).int()), torch.stack(single).mean())

    def test_classes_by_number(self):
        rng = np.random.default_rng(0)
        scores, labels = torch.as_tensor(rng.normal(size=(30, 4))), torch.as_tensor(rng.integers(0, 4, size=30))
        wanted = roc_auc_score(F.as_one_vs_rest(labels, 4), scores, average="macro")
        assert F.roc_auc(scores, labels).item() == pytest.approx(wanted, abs=1e-12)
        wanted = average_precision_score(F.as_one_vs_rest(labels, 4), scores, average="macro")
        assert F.average_precision(scores, labels).item() == pytest.approx(wanted, abs=1e-12)


def test_nan_where_a_metric_is_not_defined():
    h, zeros, ones = torch.tensor([0.5, 1.0]), torch.zeros(2).int(), torch.ones(2).int()
    assert F.average_precision(h, zeros).isnan()
    assert F.average_precision(h, ones).item() == 1.0
    assert F.roc_auc(h, zeros).isnan()
    assert F.roc_auc(h, ones).isnan()
    assert F.roc_auc(h.unsqueeze(1), ones.unsqueeze(1)).isnan()
    assert F.recall_at_k(h, zeros, 1).isnan()
    assert F.precision_at_k(h, zeros, 1).item() == 0.0
    assert F.ndcg(h, zeros).isnan()
    assert F.concordance_index(h, h, zeros).isnan()


def test_no_gradient():
    h = torch.tensor([0.5, 1.0, 0.1], requires_grad=True)
    y = torch.tensor([1, 0, 1])
    for value in (F.average_precision(h, y), F.roc_auc(h, y), F.ndcg(h, y), F.concordance_index(h, y, y)):
        assert not value.requires_grad


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: F.precision_at_k(torch.zeros(3), torch.ones(3), 0), "k must be"),
        (lambda: F.ndcg(torch.zeros(3), torch.ones(2)), r"relevance must have the shape \[3\]"),
        (lambda: F.roc_auc(torch.zeros(3), torch.tensor([0, 1, 2])), "target must be 0, 1 or -1; got 2 at position 2"),
        (lambda: F.roc_auc(torch.zeros(3, 2), torch.tensor([0, 1, 2])), r"labels must be in \[0, 2\), or -1"),
        (lambda: F.concordance_index(torch.zeros(2), -torch.ones(2), torch.ones(2)), "time must be at least 0; got"),
        (lambda: F.average_precision(torch.zeros(3, 2), torch.ones(3, 2), weight=torch.ones(3)), "weight must be None"),
    ],
)
def test_errors(function, message):
    with pytest.raises(ValueError, match=message):
        function()

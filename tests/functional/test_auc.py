"""AUC and its parts: limits, identities, and scikit-learn's areas."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import fcco.functional as F


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    target = torch.as_tensor(rng.permutation(np.arange(40) % 4 == 0))
    return torch.as_tensor(rng.normal(size=40)) + target, target


def test_a_sharp_surrogate_counts_pairs(data):
    scores, target = data
    wanted = 1 - roc_auc_score(target, scores)
    assert F.auc_loss(1e6 * scores, target, surrogate="ramp").item() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("max_fpr", [0.1, 0.2, 0.5])
def test_partial_area_of_scikit_learn(data, max_fpr):
    """Which is standardised: 1/2 at the diagonal, 1 at best."""
    scores, target = data
    ours = F.cvar_partial_auc_loss(1e6 * scores, target, surrogate="ramp", max_fpr=max_fpr).item()
    area, least = max_fpr * (1 - ours), max_fpr**2 / 2
    assert (1 + (area - least) / (max_fpr - least)) / 2 == pytest.approx(roc_auc_score(target, scores, max_fpr=max_fpr))


def test_min_max_is_the_pairwise_square_loss_where_the_margin_is_not_reached(data):
    scores, target = data
    pairs = (5.0 + scores[~target].unsqueeze(0) - scores[target].unsqueeze(1)).square().mean()
    torch.testing.assert_close(F.auc_loss(scores, target, form="min_max", margin=5.0), pairs)


@pytest.mark.parametrize("margin", [0.3, 3.0])
def test_min_max_is_a_saddle_point(data, margin):
    """No a, b is better for the minimum, and no alpha >= 0 for the maximum."""
    scores, target = data
    up, down = scores[target], scores[~target]

    def lagrangian(a, b, alpha):
        gap = margin + down.mean() - up.mean()
        return (up - a).square().mean() + (down - b).square().mean() + 2 * alpha * gap - alpha**2

    alpha = max(float(margin + down.mean() - up.mean()), 0.0)
    value = F.auc_loss(scores, target, form="min_max", margin=margin)
    torch.testing.assert_close(value, lagrangian(up.mean(), down.mean(), alpha))
    for step in (-0.1, 0.1):
        assert lagrangian(up.mean() + step, down.mean(), alpha) > value
        assert lagrangian(up.mean(), down.mean() + step, alpha) > value
        assert lagrangian(up.mean(), down.mean(), max(alpha + step, 0.0)) <= value + 1e-12


def test_all_negatives_are_auc(data):
    wanted = F.auc_loss(*data)
    torch.testing.assert_close(F.cvar_partial_auc_loss(*data, max_fpr=1.0), wanted)
    torch.testing.assert_close(F.cvar_partial_auc_loss(*data, top_k=10**6), wanted)


def test_ties_at_the_edge_share_the_places():
    scores, target = torch.tensor([0.0, 2.0, 1.0, 1.0, 1.0]), torch.tensor([1, 0, 0, 0, 0])
    loss = F.cvar_partial_auc_loss(scores, target, top_k=2, surrogate="hinge", margin=0.0)
    assert loss.item() == pytest.approx((2 + 3 * (1 / 3) * 1) / 2)


def test_two_way_partial_auc_between_its_limits(data):
    one_way = F.two_way_partial_auc_loss(*data, temperature=0.7, positive_temperature=1e7)
    torch.testing.assert_close(one_way, F.partial_auc_loss(*data, temperature=0.7), rtol=1e-5, atol=0)
    flat = F.two_way_partial_auc_loss(*data, temperature=1e6, positive_temperature=1e6)
    torch.testing.assert_close(flat, F.auc_loss(*data), rtol=1e-5, atol=0)
    scores, target = data
    hardest = (1 + scores[~target].max() - scores[target].min()).square()
    cold = F.two_way_partial_auc_loss(*data, temperature=1e-4, positive_temperature=1e-4)
    torch.testing.assert_close(cold, hardest, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (F.auc_loss, {"form": "square"}, "form must be one of 'pairwise', 'min_max'; got 'square'"),
        (F.cvar_partial_auc_loss, {"max_fpr": 1.5}, r"max_fpr must be in \(0, 1\]; got 1.5"),
        (F.cvar_partial_auc_loss, {"top_k": 0}, "top_k must be"),
        (F.two_way_partial_auc_loss, {"positive_temperature": 0}, "positive_temperature must be finite and above 0"),
    ],
)
def test_options_that_cannot_be_meant(data, function, options, message):
    with pytest.raises(ValueError, match=message):
        function(*data, **options)

"""method="exact" of the linear rankers: any offset, any p, sparse features, and ends that are no minimum."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

from fcco.estimators._columns import Centred, column_moments
from fcco.estimators._exact import _penalise, minimise_exact
from fcco.estimators._listwise import ListwiseRanker
from fcco.estimators._precision import AveragePrecisionClassifier
from fcco.estimators._progress import Progress
from fcco.estimators._push import PNormPushClassifier, log_push
from fcco.functional import p_norm_push_loss
from fcco.functional._surrogates import resolve_surrogate

pytestmark = pytest.mark.filterwarnings("ignore:.* was given neither qid nor group:UserWarning")
RANKERS = [
    PNormPushClassifier(),
    AveragePrecisionClassifier(cv=None),
    ListwiseRanker("ndcg"),
    ListwiseRanker("listmle"),
]
FORMATS = [sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix, sparse.lil_matrix]
SURROGATES = ("exp", "squared_hinge", "hinge", "logistic", "sigmoid")


@pytest.fixture(scope="module")
def data():
    x, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(x)[:200, :8], y[:200]


def silent_fit(ranker, x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".* was given neither qid nor group")
        return ranker.fit(x, y)


@pytest.mark.parametrize("log", [False, True])
def test_the_penalty_joins_inside_the_logarithm(log):
    """Of e^F the logarithm of e^F + alpha/2 |w|², with its gradient, also where both underflow; nothing at w = 0."""
    w, slope, alpha = np.array([0.3, -0.2]), np.array([1.0, 2.0]), 0.5
    leaf = torch.tensor(w, requires_grad=True)
    value = torch.tensor(slope) @ leaf
    total = torch.logaddexp(value, (alpha / 2 * leaf.square().sum()).log()) if log else value + alpha / 2 * leaf @ leaf
    total.backward()
    found = _penalise(value.item(), slope, w, alpha, log)
    assert found[0] == pytest.approx(total.item())
    np.testing.assert_allclose(found[1], leaf.grad.numpy())
    at_zero = _penalise(-900.0, slope, np.zeros(2), alpha, log)
    assert at_zero[0] == -900.0
    np.testing.assert_array_equal(at_zero[1], slope)


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_log_push_is_the_logarithm(surrogate):
    rng = np.random.default_rng(0)
    scores, positive = torch.from_numpy(rng.normal(size=20)).requires_grad_(), torch.from_numpy(rng.random(20) < 0.4)
    expected = p_norm_push_loss(scores, positive, p=5.0, surrogate=surrogate).log()
    found = log_push(scores, positive, 5.0, resolve_surrogate(surrogate))
    torch.testing.assert_close(found, expected)
    for value in (found, expected):
        value.backward(retain_graph=True)
    torch.testing.assert_close(*(torch.autograd.grad(value, scores)[0] for value in (found, expected)))


def test_log_push_of_a_hinge_that_nothing_exceeds():
    scores = torch.tensor([0.0, 5.0], dtype=torch.float64, requires_grad=True)
    value = log_push(scores, torch.tensor([False, True]), 2.0, resolve_surrogate("hinge"))
    assert value.item() == -math.inf
    assert not torch.autograd.grad(value, scores)[0].any()


@pytest.mark.parametrize(("p", "surrogate"), [(64, "sigmoid"), (40, "sigmoid"), (128, "logistic"), (2000, "logistic")])
def test_a_large_p_is_minimised_as_well(p, surrogate, data):
    """No push starts at ℓ(0)^p and stays there: the mean height, F^(1/p), falls by a third at least.

    The logarithm is tracked, as the value itself underflows; without alpha it may fall for ever.
    """
    x, y = data
    ranker = PNormPushClassifier(p=p, surrogate=surrogate, alpha=0.0, max_iter=60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        ranker.fit(x, y)
    ell = resolve_surrogate(surrogate)
    scores = torch.from_numpy(ranker.decision_function(x))
    heights = [
        math.exp(log_push(h, torch.from_numpy(y == 1), p, ell).item() / p) for h in (scores, torch.zeros_like(scores))
    ]
    assert heights[1] == pytest.approx(ell.at_zero(scores))
    assert heights[0] < 0.67 * heights[1]


def test_a_penalty_that_outweighs_a_tiny_objective(data):
    """With p = 64 the sigmoid's push is 2^-64 at 0: the minimum is where alpha w = -gradient there, to first order."""
    x, y = data
    ranker = silent_fit(PNormPushClassifier(p=64, surrogate="sigmoid", alpha=1e-3), x, y)
    w = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    p_norm_push_loss(torch.from_numpy(x) @ w, torch.from_numpy(y == 1), p=64, surrogate="sigmoid").backward()
    np.testing.assert_allclose(ranker.coef_[0], -w.grad.numpy() / 1e-3, rtol=1e-3)


@pytest.mark.parametrize("ranker", RANKERS, ids=lambda r: f"{type(r).__name__}-{getattr(r, 'objective', '')}")
@pytest.mark.parametrize("offset", [1e3, 1e8])
def test_an_offset_changes_nothing(ranker, offset, data):
    """The rows at 1e8 have 8 digits less, and so may the coefficients."""
    x, y = data
    near = ranker.fit(x, y).coef_.ravel()
    far = ranker.fit(x + offset, y)
    np.testing.assert_allclose(far.coef_.ravel(), near, atol=1e-15 * offset + 1e-9, rtol=1e-12)
    if hasattr(far, "intercept_"):
        assert far.predict(x + offset).sum() == y.sum()


@pytest.mark.parametrize("ranker", RANKERS, ids=lambda r: f"{type(r).__name__}-{getattr(r, 'objective', '')}")
@pytest.mark.parametrize("offset", [1e8, 1e10])
def test_a_tolerance_below_rounding_is_no_cause_to_warn(ranker, offset, data):
    """At such offsets the gradient is never quite 0, and L-BFGS may end because it finds nothing lower."""
    x, y = data
    silent_fit(clone(ranker).set_params(alpha=1e-2, tol=1e-20), x + offset, y)
    silent_fit(clone(ranker).set_params(tol=1e-20), x + offset, y)


@pytest.mark.parametrize("ranker", RANKERS, ids=lambda r: f"{type(r).__name__}-{getattr(r, 'objective', '')}")
@pytest.mark.parametrize("kind", FORMATS)
def test_sparse_features_give_the_same(ranker, kind, data):
    x, y = np.where(np.abs(data[0]) < 0.3, 0.0, data[0]), data[1]
    dense = ranker.fit(x, y)
    expected, scores = dense.coef_, dense.predict(x)
    again = ranker.fit(kind(x), y)
    np.testing.assert_allclose(again.coef_, expected, atol=1e-9)
    np.testing.assert_allclose(again.predict(kind(x)), scores, atol=1e-8)
    np.testing.assert_allclose(again.predict(x), again.predict(kind(x)), atol=1e-12)
    narrow = ranker.fit(kind(x.astype(np.float32)), y)
    assert narrow.coef_.dtype == np.float32
    np.testing.assert_allclose(narrow.coef_, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("ranker", RANKERS, ids=lambda r: f"{type(r).__name__}-{getattr(r, 'objective', '')}")
def test_stochastic_methods_refuse_sparse_features(ranker, data):
    x, y = data
    ranker = type(ranker)(method="sox")
    assert not ranker.__sklearn_tags__().input_tags.sparse
    with pytest.raises(TypeError, match=r"method='sox' takes dense X only; got a sparse one: take method=\"exact\""):
        ranker.fit(sparse.csr_matrix(x), y)
    assert type(ranker)().__sklearn_tags__().input_tags.sparse


@pytest.mark.parametrize("surrogate", ["exp", "logistic", "sigmoid"])
def test_separable_classes_without_a_penalty_are_warned_of(surrogate):
    """The objective falls for ever; the order is right, the numbers finite, and there is but one warning."""
    x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), [0, 0, 1, 1]
    with pytest.warns(ConvergenceWarning) as caught:
        ranker = PNormPushClassifier(surrogate=surrogate, alpha=0.0).fit(x, y)
    assert len(caught) == 1
    assert "still falls as the coefficients grow" in str(caught[0].message)
    assert "set alpha > 0" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert np.isfinite(ranker.coef_).all()
    assert list(ranker.predict(x)) == y
    silent_fit(ranker.set_params(alpha=1e-3), x, y)


@pytest.mark.parametrize("surrogate", ["hinge", "squared_hinge"])
def test_hinges_reach_zero_on_separable_classes(surrogate):
    x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), [0, 0, 1, 1]
    ranker = silent_fit(PNormPushClassifier(surrogate=surrogate, alpha=0.0), x, y)
    assert ranker.loss_curve_[-1] == 0.0
    assert ranker.coef_[0, 0] >= 1.0


def kink(scores):
    """|h|, with a slope that points uphill: nothing is lower along it."""
    return float(np.abs(scores).sum()) + 1.0, -np.sign(scores) - (scores == 0)


def test_a_search_that_finds_nothing_lower_is_warned_of():
    progress = Progress(max_iter=10, tol=1e-5, n_iter_no_change=5, verbose=0, name="Ranker")
    x = np.array([[-1.0], [1.0]])
    features = Centred(x, *column_moments(x))
    with pytest.warns(ConvergenceWarning, match="found nothing lower along the gradient, which is not 0"):
        minimise_exact(features, kink, np.ones(1), np.ones(1), 1e-3, progress)
    assert len(progress.curve) == 1


def test_warm_start_in_other_units_begins_at_zero(data):
    """The coefficients of the fit before would overflow; a fit from 0 finds the same minimum."""
    x, y = data
    ranker = PNormPushClassifier(warm_start=True, alpha=1e-6).fit(x, y)
    again = silent_fit(ranker, x * 1e4, y).coef_
    np.testing.assert_array_equal(again, PNormPushClassifier(alpha=1e-6).fit(x * 1e4, y).coef_)

"""refit_head: what it changes, what it leaves, and what it reports."""

import copy
import inspect

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from torch import nn

from fcco.estimators import HeadRefit, refit_head

QUICK = {"alpha": (0.03, 3.0), "max_iter": 8}


def far_negatives(n=300, seed=0):
    """A cluster of negatives far out, and a few positives on the other side: no logistic model is right.

    Other weights than those of cross entropy have an average precision that is higher by 0.05 and more.
    """
    rng = np.random.default_rng(seed)
    centres = np.array([[0, 0, 0], [6, -6, 0], [2, 2, 0], [-3, -1, 0]])
    kind = rng.choice(4, n, p=[0.55, 0.2, 0.15, 0.1])
    x = rng.normal(size=(n, 3)) + centres[kind]
    return torch.tensor(x * [1.0, 5.0, 1.0] + [0.0, 0.0, 2.0], dtype=torch.float32), torch.tensor(kind >= 2)


def trained_head(x, y, **options):
    """A layer with the weights of cross entropy."""
    model = LogisticRegression(C=1e3, max_iter=1000).fit(x.double().numpy(), y.numpy())
    head = nn.Linear(x.shape[1], 1, **options)
    with torch.no_grad():
        head.weight.copy_(torch.tensor(model.coef_))
        if head.bias is not None:
            head.bias.copy_(torch.tensor(model.intercept_))
    return head


def precision(head, x, y):
    """The average precision of what the head has, without the rounding of its outputs."""
    with torch.no_grad():
        logits = x.double() @ head.weight[0].double()
    return average_precision_score(y.numpy(), logits.numpy())


@pytest.fixture(scope="module")
def train():
    return far_negatives()


@pytest.fixture(scope="module")
def valid():
    return far_negatives(seed=1)


def state(head):
    return {name: value.clone() for name, value in head.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class TestImprovement:
    def test_is_found_and_holds_on_new_rows(self, train, valid):
        head = trained_head(*train)
        test = far_negatives(2000, seed=2)
        before = precision(head, *train), precision(head, *valid), precision(head, *test)
        found = refit_head(head, *train, valid=valid)
        after = precision(head, *train), precision(head, *valid), precision(head, *test)
        assert found.changed
        assert found.train == pytest.approx((before[0], after[0]), rel=1e-9)
        assert found.valid == pytest.approx((before[1], after[1]), rel=1e-9)
        assert min(np.subtract(after, before)) > 0.03
        assert found.valid[1] - found.valid[0] > found.gain_error > 0.0
        assert found.alpha in (0.03, 0.3, 3.0, 30.0)
        assert found.temperature in (0.25, 0.0625)

    def test_logits_keep_their_mean_and_deviation(self, train, valid):
        head = trained_head(*train)
        with torch.no_grad():
            before = head(train[0])
            assert refit_head(head, *train, valid=valid, **QUICK).changed
            after = head(train[0])
        assert not torch.allclose(before, after, atol=0.1)
        torch.testing.assert_close(after.mean(), before.mean(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(after.std(), before.std(), rtol=1e-4, atol=1e-4)

    def test_scale_of_the_head_and_the_features_does_not_matter(self, train, valid):
        (x, y), (z, t) = train, valid
        expected, unit = trained_head(x, y).double(), torch.tensor([1e-2, 1e3, 1.0])
        moved = copy.deepcopy(expected)
        with torch.no_grad():
            moved.weight.mul_(50.0 / unit)
        first = refit_head(expected, x.double(), y, valid=(z.double(), t), **QUICK)
        second = refit_head(moved, x.double() * unit, y, valid=(z.double() * unit, t), **QUICK)
        assert first.changed
        assert (first.alpha, first.temperature) == (second.alpha, second.temperature)
        assert first.valid == pytest.approx(second.valid, rel=1e-6)
        torch.testing.assert_close(moved.weight, 50.0 * expected.weight / unit, rtol=1e-3, atol=1e-6)

    def test_without_a_bias(self, train, valid):
        head = trained_head(*train, bias=False)
        before = (train[0] @ head.weight[0]).std()
        assert refit_head(head, *train, valid=valid, **QUICK).changed
        torch.testing.assert_close((train[0] @ head.weight[0]).std(), before, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_in_other_dtypes(self, dtype, train, valid):
        """The precision that is reported is that of the weights as they were rounded."""
        head = trained_head(*train, dtype=dtype)
        parts = [(x.to(dtype), y) for x, y in (train, valid)]
        found = refit_head(head, *parts[0], valid=parts[1], **QUICK)
        assert found.changed
        assert head.weight.dtype == head.bias.dtype == dtype
        assert found.train[1] == pytest.approx(precision(head, *parts[0]), rel=1e-9)
        assert found.valid[1] == pytest.approx(precision(head, *parts[1]), rel=1e-9)

    @pytest.mark.parametrize("labels", [lambda y: y.float(), lambda y: 2 * y.long() - 1])
    def test_labels_of_any_kind(self, labels, train, valid):
        plain, other, few = trained_head(*train), trained_head(*train), {"alpha": [0.03], "max_iter": 3}
        found = refit_head(plain, *train, valid=valid, **few)
        parts = [(x, labels(y)) for x, y in (train, valid)]
        assert refit_head(other, *parts[0], valid=list(parts[1]), **few) == found
        assert same(state(plain), state(other))

    def test_features_with_a_gradient(self, train, valid):
        """They are left as they are, and so is the graph of the head."""
        head, x = trained_head(*train), train[0].clone().requires_grad_()
        body = nn.Linear(3, 3)
        with torch.no_grad():
            body.weight.copy_(torch.eye(3))
            body.bias.zero_()
        found = refit_head(head, body(x), train[1], valid=(body(valid[0]), valid[1]), **QUICK)
        assert found.changed
        assert x.grad is None
        assert head.weight.requires_grad
        assert head.weight.grad is None
        head(body(x)).sum().backward()
        assert body.weight.grad is not None
        assert head.weight.grad is not None

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_within_other_modes_is_the_same(self, mode, train, valid):
        """Features are computed in these."""
        first, second = trained_head(*train), trained_head(*train)
        expected = refit_head(first, *train, valid=valid, **QUICK)
        with mode():
            assert refit_head(second, train[0].clone(), train[1], valid=valid, **QUICK) == expected
        assert same(state(first), state(second))


class TestNeverWorse:
    @pytest.mark.parametrize("standard_errors", [0.0, 1.0])
    @pytest.mark.parametrize("seed", range(5))
    def test_neither_on_training_nor_on_validation_rows(self, seed, standard_errors):
        """On random labels, with any weights to begin with."""
        torch.manual_seed(seed)
        x, y = torch.randn(80, 6), torch.rand(80) < 0.3
        z, t = torch.randn(60, 6), torch.rand(60) < 0.3
        head = nn.Linear(6, 1, dtype=(torch.float32, torch.bfloat16)[seed % 2])
        before, kept = (precision(head, x, y), precision(head, z, t)), state(head)
        found = refit_head(head, x, y, valid=(z, t), standard_errors=standard_errors, **QUICK)
        after = precision(head, x, y), precision(head, z, t)
        assert found.train == pytest.approx((before[0], after[0]), rel=1e-9)
        assert found.valid == pytest.approx((before[1], after[1]), rel=1e-9)
        assert after[0] >= before[0]
        assert after[1] >= before[1]
        assert found.changed == (not same(kept, state(head)))
        assert found.changed == (found.valid[1] > found.valid[0])

    @pytest.mark.parametrize(("alpha", "changed"), [(30.0, False), (3.0, True)])
    def test_a_gain_on_validation_rows_alone_is_left(self, alpha, changed):
        """With these data and alpha = 30, both temperatures rank the training rows worse, and the others better."""
        train, valid = far_negatives(120, seed=8), far_negatives(120, seed=108)
        head = trained_head(*train)
        found = refit_head(head, *train, valid=valid, alpha=[alpha], max_iter=8, standard_errors=0.0)
        assert found.changed == changed
        assert found.train[1] >= found.train[0]

    def test_a_head_that_is_left_stays_bit_by_bit(self, train, valid):
        head = trained_head(*train)
        before, kept = head.weight, state(head)
        found = refit_head(head, *train, valid=valid, standard_errors=1e9, **QUICK)
        assert found == HeadRefit(
            changed=False,
            alpha=None,
            temperature=None,
            train=(found.train[0],) * 2,
            valid=(found.valid[0],) * 2,
            gain_error=found.gain_error,
        )
        assert found.gain_error > 0.0
        assert head.weight is before
        assert same(kept, state(head))

    def test_a_gain_that_does_not_hold_is_left(self, train):
        """The labels of the validation rows are turned round, so that what helps in training harms there."""
        head = trained_head(*train)
        kept = state(head)
        x, y = far_negatives(seed=1)
        assert not refit_head(head, *train, valid=(x, ~y), alpha=[30.0], standard_errors=3.0).changed
        assert same(kept, state(head))

    @pytest.mark.parametrize("value", [0.0, -0.0])
    def test_logits_that_are_all_equal(self, value, train, valid):
        head = trained_head(*train)
        with torch.no_grad():
            head.weight.fill_(value)
        found = refit_head(head, *train, valid=valid, **QUICK)
        assert not found.changed
        assert found.train == pytest.approx((train[1].double().mean().item(),) * 2)

    def test_a_feature_that_only_varies_in_validation(self, train, valid):
        """Its weight cannot be learnt, and is kept; the head as it was is judged with it."""
        (x, y), (z, t) = train, valid
        generator = torch.Generator().manual_seed(0)
        x, z = torch.cat([x, torch.full((300, 1), 3.0)], 1), torch.cat([z, torch.randn(300, 1, generator=generator)], 1)
        head = nn.Linear(4, 1)
        with torch.no_grad():
            head.weight.copy_(torch.cat([trained_head(*train).weight[0], torch.tensor([0.5])])[None])
            logits = head(x)
        before = precision(head, z, t)
        old = head.weight.detach().clone()
        found = refit_head(head, x, y, valid=(z, t), **QUICK)
        assert found.changed
        assert found.valid == pytest.approx((before, precision(head, z, t)), rel=1e-9)
        assert head.weight[0, 3].item() > 0.05
        with torch.no_grad():
            torch.testing.assert_close(head(x).mean(), logits.mean(), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(head(x).std(), logits.std(), rtol=1e-4, atol=1e-4)
        assert not torch.equal(head.weight, old)


def lacking(part, row):
    x = part[0].clone()
    x[row, 1] = torch.nan
    return x, part[1]


INVALID = {
    "two outputs": (lambda a, b: (nn.Linear(3, 2), *a, b), ValueError, "one output; got Linear"),
    "no layer": (lambda a, b: (nn.Identity(), *a, b), ValueError, "one output; got Identity"),
    "columns": (lambda a, b: (None, a[0][:, :2], a[1], b), ValueError, "features must have 3 columns.*; got 2"),
    "columns of valid": (lambda a, b: (None, *a, (b[0][:, :2], b[1])), ValueError, "features of valid .* 3 columns"),
    "one class": (lambda a, b: (None, a[0], a[1] & False, b), ValueError, "target must have both classes; got 0 pos"),
    "one class of valid": (lambda a, b: (None, *a, (b[0], b[1] | True)), ValueError, "target of valid must have both"),
    "nan": (lambda a, b: (None, *lacking(a, 7), b), ValueError, r"features must be finite; got nan at position \(7, 1"),
    "nan of valid": (lambda a, b: (None, *a, lacking(b, 3)), ValueError, "features of valid must be finite; got nan"),
    "integers": (lambda a, b: (None, a[0].long(), a[1], b), TypeError, "features must have a floating dtype"),
    "array": (lambda a, b: (None, a[0].numpy(), a[1], b), TypeError, "features must be a tensor; got ndarray"),
    "one row": (lambda a, b: (None, a[0][0], a[1], b), ValueError, r"features must have the shape \[n, d\]; got \[3\]"),
    "a column of labels": (
        lambda a, b: (None, a[0], a[1][:, None], b),
        ValueError,
        r"target must have the shape \[300",
    ),
    "labels": (lambda a, b: (None, a[0], a[1] * 2, b), ValueError, "target must be 0, 1 or -1; got 2"),
    "no pair": (lambda a, b: (None, *a, None), TypeError, "valid must be a pair, features and labels; got NoneType"),
    "a tensor for a pair": (lambda a, b: (None, *a, b[0]), TypeError, "valid must be a pair.*; got Tensor"),
    "large": (lambda a, b: (None, a[0].double() * 1e200, a[1], b), ValueError, r"features must be at most 1e\+150"),
}


class TestErrors:
    @pytest.mark.parametrize("name", INVALID)
    def test_change_nothing(self, name, train, valid):
        make, kind, message = INVALID[name]
        head, *parts, held = make(train, valid)
        head = trained_head(*train) if head is None else head
        kept = state(head)
        with pytest.raises(kind, match=message):
            refit_head(head, *parts, valid=held)
        assert same(kept, state(head))

    def test_validation_rows_are_needed(self, train):
        assert inspect.signature(refit_head).parameters["valid"].default is inspect.Parameter.empty
        with pytest.raises(TypeError, match="valid"):
            refit_head(trained_head(*train), *train)

    @pytest.mark.parametrize(
        ("options", "kind", "message"),
        [
            ({"alpha": ()}, ValueError, "alpha must be a sequence of at least one number"),
            ({"alpha": 1.0}, ValueError, r"alpha must be a sequence of at least one number; got 1\.0"),
            ({"alpha": (-1.0,)}, ValueError, "alpha must be finite and at least 0.0; got -1.0"),
            ({"temperature": ()}, ValueError, "temperature must be a sequence of at least one number"),
            ({"temperature": (0.0,)}, ValueError, "temperature must be finite and above 0; got 0.0"),
            ({"standard_errors": -1.0}, ValueError, "standard_errors must be finite and at least 0.0"),
            ({"max_iter": 0}, ValueError, "max_iter must be at least 1; got 0"),
            ({"max_iter": 1.5}, TypeError, "max_iter must be an integer; got 1.5"),
        ],
    )
    def test_options(self, options, kind, message, train, valid):
        with pytest.raises(kind, match=message):
            refit_head(trained_head(*train), *train, valid=valid, **options)

    def test_a_head_that_is_not_finite(self, train, valid):
        head = trained_head(*train)
        with torch.no_grad():
            head.weight[0, 1] = torch.inf
        with pytest.raises(ValueError, match=r"the weight of head must be finite; got inf at position \(0, 1\)"):
            refit_head(head, *train, valid=valid)

    def test_a_head_whose_weight_is_made_of_others(self, train, valid):
        """A change of it would be lost."""
        head = nn.utils.parametrizations.weight_norm(trained_head(*train))
        with pytest.raises(ValueError, match="the weight of head must be a parameter; got a parametrized one"):
            refit_head(head, *train, valid=valid)

"""The losses worked out by hand are those of the estimates, step by step: those with a table."""

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from fcco import losses
from fcco.functional._surrogates import resolve_surrogate
from fcco.losses import _bipartite
from fcco.losses._pair_arrays import LeftToTheEngine, Pairs, SortedPairs, compare, pieces_of

SURROGATES = ["ramp", "sigmoid", "squared_hinge", "hinge", "logistic", "exp", lambda t: (1 + t.square()).log() + 0.5]
RULES = [fcco.SOX(0.3), fcco.SOAP(0.3), fcco.MOAP(0.3), fcco.BSGD()]
N, N_POS = 60, 20


def both_ways(make, monkeypatch, steps, dtype=torch.float64, size=16):
    """Values, gradients and table of the loss by hand, and by the estimate and autograd."""
    results = []
    for by_hand in (True, False):
        with monkeypatch.context() as patch:
            if not by_hand:
                patch.setattr(_bipartite, "can_fuse", lambda *_: False)
            loss_fn, history = make(), []
            generator = torch.Generator().manual_seed(0)
            for step in range(steps):
                scores = torch.randn(size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
                repeats = step % 2 == 0 or size > N
                index = torch.randint(N, (size,), generator=generator)
                if not repeats:
                    index = torch.randperm(N, generator=generator)[:size]
                target = index < N_POS
                loss = loss_fn(scores, target, index)
                loss.backward()
                history += [loss.detach(), scores.grad]
            results.append((history, loss_fn.table.read(None, cold=0.0)))
    return results


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("temperature", [1.0, lambda step: 2.0 / (3 + step)], ids=["1", "schedule"])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("own_term", ["exact", "sampled"])
def test_average_precision(surrogate, temperature, rule, own_term, monkeypatch):
    def make():
        return losses.AveragePrecisionLoss(
            N, N_POS, margin=0.7, surrogate=surrogate, temperature=temperature, rule=rule, own_term=own_term
        )

    by_hand, by_graph = both_ways(make, monkeypatch, steps=6)
    torch.testing.assert_close(by_hand, by_graph, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_p_norm_push(surrogate, rule, monkeypatch):
    by_hand, by_graph = both_ways(lambda: losses.PNormPushLoss(N, 3, surrogate, 0.7, rule), monkeypatch, steps=6)
    torch.testing.assert_close(by_hand, by_graph, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: losses.AveragePrecisionLoss(N, N_POS, memory=0),
        lambda: losses.AveragePrecisionLoss(N, N_POS, surrogate="squared_hinge", memory=0),
        lambda: losses.PNormPushLoss(N, memory=0),
        lambda: losses.PNormPushLoss(N, surrogate="ramp", memory=0),
    ],
)
def test_float32_agrees_to_its_precision(make, monkeypatch):
    by_hand, by_graph = both_ways(make, monkeypatch, steps=4, dtype=torch.float32)
    torch.testing.assert_close(by_hand, by_graph, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("size", [64, 450, 1200])
@pytest.mark.parametrize("temperature", [1.0, 0.25, 3.0])
@pytest.mark.parametrize("own_term", ["exact", "sampled"])
@pytest.mark.parametrize("surrogate", ["ramp", "sigmoid", "squared_hinge"])
def test_float32_batches_of_all_sizes(surrogate, own_term, temperature, size, monkeypatch):
    """Pair by pair and sorted: half of a batch is positive, so that ramps and hinges are sorted from 347 on."""
    generator, index = torch.Generator().manual_seed(0), torch.arange(size)
    values = torch.randn(size, generator=generator)
    results = []
    for by_hand in (True, False):
        with monkeypatch.context() as patch:
            if not by_hand:
                patch.setattr(_bipartite, "can_fuse", lambda *_: False)
            options = {"surrogate": surrogate, "temperature": temperature, "own_term": own_term}
            loss_fn = losses.AveragePrecisionLoss(3 * size, size, rule=fcco.SOX(0.5), **options)
            for offset in (0.0, 0.5):
                scores = (values + offset * index / size).requires_grad_()
                loss = loss_fn(scores, index % 2, index)
            loss.backward()
            results.append((loss.detach(), scores.grad, loss_fn.table.u.clone()))
    assert results[0][1].dtype == torch.float32
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6 / size)


@pytest.mark.parametrize(
    ("surrogate", "rows", "way"),
    [
        ("ramp", 244, Pairs),
        ("ramp", 245, SortedPairs),
        ("squared_hinge", 245, SortedPairs),
        ("hinge", 245, SortedPairs),
        ("sigmoid", 500, Pairs),
    ],
)
def test_many_pairs_are_sorted(surrogate, rows, way):
    scores = np.linspace(-1.0, 1.0, rows)
    assert type(compare(resolve_surrogate(surrogate), scores, scores)) is way


def test_what_is_worked_out_by_hand():
    """The loss with a table is: the comparisons of this file are not of one way with itself."""
    loss = losses.AveragePrecisionLoss(N, N_POS, temperature=0.3, memory=0)(
        torch.randn(8, requires_grad=True), torch.arange(8) % 2, torch.arange(8)
    )
    assert type(loss.grad_fn).__name__ == "DotBackward0"


@pytest.mark.parametrize("surrogate", ["squared_hinge", "hinge", "ramp"])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 15.0])
def test_sorting_is_going_through_pairs(surrogate, spread):
    surrogate = resolve_surrogate(surrogate, 0.5)
    rng = np.random.default_rng(0)
    own, rivals = spread * rng.normal(size=40) + 7, spread * rng.normal(size=30) + 7
    own[:5] = rivals[:5]
    groups, pull = (rivals[:12], rivals[12:]), rng.normal(size=(2, 40))
    pairs, sorted_ = Pairs(surrogate, own, groups), SortedPairs(pieces_of(surrogate), own, groups)
    np.testing.assert_allclose(sorted_.sums, pairs.sums, rtol=1e-10, atol=1e-11)
    for gradient in ("pull_own", "pull_rivals"):
        mine, theirs = (getattr(way, gradient)(pull) for way in (sorted_, pairs))
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("surrogate", ["squared_hinge", "hinge", "ramp"])
def test_scores_too_far_apart_to_cumulate_are_left_to_the_engine(surrogate):
    scores = np.linspace(0.0, 2e3, 300)
    with pytest.raises(LeftToTheEngine):
        compare(resolve_surrogate(surrogate), scores, scores)


@pytest.mark.parametrize("surrogate", ["ramp", "squared_hinge"])
def test_large_batches_with_repeated_rows(surrogate, monkeypatch):
    """They are left to the estimate."""
    by_hand, by_graph = both_ways(
        lambda: losses.AveragePrecisionLoss(N, N_POS, surrogate=surrogate, memory=0), monkeypatch, steps=1, size=500
    )
    torch.testing.assert_close(by_hand, by_graph, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "loss_fn", [losses.AveragePrecisionLoss(N, N_POS, memory=0), losses.PNormPushLoss(N, memory=0)]
)
def test_reaches_the_weights_of_a_model(loss_fn):
    model = nn.Linear(3, 1)
    scores = model(torch.randn(8, 3)).squeeze(1)
    (2 * loss_fn(scores, torch.arange(8) % 2, torch.arange(8))).backward()
    assert model.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("surrogate", ["ramp", "squared_hinge"])
def test_an_outlier_in_a_large_batch_costs_no_digits(surrogate):
    torch.manual_seed(0)
    scores, target, index = torch.rand(600), torch.arange(600) % 2, torch.arange(600)
    for outlier in (1e8, -1e12):
        scores[1] = outlier
        loss = losses.AveragePrecisionLoss(600, 300, surrogate=surrogate, memory=0)(
            scores.requires_grad_(), target, index
        )
        exact = fcco.functional.average_precision_loss(scores.detach().double(), target, surrogate=surrogate)
        assert loss.item() == pytest.approx(exact.item(), rel=1e-5)
        scores = scores.detach()


@pytest.mark.parametrize(("surrogate", "temperature"), [("hinge", 1.0), ("ramp", 1.0), ("ramp", 0.125)])
@pytest.mark.parametrize("size", [100, 600])
def test_ties_at_the_kink_are_those_of_the_exact_objective(surrogate, temperature, size):
    torch.manual_seed(0)
    scores = ((torch.randn(size, dtype=torch.float64) * 2).round() / 2).requires_grad_()
    target, index = torch.arange(size) % 2, torch.arange(size)
    options = {"surrogate": surrogate, "temperature": temperature}
    losses.AveragePrecisionLoss(size, size // 2, rule=fcco.BSGD(), **options)(scores, target, index).backward()
    again = scores.detach().clone().requires_grad_()
    fcco.functional.average_precision_loss(again, target, **options).backward()
    torch.testing.assert_close(scores.grad, again.grad, rtol=1e-10, atol=1e-12)


def test_second_derivatives_are_refused():
    scores = torch.randn(8, requires_grad=True)
    loss = losses.AveragePrecisionLoss(N, N_POS, memory=0)(scores, torch.arange(8) % 2, torch.arange(8))
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(loss, scores, create_graph=True)


def test_a_population_that_cannot_be():
    scores, index = torch.randn(8, requires_grad=True), torch.arange(8)
    with pytest.raises(ValueError, match=r"at most 0 distinct negatives \(n = 60, n_pos = 60\); got 4"):
        losses.AveragePrecisionLoss(N, N, memory=0)(scores, index % 2, index)
    with pytest.raises(ValueError, match=r"the batch must have at most 1 distinct positive \(n_pos = 1\); got 4"):
        losses.AveragePrecisionLoss(N, 1, memory=0)(scores, index % 2, index)


@pytest.mark.parametrize("n_pos", [10**3, 10**7])
@pytest.mark.parametrize(("surrogate", "temperature"), [("squared_hinge", 1.0), ("ramp", 0.25), ("sigmoid", 0.01)])
def test_an_exact_own_term_keeps_its_digits_in_single_precision(n_pos, surrogate, temperature):
    """u_1 of the first is (own + (n_pos - 1) * 0) / n: the other positive is 5 below it."""
    options = {"own_term": "exact", "rule": fcco.BSGD(), "surrogate": surrogate, "temperature": temperature}
    loss_fn = losses.AveragePrecisionLoss(2 * n_pos, n_pos, **options)
    scores = torch.tensor([5.0, 0.0, 3.9, -9.0], requires_grad=True)
    loss_fn(scores, torch.tensor([1, 1, 0, 0]), torch.arange(4)).backward()
    assert loss_fn.table.u[0].tolist() == pytest.approx([1 / (2 * n_pos), 1 / (2 * n_pos)], rel=1e-6)
    again = scores.detach().double().requires_grad_()
    losses.AveragePrecisionLoss(2 * n_pos, n_pos, **options)(
        again, torch.tensor([1, 1, 0, 0]), torch.arange(4)
    ).backward()
    torch.testing.assert_close(scores.grad.double(), again.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("fused", [True, False])
def test_a_common_offset_costs_push_no_digits(fused):
    """By hand, and by the estimate that ``eval()`` takes."""
    scores = torch.tensor([0.0, 0.5, -0.25, 1.0, 0.125], requires_grad=True)
    target, index = torch.tensor([1, 0, 0, 1, 1]), torch.arange(5)
    loss_fn = losses.PNormPushLoss(5, rule=fcco.BSGD()).train(fused)
    values = [loss_fn(scores + shift, target, index).item() for shift in (0, 1e6)]
    assert values[1] == pytest.approx(values[0], rel=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda s: losses.AveragePrecisionLoss(N, N_POS, surrogate=s, memory=0),
        lambda s: losses.PNormPushLoss(N, surrogate=s, memory=0),
    ],
)
def test_parameters_of_a_surrogate_are_trained(make):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, t):
            return nn.functional.softplus(t / self.scale)

    surrogate = Scaled()
    make(surrogate)(torch.randn(8, requires_grad=True), torch.arange(8) % 2, torch.arange(8)).backward()
    assert surrogate.scale.grad.abs() > 0


def test_a_table_elsewhere_is_named():
    with pytest.raises(ValueError, match="the batch is on cpu, and what the loss keeps on meta"):
        losses.AveragePrecisionLoss(N, N_POS, memory=0).to("meta")(torch.randn(8), torch.arange(8) % 2, torch.arange(8))


def test_scores_whose_sum_overflows_are_no_warning():
    scores = torch.tensor([3e38, 3e38, 0.0, 0.0, 1.0, 2.0], requires_grad=True)
    loss = losses.PNormPushLoss(6, surrogate="sigmoid", memory=0)(
        scores, torch.tensor([1, 0, 0, 1, 0, 1]), torch.arange(6)
    )
    assert loss.isfinite()


def test_negated_views():
    z = torch.randn(8, dtype=torch.complex64).conj().imag
    assert z.is_neg()
    loss_fn = losses.AveragePrecisionLoss(N, N_POS, memory=0)
    assert loss_fn(z, torch.arange(8) % 2, torch.arange(8)).isfinite()


def test_rules_that_do_not_bound_the_gradient_are_left_to_the_engine():
    """It looks at the gradient, here e^50, and refuses what is above 2^64."""
    loss_fn = losses.PNormPushLoss(4, p=1, rule=fcco.SOX(0.1, safeguard=False))
    with pytest.raises(fcco.NotFiniteError, match=r"at position 1, in row 3"):
        loss_fn(torch.tensor([0.0, 50.0], requires_grad=True), torch.tensor([1, 0]), [2, 3])
    assert loss_fn.table.step == 0


def test_labels_in_bfloat16():
    scores, index = torch.randn(8, requires_grad=True), torch.arange(8)
    assert losses.PNormPushLoss(N, memory=0)(scores, (index % 2).bfloat16(), index).isfinite()


@pytest.mark.parametrize("make", [lambda rule: losses.CoxLoss(9, rule=rule), lambda rule: losses.NCALoss(9, rule=rule)])
def test_rules_for_all_rows_are_refused(make):
    with pytest.raises(ValueError, match="SCGD needs estimates of all n rows"):
        make(fcco.SCGD(0.5))


def test_names_are_to_be_numbered():
    with pytest.raises(TypeError, match=r"must be numbers; got <U1\. Encode them as numbers first"):
        losses.NCALoss.from_targets(["a", "b"])


@pytest.mark.parametrize("rule", [fcco.SOX(0.1, safeguard=False), fcco.SCENT(1e-12)], ids=str)
def test_a_gradient_that_is_too_large_names_the_argument(rule):
    """The estimate jumps by a factor of e^60 above its row."""
    loss_fn, target = losses.PNormPushLoss(4, p=1, rule=rule), torch.tensor([1, 0])
    loss_fn(torch.tensor([0.0, -60.0], requires_grad=True), target, [2, 3])
    with pytest.raises(
        fcco.NotFiniteError, match=r"scores is out of range: the gradient of inner .* in row 3"
    ) as caught:
        loss_fn(torch.tensor([0.0, 60.0], requires_grad=True), target, [2, 3])
    assert (caught.value.name, caught.value.place) == ("scores", (1,))

"""Temperatures that are learnt, by one parameter or for every example, and several positives."""

import pytest
import torch
from torch import nn

import fcco
from fcco.functional import contrastive_loss, robust_contrastive_loss, supervised_contrastive_loss
from fcco.losses import ContrastiveLoss, RobustContrastiveLoss, SupervisedContrastiveLoss

N = 7
MODES = pytest.mark.parametrize("mode", ["two_views", "cross_modal"])
POSITIVE = pytest.mark.parametrize("include_positive", [False, True])


def views(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(N, 3, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(2)]


class TestLearntTemperature:
    @MODES
    @POSITIVE
    def test_gradient_is_exact_on_a_full_batch(self, mode, include_positive):
        options = {"mode": mode, "include_positive": include_positive}
        tau = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        loss_fn, (first, second) = ContrastiveLoss(N, tau, rule=fcco.SOAP(1.0), **options), views()
        assert list(loss_fn.parameters()) == [tau]
        found = torch.autograd.grad(loss_fn(first, second, torch.arange(N)), [tau, first])
        exact = contrastive_loss(first, second, temperature=tau, chunk=2, **options)
        torch.testing.assert_close(found, torch.autograd.grad(exact, [tau, first]), rtol=1e-10, atol=1e-12)

    def test_gradcheck(self):
        first, second = views()
        tau = torch.tensor([0.4], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(
            lambda *x: contrastive_loss(*x[:2], temperature=x[2], chunk=3), (first, second, tau)
        )
        labels = torch.arange(N) % 2
        assert torch.autograd.gradcheck(
            lambda z, tau: supervised_contrastive_loss(z, labels, temperature=tau), (first, tau)
        )

    def test_a_function_of_parameters_goes_into_each_call(self):
        first, second = views()
        log_tau = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
        loss_fn = ContrastiveLoss(N, rule=fcco.SOAP(1.0))
        for _ in range(2):
            loss_fn(first, second, torch.arange(N), temperature=log_tau.exp()).backward()
        exact = torch.autograd.grad(contrastive_loss(first, second, temperature=log_tau.exp()), log_tau)
        torch.testing.assert_close(log_tau.grad, 2 * exact[0])
        with pytest.raises(TypeError, match=r"a number or a torch\.nn\.Parameter; give other tensors with each call"):
            ContrastiveLoss(N, log_tau.exp())
        with pytest.raises(ValueError, match=r"temperature must be finite and above 0; got -1.0 at position \(\)"):
            loss_fn(first, second, torch.arange(N), temperature=log_tau)
        with pytest.raises(ValueError, match=r"temperature must be one floating number; got \[2\] of torch.float32"):
            loss_fn(first, second, torch.arange(N), temperature=torch.ones(2))


class TestTemperatureOfEveryExample:
    @MODES
    @POSITIVE
    def test_step_is_down_the_exact_gradient(self, mode, include_positive):
        options = {"rho": 0.4, "mode": mode, "include_positive": include_positive}
        loss_fn = RobustContrastiveLoss(N, temperature=0.5, lr=1e-3, rule=fcco.SOAP(1.0), **options).double()
        loss_fn.tau.add_(0.1 * torch.rand(N, 2, dtype=torch.float64))
        before, (first, second) = loss_fn.tau.clone().requires_grad_(), views()
        value = loss_fn(first, second, torch.arange(N))
        exact = robust_contrastive_loss(first, second, before, chunk=3, **options)
        torch.testing.assert_close(value, exact, rtol=1e-10, atol=1e-12)
        slope, of_first = torch.autograd.grad(exact, [before, first])
        torch.testing.assert_close((before - loss_fn.tau) / 1e-3, 2 * N * slope, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(torch.autograd.grad(value, first)[0], of_first, rtol=1e-10, atol=1e-12)

    def test_step_is_that_of_the_rule(self):
        """SOX differentiates at the old row u: the slope is log u + ρ - g / u E[d] / τ."""
        first, second = views()
        loss_fn = RobustContrastiveLoss(N, 0.4, lr=1e-3, temperature=0.5, rule=fcco.SOX(0.3)).double()
        rows = torch.tensor([4, 1, 5])
        loss_fn(first[rows], second[rows], rows)
        old, before = loss_fn.table.u[rows].clone(), loss_fn.tau[rows].clone().requires_grad_()
        new = [x.detach()[rows] + 0.3 * x.detach()[rows].flip(1) for x in (first, second)]
        loss_fn(*(x.requires_grad_() for x in new), rows)
        mates = [nn.functional.normalize(x.detach(), dim=1) for x in new]
        a, others = mates[0][0], torch.cat([mates[0][1:], mates[1][1:]])
        d = others @ a - mates[0][0] @ mates[1][0]
        tau = before[0, 0].detach()
        log_g = (d / tau).logsumexp(0) - torch.tensor(4.0).log()
        ratio = (log_g - torch.maximum(old[0, 0], log_g + torch.tensor(0.3).log())).exp()
        at = torch.maximum(old[0, 0], log_g + torch.tensor(0.3).log())
        slope = at + 0.4 - ratio * ((d / tau).softmax(0) * d).sum() / tau
        assert ((tau - loss_fn.tau[4, 0]) / 1e-3).item() == pytest.approx(slope.item(), rel=1e-5)

    def test_temperatures_stay_within_bounds_and_learn_what_is_hard(self):
        """With ρ = 0 the maximum over distributions is the mean, and with a large ρ the hardest candidate."""
        first, second = views()
        for rho, bound in ((0.0, 0.9), (50.0, 0.05)):
            loss_fn = RobustContrastiveLoss(N, rho, lr=0.05, temperature=0.5, bounds=(0.05, 0.9))
            for _ in range(400):
                loss_fn(first, second, torch.arange(N))
            assert loss_fn.tau.isclose(torch.tensor(bound)).all()

    def test_repeated_rows_take_one_step_and_absent_ones_none(self):
        first, second = views()
        once, twice = (RobustContrastiveLoss(N, 0.4, rule=fcco.SOAP(1.0)) for _ in range(2))
        rows = torch.tensor([1, 2, 3])
        once(first[rows], second[rows], rows)
        rows = torch.tensor([1, 2, 3, 3, 2, 1])
        twice(first[rows], second[rows], rows)
        torch.testing.assert_close(once.tau, twice.tau)
        assert (once.tau[[0, 4, 5, 6]] == 0.1).all()

    def test_a_checkpoint_continues_bit_for_bit(self):
        first, second = views()
        whole, half, rest = (RobustContrastiveLoss(N, 0.4, rule=fcco.SOX(0.3)) for _ in range(3))
        batches = [torch.tensor(rows) for rows in ([0, 3, 4], [1, 3, 6], [5, 0, 1], [2, 3, 3])]
        for rows in batches:
            whole(first[rows], second[rows], rows)
        for rows in batches[:2]:
            half(first[rows], second[rows], rows)
        rest.load_state_dict(half.state_dict())
        for rows in batches[2:]:
            rest(first[rows], second[rows], rows)
        assert torch.equal(rest.tau, whole.tau)
        assert torch.equal(rest.table.u, whole.table.u)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rho": -1.0}, "rho must be finite and at least 0; got -1.0"),
            ({"bounds": (0.0, 1.0)}, "the first of bounds must be finite and above 0; got 0.0"),
            ({"bounds": (0.5, 0.1)}, "the second of bounds must be finite and at least 0.5; got 0.1"),
            ({"temperature": 0.0}, "temperature must be finite and above 0; got 0.0"),
            ({"mode": "clip"}, "mode must be one of"),
        ],
    )
    def test_bad_options_are_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            RobustContrastiveLoss(N, **{"rho": 0.3, **options})


class TestSeveralPositives:
    def test_one_positive_is_simclr(self):
        first, second = views()
        loss = supervised_contrastive_loss(torch.cat([first, second]), torch.arange(N).repeat(2), temperature=0.2)
        simclr = contrastive_loss(first, second, temperature=0.2, include_positive=True)
        torch.testing.assert_close(loss, simclr + torch.tensor(2.0 * N - 1).log())

    def test_temperature_may_be_learnt(self):
        (z, _), labels = views(), torch.arange(N) % 3
        tau = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        loss_fn = SupervisedContrastiveLoss.from_targets(labels, temperature=tau, rule=fcco.SOAP(1.0))
        found = torch.autograd.grad(loss_fn(z, labels, torch.arange(N)), [tau, z])
        exact = torch.autograd.grad(supervised_contrastive_loss(z, labels, temperature=tau), [tau, z])
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-11)

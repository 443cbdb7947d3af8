"""What CoupledLoss does beyond the rules' contract: outer functions of every kind, starts, and errors."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import fcco


def half_square(u):
    return u.square() / 2


class TestOuter:
    def test_takes_u_alone(self):
        loss_fn = fcco.CoupledLoss(half_square, 3, rule=fcco.SOX(gamma=0.1))
        assert loss_fn(torch.tensor([2.0, 4.0]), [0, 1]).item() == (2.0 + 8.0) / 2

    def test_takes_the_index(self):
        loss_fn = fcco.CoupledLoss(lambda u, index: u * index, 5, rule=fcco.SOX(gamma=0.1))
        assert loss_fn(torch.tensor([2.0, 4.0]), [3, 1]).item() == (6.0 + 4.0) / 2

    def test_takes_the_index_by_name(self):
        def outer(u, index=None):
            return u * index

        assert fcco.CoupledLoss(outer, 5, rule=fcco.SOX(gamma=0.1))(torch.tensor([2.0]), [3]).item() == 6.0

    def test_options_with_defaults_are_left_alone(self):
        loss_fn = fcco.CoupledLoss(lambda u, power=3: u**power, 5, rule=fcco.SOX(gamma=0.1))
        assert loss_fn(torch.tensor([2.0]), [3]).item() == 8.0

    @pytest.mark.parametrize("outer", [torch.log, torch.Tensor.log, torch.special.log1p])
    def test_may_be_a_built_in(self, outer):
        assert fcco.CoupledLoss(outer, 2, rule=fcco.SOX(gamma=0.1))(torch.ones(2), [0, 1]).isfinite()

    def test_vector_argument(self):
        seen = []
        loss_fn = fcco.CoupledLoss(lambda u: seen.append(u.shape) or u.sum(1), 4, dim=3, rule=fcco.SOX(gamma=0.1))
        loss_fn(torch.ones(2, 3), [0, 1])
        assert set(seen) == {(2, 3)}

    @pytest.mark.parametrize("shape", [(2,), (2, 1)])
    def test_scalar_argument_has_one_dimension(self, shape):
        seen = []
        loss_fn = fcco.CoupledLoss(lambda u: seen.append(u.shape) or u, 4, rule=fcco.SOX(gamma=0.1))
        inner = torch.ones(shape, requires_grad=True)
        loss_fn(inner, [0, 1]).backward()
        assert set(seen) == {(2,)}
        assert inner.grad.shape == shape

    def test_module_with_parameters_is_trained(self):
        """f's own parameters receive the gradient of f at the rows it is differentiated at."""

        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.tensor(3.0))

            def forward(self, u):
                return self.scale * u

        loss_fn = fcco.CoupledLoss(Scale(), 2, rule=fcco.SOAP(0.5))
        loss_fn(torch.tensor([2.0, 4.0], requires_grad=True), [0, 1]).backward()
        assert loss_fn.outer.scale.grad.item() == 3.0
        assert "outer.scale" in loss_fn.state_dict()

    def test_module_with_parameters_is_trained_where_nothing_else_is(self):
        """Also by a rule whose gradient is looked at, of which there is none here."""

        class Shift(nn.Module):
            def __init__(self):
                super().__init__()
                self.shift = nn.Parameter(torch.tensor(3.0))

            def forward(self, u):
                return self.shift + u

        loss_fn = fcco.CoupledLoss(Shift(), 2, rule=fcco.SOAP(0.5), log=True)
        loss_fn(torch.tensor([2.0, 4.0]), [0, 1]).backward()
        assert loss_fn.outer.shift.grad.item() == 1.0

    def test_stochastic_outer_is_unbiased(self):
        """f(u; iota) on a sample: the mean of the gradient over all samples is the gradient of f = E f(.; iota)."""
        slopes = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
        gradients = []
        for slope in slopes:
            loss_fn = fcco.CoupledLoss(lambda u, slope=slope: slope * u.square(), 2, rule=fcco.SOX(0.1))
            inner = torch.tensor([1.5, 0.5], dtype=torch.float64, requires_grad=True)
            loss_fn(inner, [0, 1]).backward()
            gradients.append(inner.grad)
        expected = slopes.mean() * 2 * torch.tensor([1.5, 0.5], dtype=torch.float64) / 2
        torch.testing.assert_close(torch.stack(gradients).mean(0), expected, rtol=1e-14, atol=0)

    def test_sample_is_handed_to_outer(self):
        """A stochastic f as the paper writes it, f_i(u; iota), with iota given by the caller."""
        loss_fn = fcco.CoupledLoss(lambda u, index, iota: iota * u.square(), 3, rule=fcco.SOX(gamma=0.1))
        inner = torch.tensor([1.0, 2.0], requires_grad=True)
        loss = loss_fn(inner, [0, 2], sample=torch.tensor([3.0, 5.0]))
        loss.backward()
        assert loss.item() == (3.0 + 20.0) / 2
        assert inner.grad.tolist() == [3.0, 10.0]

    def test_random_outer_sees_fresh_noise(self):
        torch.manual_seed(0)
        loss_fn = fcco.CoupledLoss(lambda u: u * torch.rand_like(u), 2, rule=fcco.SOX(gamma=0.1))
        values = {loss_fn(torch.ones(2), [0, 1]).item() for _ in range(5)}
        assert len(values) == 5

    @pytest.mark.parametrize("bad", [lambda u: u.sum(), lambda u: u.unsqueeze(1), lambda u: 3.0])
    def test_wrong_result_is_refused_before_any_change(self, bad):
        loss_fn = fcco.CoupledLoss(bad, 4, rule=fcco.SOX(gamma=0.1))
        with pytest.raises(ValueError, match=r"outer must map \[2\] to \[2\]; got"):
            loss_fn(torch.ones(2), [0, 1])
        assert not loss_fn.table.visits.any()

    @pytest.mark.parametrize("rule", [fcco.SOX(0.5), fcco.SOAP(0.5), fcco.BSGD()], ids=str)
    def test_outer_may_work_in_place(self, rule):
        """What f does to its argument reaches neither the table nor the caller's tensor."""
        inner = torch.tensor([-1.0, 2.0])
        loss_fn = fcco.CoupledLoss(nn.ReLU(inplace=True), 3, rule=rule)
        loss_fn((inner * 1).requires_grad_(), [0, 1]).backward()
        assert loss_fn.table.u.tolist() == [-1.0, 2.0, 0.0]
        loss_fn.eval()(inner, [0, 1])
        assert inner.tolist() == [-1.0, 2.0]

    def test_compiled_outer_takes_the_index(self):
        class Weigh(nn.Module):
            def forward(self, u, index):
                return u * index

        loss_fn = fcco.CoupledLoss(torch.compile(Weigh(), backend="eager"), 4, rule=fcco.SOX(gamma=0.1))
        assert loss_fn(torch.tensor([2.0]), [3]).item() == 6.0

    def test_half_precision_f_is_summed_in_float32(self):
        loss_fn = fcco.CoupledLoss(lambda u: u.bfloat16(), 2, rule=fcco.SOX(gamma=0.1))
        assert loss_fn(torch.ones(2, requires_grad=True), [0, 1]).dtype == torch.float32

    def test_outer_that_fails_changes_nothing(self):
        def outer(u):
            raise RuntimeError("no such f")

        loss_fn = fcco.CoupledLoss(outer, 4, rule=fcco.SOX(gamma=0.1))
        with pytest.raises(RuntimeError, match="no such f"):
            loss_fn(torch.ones(2), [0, 1])
        assert not loss_fn.table.visits.any()
        assert loss_fn.table.step == 0


class TestStart:
    @pytest.mark.parametrize("log", [False, True])
    def test_first_visit_takes_the_estimate(self, log):
        loss_fn = fcco.CoupledLoss(half_square, 3, rule=fcco.SOX(0.1), log=log)
        loss_fn(torch.tensor([0.7]), [1])
        torch.testing.assert_close(loss_fn.table.u, torch.tensor([0.0, 0.7, 0.0]))

    def test_no_value_of_u_is_a_sentinel(self):
        """A row that holds zero has been visited as much as any other."""
        loss_fn = fcco.CoupledLoss(half_square, 1, rule=fcco.SOX(0.5))
        loss_fn(torch.tensor([0.0]), [0])
        loss_fn(torch.tensor([1.0]), [0])
        assert loss_fn.table.u.item() == 0.5

    def test_zeros_of_the_published_code(self):
        loss_fn = fcco.CoupledLoss(half_square, 1, rule=fcco.SOX(0.1), init=0.0)
        inner = torch.tensor([1.0], requires_grad=True)
        loss_fn(inner, [0]).backward()
        assert loss_fn.table.u.item() == pytest.approx(0.1)
        assert inner.grad.item() == 0.0

    def test_zero_in_log_space(self):
        loss_fn = fcco.CoupledLoss(lambda log_u: log_u, 1, rule=fcco.SOX(0.1), log=True, init=0.0)
        inner = torch.tensor([2.0], requires_grad=True)
        loss_fn(inner, [0]).backward()
        assert loss_fn.table.u.item() == pytest.approx(2.0 + math.log(0.1))
        assert inner.grad.item() == pytest.approx(1 / 0.1)

    def test_moap_starts_from_zero(self):
        loss_fn = fcco.CoupledLoss(half_square, 10, rule=fcco.MOAP(0.1))
        loss_fn(torch.tensor([1.0, 1.0]), [3, 4])
        assert loss_fn.table.u[3].item() == pytest.approx(0.1 * 10 / 2)

    def test_moap_is_unbiased(self):
        """By enumeration: over all pairs of rows, the mean of u after one step from zero is gamma * g."""
        g = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
        tables = []
        pairs = [(i, j) for i in range(4) for j in range(4)]  # drawn with replacement, so some rows stand twice
        for i, j in pairs:
            loss_fn = fcco.CoupledLoss(half_square, 4, rule=fcco.MOAP(0.3))
            loss_fn(g[[i, j]], [i, j])
            tables.append(loss_fn.table.read(None, cold=0.0))
        torch.testing.assert_close(torch.stack(tables).mean(0), 0.3 * g, rtol=1e-14, atol=0)


class TestErrors:
    @pytest.fixture
    def loss_fn(self):
        return fcco.CoupledLoss(half_square, 10, rule=fcco.SOX(gamma=0.1))

    @pytest.mark.parametrize(
        ("inner", "index", "error", "message"),
        [
            (torch.ones(2), [0, 10], IndexError, r"index must be in \[0, 10\); got 10 at position 1"),
            (torch.ones(2), [-1, 3], IndexError, r"index must be in \[0, 10\); got -1 at position 0"),
            (
                torch.ones(3),
                [0, 1],
                ValueError,
                r"index must have the shape \[3\], like inner; got \[2\]",
            ),
            (torch.ones(2, 2), [0, 1], ValueError, r"inner must have the shape \[B1\]; got \[2, 2\]"),
            (torch.ones(()), [0], ValueError, r"inner must have the shape \[B1\]; got \[\]"),
            (torch.ones(0), torch.zeros(0, dtype=torch.int64), ValueError, "must not be empty"),
            (torch.ones(1), [], ValueError, "must not be empty"),
            (torch.ones(2), [[0, 1]], ValueError, r"index must have the shape \[B1\]; got \[1, 2\]"),
            (torch.ones(2), [0.0, 1.0], TypeError, r"index must be of an integer dtype; got float64 in \[0.0, 1.0\]"),
            (torch.ones(2), [True, False], TypeError, "index must be of an integer dtype; got bool"),
            (torch.tensor([1.0, math.nan]), [0, 1], ValueError, r"inner must be finite; got nan at position 1"),
            (torch.tensor([-math.inf, 1.0]), [0, 1], ValueError, r"inner must be finite; got -inf at position 0"),
            (torch.ones(2, dtype=torch.int64), [0, 1], TypeError, "inner must be of a floating dtype"),
            ([1.0, 2.0], [0, 1], TypeError, "inner must be a tensor; got list"),
        ],
    )
    def test_says_which_value(self, loss_fn, inner, index, error, message):
        with pytest.raises(error, match=message):
            loss_fn(inner, index)
        assert loss_fn.table.step == 0
        assert not loss_fn.table.visits.any()

    def test_names_the_entry_of_a_matrix(self):
        loss_fn = fcco.CoupledLoss(lambda u: u.sum(1), 10, dim=2, rule=fcco.SOX(gamma=0.1))
        with pytest.raises(ValueError, match=r"inner must be finite; got inf at position 0, 1"):
            loss_fn(torch.tensor([[1.0, math.inf]]), [0])
        with pytest.raises(ValueError, match=r"inner must have the shape \[B1, 2\]; got \[4\]"):
            loss_fn(torch.ones(4), [0, 1, 2, 3])

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_log_space_refuses_all_but_minus_infinity(self, bad):
        loss_fn = fcco.CoupledLoss(half_square, 10, log=True, rule=fcco.SOX(gamma=0.1))
        with pytest.raises(ValueError, match=rf"inner must be finite or -inf .*; got {bad} at position 1"):
            loss_fn(torch.tensor([-math.inf, bad]), [0, 1])

    def test_a_large_finite_sum_is_legal(self):
        """The quick check adds up the batch, which may overflow where no value does."""
        largest = torch.finfo(torch.float32).max
        loss_fn = fcco.CoupledLoss(torch.sqrt, 10, rule=fcco.SOX(gamma=0.1))
        loss_fn(torch.full((4,), largest), [0, 1, 2, 3])
        assert (loss_fn.table.u[:4] == largest).all()

    def test_all_rows_are_needed(self):
        loss_fn = fcco.CoupledLoss(half_square, 10, rule=fcco.SCGD())
        with pytest.raises(ValueError, match=r"SCGD tracks all rows: inner needs 10 rows; got \[4\]"):
            loss_fn(torch.ones(4), [0, 1, 2, 3])

    @pytest.mark.parametrize(
        ("weight", "error", "message"),
        [
            ([1.0, 1.0], ValueError, r"weight must be a tensor of the shape \[2\]; got list"),
            (torch.ones(3), ValueError, r"weight must be a tensor of the shape \[2\]; got \[3\]"),
            (torch.tensor([1, 1]), TypeError, "weight must be of a floating dtype or bool; got torch.int64"),
            (torch.tensor([1.0, -2.0]), ValueError, r"weight must be at least 0; got -2.0 at position 1"),
            (torch.tensor([math.nan, 1.0]), ValueError, r"weight must be finite; got nan at position 0"),
        ],
    )
    def test_weights_are_checked(self, loss_fn, weight, error, message):
        with pytest.raises(error, match=message):
            loss_fn(torch.ones(2), [0, 1], weight=weight)
        assert not loss_fn.table.visits.any()

    @pytest.mark.parametrize("gamma", [lambda step: 0.0, lambda step: 1.5, lambda step: math.nan])
    def test_a_schedule_out_of_range_is_refused(self, gamma):
        loss_fn = fcco.CoupledLoss(half_square, 10, rule=fcco.SOX(gamma))
        with pytest.raises(ValueError, match=r"gamma of SOX must be in \(0, 1\]; got"):
            loss_fn(torch.ones(2), [0, 1])
        assert not loss_fn.table.visits.any()

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"n": 0}, ValueError, "n must be at least 1; got 0"),
            ({"n": 2.5}, TypeError, "n must be an integer; got 2.5"),
            ({"n": 3, "dim": -1}, ValueError, "dim must be at least 1; got -1"),
            ({"n": 3, "rule": fcco.SOX}, TypeError, "rule must be an instance"),
            ({"n": 3, "rule": fcco.MOAP(), "init": 1.0}, ValueError, r"MOAP starts from 0.0, so init cannot be 1.0"),
            ({"n": 3, "log": True, "init": -1.0}, ValueError, "not negative in log space; got -1.0"),
            ({"n": 3, "init": math.nan}, ValueError, "init must be a finite value of g; got nan"),
            ({"n": 3, "outer": 5}, TypeError, "outer must be callable; got 5"),
        ],
    )
    def test_construction(self, options, error, message):
        with pytest.raises(error, match=message):
            fcco.CoupledLoss(**{"outer": half_square, "rule": fcco.SOX(0.1), **options})

    @pytest.mark.parametrize("index", [torch.zeros(2), torch.zeros(2, dtype=torch.bool), "ab"])
    def test_index_of_another_type(self, loss_fn, index):
        with pytest.raises(TypeError, match="index must be of an integer dtype; got"):
            loss_fn(torch.ones(2), index)

    @pytest.mark.parametrize("bad", [5.0, 0.0, math.nan])
    def test_rates_of_rows_are_checked(self, bad):
        def schedule(visits):
            return bad

        schedule.per_row = True
        loss_fn = fcco.CoupledLoss(lambda u: u.sum(1), 10, dim=2, rule=fcco.SOX(schedule))
        with pytest.raises(ValueError, match=rf"gamma of SOX must be in \(0, 1\]; got {bad}"):
            loss_fn(torch.ones(2, 2), [0, 1])

    def test_index_may_be_any_integers(self, loss_fn):
        frozen = np.array([1, 2])
        frozen.setflags(write=False)
        for index in (
            [1, 2],
            (1, 2),
            frozen,
            np.array([2, 1])[::-1],
            torch.tensor([1, 2], dtype=torch.int32),
            torch.tensor([1, 2], dtype=torch.uint8),
        ):
            assert loss_fn(torch.ones(2), index).isfinite()
        assert loss_fn.table.visits.nonzero().ravel().tolist() == [1, 2]


def test_repr_tells_what_it_is():
    text = repr(fcco.CoupledLoss(half_square, 10, dim=2, log=True, rule=fcco.SOX(gamma=0.1)))
    assert "half_square" in text
    assert "SOX(gamma=0.1, safeguard=True)" in text
    assert "n=10, dim=2, log=True" in text


class TestValuesOfOuter:
    @pytest.mark.parametrize("rule", [fcco.SOX(0.5), fcco.SOAP(0.5), fcco.BSGD()], ids=str)
    def test_are_refused_if_they_overflow(self, rule):
        loss_fn = fcco.CoupledLoss(torch.exp, 4, rule=rule)
        loss_fn(torch.ones(2, requires_grad=True), torch.tensor([3, 1]))
        before = {name: value.clone() for name, value in loss_fn.state_dict().items()}
        message = "inner must be such that the .* is finite; got 100 at position 1, in row 2"
        with pytest.raises(fcco.NotFiniteError, match=message) as caught:
            loss_fn(torch.tensor([1.0, 100.0], requires_grad=True), torch.tensor([3, 2]))
        assert (caught.value.name, caught.value.place, caught.value.value) == ("inner", (1,), 100.0)
        assert all(torch.equal(value, before[name]) for name, value in loss_fn.state_dict().items())

    def test_do_not_matter_at_padding_and_in_evaluation(self):
        loss_fn, inner = fcco.CoupledLoss(torch.exp, 4, rule=fcco.SOX(0.5)), torch.tensor([1.0, 100.0])
        inner.requires_grad_()
        loss_fn(inner, torch.tensor([3, 2]), weight=torch.tensor([True, False]))
        assert loss_fn.eval()(inner, torch.tensor([3, 2])).isinf()


class TestTrainingInEvaluationMode:
    """After a validation, train() is easily forgotten; then nothing is averaged any more."""

    @staticmethod
    def step(loss_fn, times=1):
        inner = torch.ones(2, requires_grad=True)
        for _ in range(times):
            loss_fn(inner, torch.tensor([0, 1])).backward()

    def test_warns_once(self):
        loss_fn = fcco.CoupledLoss(torch.log, 4, rule=fcco.SOX(gamma=0.1))
        self.step(loss_fn)
        loss_fn.eval()
        with pytest.warns(UserWarning, match=r"seems to be trained in eval\(\) mode.*call train\(\) on it") as caught:
            self.step(loss_fn, 30)
        assert len(caught) == 1

    def test_a_loss_that_was_never_trained_may_be_evaluated_with_gradients(self):
        self.step(fcco.CoupledLoss(torch.log, 4, rule=fcco.SOX(gamma=0.1)).eval(), 30)

    def test_some_gradients_between_epochs_are_no_training(self):
        loss_fn = fcco.CoupledLoss(torch.log, 4, rule=fcco.SOX(gamma=0.1))
        for _ in range(9):
            self.step(loss_fn.train())
            self.step(loss_fn.eval(), 5)

    def test_values_are_no_training(self):
        loss_fn = fcco.CoupledLoss(torch.log, 4, rule=fcco.SOX(gamma=0.1))
        self.step(loss_fn)
        for _ in range(30):
            loss_fn.eval()(torch.ones(2, requires_grad=True), torch.tensor([0, 1]))

"""What every rule must satisfy, in every space and dimension."""

import copy
import io
import math
import pickle

import pytest
import torch

import fcco
from cases import CASES, OUTER, case_id, make_batch, make_loss, run, same, state


@pytest.fixture(params=CASES, ids=case_id)
def case(request):
    return request.param


def tracks_batches(case):
    """Whether a row converges to its estimate when its batch is repeated (MOAP's rows are scaled by n / B1)."""
    return not isinstance(case[0], fcco.MOAP)


def exact(case, inner, index):
    """The gradient of the plug-in objective on the given rows, by autograd."""
    rule, log, dim = case
    inner = inner.detach().clone().requires_grad_()
    value = OUTER[log, dim](inner[index] if rule.all_rows else inner).mean()
    value.backward()
    return value.detach(), inner.grad


class TestGradient:
    def test_full_first_batch_is_exact(self, case):
        """Before there is any memory, a full batch gives the exact objective and its gradient."""
        if isinstance(case[0], fcco.MOAP):
            case = (fcco.MOAP(gamma=1.0), *case[1:])
        inner, index = make_batch(case, batch=10)
        loss = make_loss(case)(inner, index)
        loss.backward()
        value, gradient = exact(case, inner, index)
        torch.testing.assert_close(loss.detach(), value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(inner.grad, gradient, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("rule", [fcco.SOAP(1.0), fcco.MOAP(1.0), fcco.BSGD(), fcco.SCGD(1.0), fcco.NASA(1.0)])
    @pytest.mark.parametrize("log", [False, True])
    def test_gamma_one_forgets(self, rule, log):
        """With gamma = 1, full batches give the exact gradient at every step, whatever came before."""
        case = (rule, log, 2)
        loss_fn = make_loss(case)
        for seed in range(3):
            inner, index = make_batch(case, batch=10, seed=seed)
            loss_fn(inner, index).backward()
            torch.testing.assert_close(inner.grad, exact(case, inner, index)[1], rtol=1e-12, atol=1e-12)

    def test_gamma_one_sox_lags_one_step(self):
        """SOX with gamma = 1 differentiates at the previous estimate, by definition."""
        loss_fn = fcco.CoupledLoss(torch.log, 1, rule=fcco.SOX(gamma=1.0))
        loss_fn(torch.tensor([2.0], requires_grad=True), [0])
        inner = torch.tensor([8.0], requires_grad=True)
        loss = loss_fn(inner, [0])
        loss.backward()
        assert inner.grad.item() == 1 / 2
        assert loss.item() == pytest.approx(math.log(8))

    def test_linear_in_the_incoming_gradient(self, case):
        loss_fn = make_loss(case)
        inner, index = make_batch(case)
        other = copy.deepcopy(loss_fn)
        loss_fn(inner, index).backward()
        scaled = inner.detach().clone().requires_grad_()
        (other(scaled, index) * 1024).backward()
        torch.testing.assert_close(scaled.grad, inner.grad * 1024, rtol=1e-14, atol=0)

    def test_reaches_through_the_model(self, case):
        """The gradient of a parameter is the chain rule's."""
        inner, index = make_batch(case)
        weight = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
        make_loss(case)(inner.detach() * weight, index).backward()
        direct = (inner.detach() * 1.5).requires_grad_()
        make_loss(case)(direct, index).backward()
        torch.testing.assert_close(weight.grad, (direct.grad * inner.detach()).sum())


class TestValue:
    def test_repeated_batch_converges_to_f(self, case):
        if not tracks_batches(case):
            pytest.skip("MOAP's rows are scaled by n / B1, so only sampling at random makes them right")
        loss_fn = make_loss(case)
        run(loss_fn, case, steps=2)
        inner, index = make_batch(case, seed=5)
        for _ in range(200):
            loss = loss_fn(inner, index)
        if getattr(case[0], "gamma", None) == fcco.schedules.RunningMean():
            # A mean over all 202 visits forgets at the rate 1 / visits and no faster.
            torch.testing.assert_close(loss.detach(), exact(case, inner, index)[0], rtol=0.02, atol=0.02)
        else:
            torch.testing.assert_close(loss.detach(), exact(case, inner, index)[0], rtol=1e-9, atol=1e-9)

    def test_is_f_at_the_new_rows(self, case):
        loss_fn = make_loss(case)
        run(loss_fn, case)
        inner, index = make_batch(case, seed=9)
        loss = loss_fn(inner, index)
        rows = loss_fn.table.read(index, cold=math.nan)
        torch.testing.assert_close(loss.detach(), OUTER[case[1], case[2]](rows).mean(), rtol=1e-14, atol=1e-14)

    @pytest.mark.parametrize("mode", ["eval", "no_grad", "inference_mode"])
    def test_without_training_is_stateless(self, case, mode):
        loss_fn = make_loss(case)
        run(loss_fn, case)
        before = state(loss_fn)
        inner, index = make_batch(case, seed=9)
        if mode == "eval":
            loss = loss_fn.eval()(inner, index)
        else:
            with getattr(torch, mode)():
                loss = loss_fn(inner, index)
        torch.testing.assert_close(loss.detach(), exact(case, inner, index)[0])
        assert same(before, state(loss_fn))

    def test_eval_on_rows_that_do_not_exist(self, case):
        """Validation data has indices that mean nothing to the table."""
        loss_fn = make_loss(case).eval()
        inner, _ = make_batch((fcco.BSGD(), *case[1:]))
        assert loss_fn(inner, torch.tensor([10**6, 3, 3, -5])).isfinite()


class TestBatch:
    def test_order_does_not_matter(self, case):
        first, second = make_loss(case), make_loss(case)
        for seed in range(4):
            inner, index = make_batch(case, seed=seed, rows=[1, 4, 4, 7, 1, 0] if seed % 2 else None)
            order = torch.randperm(len(index), generator=torch.Generator().manual_seed(seed))
            loss = first(inner, index)
            loss.backward()
            moved = slice(None) if case[0].all_rows else order
            shuffled = inner.detach()[moved].clone().requires_grad_()
            shuffled_loss = second(shuffled, index[order])
            shuffled_loss.backward()
            torch.testing.assert_close(shuffled_loss, loss, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(shuffled.grad, inner.grad[moved], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state(first), state(second), rtol=1e-12, atol=1e-12)

    def test_repeated_rows_are_averaged_once(self, case):
        """A row twice is one row whose estimate is the mean of g; the gradient counts both."""
        if case[0].all_rows:
            pytest.skip("estimates of all rows come in row order, one each")
        log = case[1]
        twice, once = make_loss(case), make_loss(case)
        run(twice, case)
        run(once, case)
        inner, index = make_batch(case, rows=[3, 5, 3], seed=9)
        g = inner.detach().exp() if log else inner.detach()
        mean = torch.stack([(g[0] + g[2]) / 2, g[1]])
        mean = mean.log() if log else mean
        once(mean.requires_grad_(), torch.tensor([3, 5]))
        twice(inner, index).backward()
        torch.testing.assert_close(state(twice), state(once), rtol=1e-12, atol=1e-12)
        same_weight = inner.grad[0] * (g[2] / g[0] if log else 1.0)
        torch.testing.assert_close(inner.grad[2], same_weight, rtol=1e-12, atol=1e-12)

    def test_padding_changes_nothing(self, case):
        if case[0].all_rows:
            pytest.skip("estimates of all rows come in row order, one each")
        padded, plain = make_loss(case), make_loss(case)
        for seed in range(4):
            inner, index = make_batch(case, seed=seed, rows=[2, 6, 2, 9, 6])
            where = torch.tensor([True, True, False, False, True])
            loss = padded(inner, index, weight=where)
            loss.backward()
            kept = inner.detach()[where].requires_grad_()
            plain_loss = plain(kept, index[where])
            plain_loss.backward()
            torch.testing.assert_close(loss, plain_loss, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(inner.grad[where], kept.grad, rtol=1e-12, atol=1e-12)
            assert not inner.grad[~where].any()
        torch.testing.assert_close(state(padded), state(plain), rtol=1e-12, atol=1e-12)

    def test_padding_where_f_has_no_derivative(self):
        inner = torch.tensor([1.0, 0.0], requires_grad=True)
        fcco.CoupledLoss(torch.sqrt, 5, rule=fcco.SOX(gamma=0.1))(
            inner, [0, 1], weight=torch.tensor([True, False])
        ).backward()
        assert inner.grad.tolist() == [0.5, 0.0]

    def test_the_mean_of_large_repeats_does_not_overflow(self):
        largest = torch.finfo(torch.float32).max
        loss_fn = fcco.CoupledLoss(torch.log, 5, rule=fcco.SOX(gamma=0.1))
        loss_fn(torch.full((3,), largest), [1, 1, 1])
        assert loss_fn.table.u[1].item() == pytest.approx(largest)

    def test_weights_replace_the_mean(self, case):
        """The loss is linear in the weights, and equal weights of 1 / B1 are the mean."""
        weighted, plain = make_loss(case), make_loss(case)
        for seed in range(3):
            inner, index = make_batch(case, seed=seed)
            loss = plain(inner, index)
            loss.backward()
            same_inner = inner.detach().clone().requires_grad_()
            heavier = weighted(same_inner, index, weight=torch.full((4,), 0.75, dtype=torch.float64))
            heavier.backward()
            torch.testing.assert_close(heavier, 3 * loss, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(same_inner.grad, 3 * inner.grad, rtol=1e-12, atol=1e-12)
        assert same(state(weighted), state(plain))

    def test_weights_have_no_gradient(self):
        weight = torch.tensor([0.5, 2.0], requires_grad=True)
        inner = torch.tensor([1.0, 4.0], requires_grad=True)
        fcco.CoupledLoss(torch.log, 5, rule=fcco.SOX(gamma=0.1))(inner, [0, 1], weight=weight).backward()
        assert inner.grad.tolist() == [0.5, 0.5]
        assert weight.grad is None

    def test_all_padding_is_a_zero_with_a_graph(self, case):
        loss_fn = make_loss(case)
        run(loss_fn, case)
        before = loss_fn.table.read(None, cold=-1.0)
        inner, index = make_batch(case)
        loss = loss_fn(inner, index, weight=torch.zeros(4))
        loss.backward()
        assert loss.item() == 0
        assert not inner.grad.any()
        if not (case[0].all_rows or case[0].decays):
            assert torch.equal(before, loss_fn.table.read(None, cold=-1.0))

    def test_micro_batches_of_other_rows_equal_one_batch(self, case):
        """Gradient accumulation: halves of a batch, each at half weight."""
        rule = case[0]
        if rule.all_rows or rule.decays or callable(rule.rate):
            pytest.skip("every call is a step, which these count")
        whole, halves = make_loss(case), make_loss(case)
        for seed in range(4):
            inner, index = make_batch(case, seed=seed)
            whole(inner, index).backward()
            again = inner.detach().clone().requires_grad_()
            for part in (slice(0, 2), slice(2, 4)):
                (halves(again[part], index[part]) / 2).backward()
            torch.testing.assert_close(again.grad, inner.grad, rtol=1e-12, atol=1e-12)
        # Not bit for bit: torch takes other instructions for the last few elements of a tensor than for the others.
        torch.testing.assert_close(whole.table.u, halves.table.u, rtol=1e-14, atol=1e-15)


class TestState:
    def test_checkpoint_continues_bit_for_bit(self, case):
        loss_fn = make_loss(case)
        run(loss_fn, case, steps=5)
        file = io.BytesIO()
        torch.save(loss_fn.state_dict(), file)
        expected = run(loss_fn, case, steps=5, first=5)
        resumed = make_loss(case)
        resumed.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
        assert all(map(torch.equal, run(resumed, case, steps=5, first=5), expected))
        assert same(state(resumed), state(loss_fn))

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
    def test_copies_are_independent(self, case, duplicate):
        loss_fn = make_loss(case)
        run(loss_fn, case, steps=3)
        before, twin = state(loss_fn), duplicate(loss_fn)
        run(twin, case, steps=3, first=3)
        assert same(before, state(loss_fn))
        run(loss_fn, case, steps=3, first=3)
        assert same(state(loss_fn), state(twin))

    def test_bad_input_changes_nothing(self, case):
        loss_fn = make_loss(case)
        run(loss_fn, case)
        before = state(loss_fn)
        inner, index = make_batch(case)
        poisoned = inner.detach().clone()
        poisoned.view(-1)[-1] = math.nan
        for bad_inner, bad_index in [(poisoned, index), (inner, index + 100), (inner, -1 - index)]:
            with pytest.raises((ValueError, IndexError)):
                loss_fn(bad_inner, bad_index)
        assert same(before, state(loss_fn))


class TestDtypes:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_keeps_the_dtype(self, case, dtype):
        loss_fn = make_loss(case)
        values = run(loss_fn, case, dtype=dtype)
        assert all(value.dtype == dtype for value in values)
        assert loss_fn.table.u.dtype == dtype

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_is_tracked_in_float32(self, case, dtype):
        loss_fn = make_loss(case).to(dtype)
        inner, index = make_batch(case, dtype=dtype)
        loss = loss_fn(inner, index)
        loss.backward()
        assert (loss.dtype, loss_fn.table.u.dtype, inner.grad.dtype) == (torch.float32, torch.float32, dtype)

    def test_float32_agrees_with_float64(self, case):
        narrow, wide = run(make_loss(case), case, dtype=torch.float32), run(make_loss(case), case)
        torch.testing.assert_close([value.double() for value in narrow], wide, rtol=2e-4, atol=2e-5)


LOG_CASES = [case for case in CASES if case[1]]


class TestLogSpace:
    @pytest.mark.parametrize("case", LOG_CASES, ids=case_id)
    @pytest.mark.parametrize("shift", [-1e4, 1e4])
    def test_huge_values(self, case, shift):
        """A common factor e^shift changes neither ratio nor gradient, and nothing overflows."""
        near, far = make_loss(case), make_loss(case)
        for seed in range(3):
            inner, index = make_batch(case, seed=seed)
            moved = (inner.detach() + shift).requires_grad_()
            near_loss, far_loss = near(inner, index), far(moved, index)
            near_loss.backward()
            far_loss.backward()
            torch.testing.assert_close(moved.grad, inner.grad, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(far_loss, near_loss + (shift if case[2] == 1 else 0), rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("case", LOG_CASES, ids=case_id)
    def test_jumps_of_any_size_stay_finite(self, case):
        """Rules that do not bound g / u refuse a jump whose gradient would not be finite for long."""
        loss_fn, refused = make_loss(case), 0
        for height in (0.0, 1e4, -1e4, 0.0, 80.0, -80.0):
            inner, index = make_batch(case, batch=10)
            inner = (inner.detach() + height).requires_grad_()
            before = state(loss_fn)
            try:
                loss = loss_fn(inner, index)
            except fcco.NotFiniteError:
                refused += 1
                assert same(before, state(loss_fn))
                continue
            loss.backward()
            assert loss.isfinite()
            assert inner.grad.abs().max() <= 2.0**64
        assert (refused > 0) == (case[0] == fcco.SOX(gamma=0.3, safeguard=False))

    @pytest.mark.parametrize("case", LOG_CASES, ids=case_id)
    def test_absent_neighbours_carry_no_gradient(self, case):
        """-inf, g = 0, is data: it moves u, has no gradient, and never makes a NaN."""
        loss_fn = make_loss(case)
        for seed in range(6):
            inner, index = make_batch(case, seed=seed, rows=[0, 1, 2])
            with torch.no_grad():
                (inner if case[2] == 1 else inner[:, 0])[seed % 3] = -math.inf
            try:
                loss_fn(inner, index).backward()
            except fcco.NotFiniteError:  # by the letter, log leaves 0 at an infinite slope
                assert not case[0].bounded
                continue
            assert inner.grad.isfinite().all()
            assert not inner.grad[inner == -math.inf].any()
            assert not loss_fn.table.u.isnan().any()

    def test_absent_where_f_has_no_derivative(self):
        """f = sqrt has an infinite slope at 0; the gradient there is still none."""
        loss_fn = fcco.CoupledLoss(lambda log_u: log_u.exp().sqrt(), 2, rule=fcco.SOAP(0.5), log=True)
        inner = torch.tensor([-math.inf, 0.0], requires_grad=True)
        loss_fn(inner, [0, 1]).backward()
        assert inner.grad.tolist() == [0.0, 0.25]

    def test_absent_neighbours_of_a_row_that_stands_twice(self):
        loss_fn = fcco.CoupledLoss(torch.exp, 2, rule=fcco.SOAP(0.5), log=True)
        inner = torch.tensor([-math.inf, -math.inf, 0.0], requires_grad=True)
        loss_fn(inner, [0, 0, 1]).backward()
        assert loss_fn.table.u.tolist() == [-math.inf, 0.0]
        assert inner.grad.tolist() == pytest.approx([0.0, 0.0, 1 / 3])

    @pytest.mark.parametrize("init", [None, 0.0])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_the_letter_refuses_what_it_cannot_bound(self, init, dtype):
        """By the letter f = log has the weight e^100, or 1 / 0, and so would the model's gradient."""
        loss_fn = fcco.CoupledLoss(lambda u: u, 5, rule=fcco.SOX(0.1, safeguard=False), log=True, init=init)
        if init is None:
            loss_fn(torch.tensor([0.0, 0.0], dtype=dtype, requires_grad=True), [4, 2])
        before = state(loss_fn)
        inner = torch.tensor([0.0, 100.0] if init is None else [1.0, 1.0], dtype=dtype, requires_grad=True)
        place, row = (1, 2) if init is None else (0, 4)
        with pytest.raises(
            fcco.NotFiniteError, match=rf"gradient is at most 2.* at position {place}, in row {row}: .*safeguard=True"
        ) as caught:
            loss_fn(inner, [4, 2])
        assert (caught.value.name, caught.value.place) == ("inner", (place,))
        assert same(before, state(loss_fn))
        assert inner.grad is None

    def test_a_gradient_that_is_no_number_is_refused(self):
        """The slope of sqrt at 0 is infinite, and 0 times that is NaN, which is not above any limit."""
        loss_fn = fcco.CoupledLoss(lambda u: (0 * u).sqrt(), 3, rule=fcco.SOAP(0.5), log=True)
        before = state(loss_fn)
        with pytest.raises(fcco.NotFiniteError, match="gradient is finite; got 1 at position 0, in row 2"):
            loss_fn(torch.tensor([1.0], requires_grad=True), [2])
        assert same(before, state(loss_fn))

    def test_the_letter_leaves_zero_where_f_has_a_derivative(self):
        """-u_1 / u_2 has the slope -1 / u_2 at u_1 = 0, and 1 / u_1 is no obstacle."""
        loss_fn = make_loss((fcco.SOX(0.1, safeguard=False), True, 2))
        loss_fn(torch.tensor([[-math.inf, 0.0]], requires_grad=True), [0])
        inner = torch.tensor([[1.0, 1.0]], requires_grad=True)
        loss_fn(inner, [0]).backward()
        torch.testing.assert_close(inner.grad, torch.tensor([[-math.e, 0.0]]))

    def test_gradients_are_looked_at_within_torch_func_too(self):
        rule, index = fcco.SOX(0.1, safeguard=False), torch.tensor([0, 1])
        loss_fn = fcco.CoupledLoss(lambda u: u, 2, rule=rule, log=True)
        loss_fn(torch.tensor([0.0, -100.0]), index)
        buffers = {name: buffer.clone() for name, buffer in loss_fn.named_buffers()}

        def value(inner):
            return torch.func.functional_call(loss_fn, {name: b.clone() for name, b in buffers.items()}, (inner, index))

        inner = torch.tensor([2.0, -99.0], requires_grad=True)
        observed = torch.func.grad(value)(inner.detach())
        loss_fn(inner, index).backward()
        torch.testing.assert_close(observed, inner.grad)
        with pytest.raises(RuntimeError, match="the loss, its gradient and what it keeps must be finite"):
            torch.func.grad(value)(torch.tensor([0.0, 0.0]))

    def test_safeguard_bounds_the_weight(self):
        """With f = log the gradient's weight is g / u <= 1 / gamma, where the paper's letter has e^30."""
        for safeguard, largest in [(True, 1 / 0.1), (False, math.exp(30))]:
            loss_fn = fcco.CoupledLoss(lambda u: u, 1, rule=fcco.SOX(0.1, safeguard=safeguard), log=True)
            loss_fn(torch.tensor([0.0], requires_grad=True), [0])
            inner = torch.tensor([30.0], requires_grad=True)
            loss_fn(inner, [0]).backward()
            assert inner.grad.item() == pytest.approx(largest, rel=1e-4)

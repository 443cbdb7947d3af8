"""Temperatures of average precision and NDCG: numbers, schedules, assignments and states."""

import copy
import io
import math
import pickle

import pytest
import torch
import torch._dynamo.testing
import torch.distributed.checkpoint as dcp
from torch import nn

import fcco
from fcco import losses
from losses.cases import AP, BATCHES, NDCG, gradients, run, same, state

TEMPERED = [AP, AP.with_options(surrogate="sigmoid", own_term="exact"), NDCG]
INVALID = [
    (0, ValueError, "temperature must be finite and above 0; got 0"),
    (0.0, ValueError, "temperature must be finite and above 0; got 0.0"),
    (-1.0, ValueError, "temperature must be finite and above 0; got -1.0"),
    (math.nan, ValueError, "temperature must be finite and above 0; got nan"),
    (math.inf, ValueError, "temperature must be finite and above 0; got inf"),
    ("a", TypeError, "temperature must be a number"),
    (True, TypeError, "temperature must be a number; got bool"),
    (None, TypeError, "temperature must be a number; got NoneType"),
]


def falling(step):
    """Of an int, or of a tensor where the number of steps is one."""
    return 0.5 / (1 + step)


@pytest.fixture
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("case", TEMPERED, ids=str)
class TestMeaning:
    def test_a_unit_of_the_scores(self, case):
        """Step by step: gradients are those of scores in that unit, over it."""
        population = case.population()
        scaled = ([(x.detach() / 0.3).requires_grad_() for x in population[0]], population[1])
        observed = run(case, case.make(population, temperature=0.3), population)
        expected = run(case, case.make(scaled), scaled)
        torch.testing.assert_close(observed[::2], expected[::2], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(observed[1::2], [g / 0.3 for g in expected[1::2]], rtol=1e-9, atol=1e-12)

    def test_integers_are_numbers(self, case):
        population = case.population()
        observed = run(case, case.make(population, temperature=2), population)
        torch.testing.assert_close(observed, run(case, case.make(population, temperature=2.0), population))

    def test_assignment_is_in_force_at_the_next_step(self, case):
        population = case.population()
        loss_fn = case.make(population, fcco.BSGD())
        for temperature in (1.0, 0.3, 3, 0.05):
            loss_fn.temperature = temperature
            wanted = case.with_options(temperature=temperature).objective(population)
            loss = case.call(loss_fn, population)
            torch.testing.assert_close(loss.detach(), wanted.detach(), rtol=1e-8, atol=1e-10)
            torch.testing.assert_close(
                gradients(loss, population), gradients(wanted, population), rtol=1e-8, atol=1e-10
            )

    def test_schedules_are_functions_of_the_steps_taken(self, case):
        population = case.population()
        scheduled, assigned, steps = case.make(population, temperature=falling), case.make(population), []

        def noted(step):
            steps.append(step)
            return falling(step)

        observed, expected, watched = [], [], case.make(population, temperature=noted)
        for taken, rows in enumerate(BATCHES):
            assigned.temperature = falling(taken)
            observed += run(case, scheduled, population, [rows])
            expected += run(case, assigned, population, [rows])
            run(case, watched, population, [rows])
            assert set(steps) == set(range(taken + 1))
            assert all(type(step) is int for step in steps)
        assert all(torch.equal(a, b) for a, b in zip(observed, expected, strict=True))

    def test_eval_is_at_the_temperature_of_the_next_step(self, case):
        population = case.population()
        loss_fn = case.make(population, temperature=falling)
        for taken in range(3):
            wanted = case.with_options(temperature=falling(taken)).objective(population)
            torch.testing.assert_close(case.call(loss_fn.eval(), population), wanted, rtol=1e-8, atol=1e-10)
            case.call(loss_fn.train(), population)
        with torch.no_grad():
            wanted = case.with_options(temperature=falling(3)).objective(population)
            torch.testing.assert_close(case.call(loss_fn, population), wanted, rtol=1e-8, atol=1e-10)

    def test_a_schedule_may_be_assigned(self, case):
        population = case.population()
        loss_fn, other = case.make(population, temperature=0.7), case.make(population, temperature=falling)
        loss_fn.temperature = falling
        assert run(case, loss_fn, population)[0] == run(case, other, population)[0]
        loss_fn.temperature = 0.1
        assert case.call(loss_fn.eval(), population) == case.call(
            case.make(population, temperature=0.1).eval(), population
        )

    def test_schedules_of_the_library(self, case):
        population = case.population()
        schedule = fcco.schedules.Cosine(final=0.2, steps=4)
        loss_fn = case.make(population, fcco.BSGD(), temperature=schedule)
        for taken in range(6):
            wanted = case.with_options(temperature=schedule(taken)).objective(population)
            torch.testing.assert_close(case.call(loss_fn, population), wanted, rtol=1e-8, atol=1e-10)

    def test_a_tensor_that_a_schedule_returns_is_read(self, case):
        population = case.population()
        of_tensor = case.make(population, temperature=lambda step: torch.tensor(falling(step), dtype=torch.float64))
        expected = run(case, case.make(population, temperature=falling), population)
        torch.testing.assert_close(run(case, of_tensor, population), expected)

    def test_within_torch_func(self, case):
        """There the number of steps is not to be read, and a schedule gets a tensor."""
        floats, others = population = case.population()
        plain, stateless = (case.make(population, temperature=falling) for _ in range(2))
        for loss_fn in (plain, stateless):
            run(case, loss_fn, population, BATCHES[:2])
        buffers = {name: b.clone() for name, b in stateless.named_buffers()}

        def value(floats, buffers):
            def call(*batch):
                return torch.func.functional_call(stateless, buffers, batch)

            return case.call(call, (floats, others), BATCHES[2])

        observed = torch.func.grad(value)(tuple(floats), buffers)
        expected = torch.autograd.grad(case.call(plain, population, BATCHES[2]), tuple(floats))
        torch.testing.assert_close(observed, expected, rtol=1e-10, atol=1e-12)


MAKERS = [lambda **o: losses.AveragePrecisionLoss(6, 3, **o), lambda **o: losses.NDCGLoss(6, **o)]


def arguments(loss_fn):
    scores, target = torch.linspace(-1, 1, 6, requires_grad=True), torch.arange(6) % 2
    query = [] if isinstance(loss_fn, losses.AveragePrecisionLoss) else [torch.zeros(6, dtype=torch.int64)]
    return scores, target, *query, torch.arange(6)


@pytest.mark.parametrize("make", MAKERS)
class TestInvalid:
    @pytest.mark.parametrize(("temperature", "error", "message"), INVALID)
    def test_constructor(self, make, temperature, error, message):
        with pytest.raises(error, match=message):
            make(temperature=temperature)

    @pytest.mark.parametrize(("temperature", "error", "message"), INVALID)
    def test_assignment(self, make, temperature, error, message):
        """Refused where it is used, in any mode, and nothing changes."""
        loss_fn = make()
        loss_fn(*arguments(loss_fn))
        before = state(loss_fn)
        loss_fn.temperature = temperature
        for training in (True, False):
            with pytest.raises(error, match=message):
                loss_fn.train(training)(*arguments(loss_fn))
        loss_fn.temperature = 1.0
        assert same(state(loss_fn), before)

    @pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf])
    def test_schedule(self, make, temperature):
        loss_fn = make(temperature=lambda step: temperature)
        with pytest.raises(ValueError, match="temperature must be finite and above 0"):
            loss_fn(*arguments(loss_fn))
        assert loss_fn.table.step == 0


@pytest.mark.parametrize("case", TEMPERED, ids=str)
class TestState:
    def test_round_trip(self, case):
        """Through a file, as a tensor of float64, into a loss of another temperature."""
        population = case.population()
        saved, resumed = case.make(population, temperature=0.1), case.make(population, temperature=2.0)
        run(case, saved, population, BATCHES[:2])
        saved.temperature = 1 / 3
        assert saved.state_dict()["temperature"].dtype == torch.float64
        file = io.BytesIO()
        torch.save(saved.state_dict(), file)
        file.seek(0)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        assert resumed.temperature == 1 / 3
        assert type(resumed.temperature) is float
        expected = run(case, saved, population, BATCHES[2:])
        assert all(
            torch.equal(a, b) for a, b in zip(run(case, resumed, population, BATCHES[2:]), expected, strict=True)
        )

    def test_a_schedule_is_not_saved_and_goes_on(self, case):
        population = case.population()
        whole, first, second = (case.make(population, temperature=falling) for _ in range(3))
        expected = run(case, whole, population)
        run(case, first, population, BATCHES[:2])
        assert "temperature" not in first.state_dict()
        second.load_state_dict(first.state_dict())
        assert second.temperature is falling
        observed = run(case, second, population, BATCHES[2:])
        assert all(torch.equal(a, b) for a, b in zip(observed, expected[2 * 2 :], strict=True))

    def test_states_without_a_temperature(self, case):
        """Of a schedule, and from before there were any: the loss keeps its own."""
        population = case.population()
        saved, resumed = case.make(population), case.make(population, temperature=0.2)
        run(case, saved, population)
        older = {name: value for name, value in saved.state_dict().items() if name != "temperature"}
        resumed.load_state_dict(older)
        assert resumed.temperature == 0.2
        assert torch.equal(resumed.table.u, saved.table.u)

    def test_the_temperature_of_a_state_is_no_matter_to_a_schedule(self, case):
        population = case.population()
        saved, resumed = case.make(population, temperature=0.2), case.make(population, temperature=falling)
        run(case, saved, population)
        resumed.load_state_dict(saved.state_dict())
        assert resumed.temperature is falling
        assert torch.equal(resumed.table.u, saved.table.u)

    def test_the_callers_state_is_left_as_it_is(self, case):
        population = case.population()
        saved = case.make(population, temperature=0.2).state_dict()
        case.make(population).load_state_dict(saved)
        assert saved["temperature"] == 0.2
        inside = nn.ModuleDict({"loss": case.make(population, temperature=0.4)})
        saved = inside.state_dict()
        resumed = nn.ModuleDict({"loss": case.make(population)})
        resumed.load_state_dict(saved)
        assert resumed["loss"].temperature == 0.4
        assert "loss.temperature" in saved

    def test_a_state_that_is_refused_changes_nothing(self, case):
        population = case.population()
        saved, loss_fn = case.make(population, temperature=0.2), case.make(population, temperature=0.5)
        run(case, saved, population)
        saved.table.u[0] = math.nan
        before = state(loss_fn)
        with pytest.raises(RuntimeError, match="u must be finite"):
            loss_fn.load_state_dict(saved.state_dict())
        assert loss_fn.temperature == 0.5
        assert same(state(loss_fn), before)

    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
    def test_a_temperature_that_is_none_is_refused(self, case, value):
        population = case.population()
        loss_fn = case.make(population, temperature=0.5)
        before = state(loss_fn)
        broken = {**case.make(population).state_dict(), "temperature": torch.tensor(value)}
        with pytest.raises(RuntimeError, match=f"temperature: temperature must be finite and above 0; got {value}"):
            loss_fn.load_state_dict(broken)
        assert same(state(loss_fn), before)

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deep", "pickle"])
    @pytest.mark.parametrize("temperature", [0.3, falling])
    def test_copies_have_their_own(self, case, copied, temperature):
        population = case.population()
        loss_fn = case.make(population, temperature=temperature)
        other = copied(loss_fn)
        other.temperature = 7.0
        assert loss_fn.temperature == temperature

    @pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
    def test_distributed_checkpoint(self, case, tmp_path):
        population = case.population()
        saved, resumed = case.make(population, temperature=0.2), case.make(population)
        run(case, saved, population)
        resumed.double()
        into = resumed.state_dict()
        dcp.save(saved.state_dict(), checkpoint_id=tmp_path / "saved")
        dcp.load(into, checkpoint_id=tmp_path / "saved")
        resumed.load_state_dict(into)
        assert resumed.temperature == 0.2
        assert same(state(resumed), state(saved))

    def test_casts_keep_it(self, case):
        population = case.population()
        for cast in (nn.Module.half, nn.Module.double, lambda loss_fn: loss_fn.to("meta")):
            loss_fn = cast(case.make(population, temperature=1 / 3))
            assert loss_fn.temperature == 1 / 3
            assert loss_fn.state_dict()["temperature"].dtype == torch.float64


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("case", [AP, NDCG], ids=str)
class TestCompiled:
    def steps(self, case, loss_fns, change=None, dtype=torch.float32):
        """Values and gradients of each of the losses on the same batches."""
        (scores,), others = case.population(dtype=dtype)
        history = [[] for _ in loss_fns]
        for taken, rows in enumerate([*BATCHES, *BATCHES]):
            for made, loss_fn in zip(history, loss_fns, strict=True):
                if change is not None:
                    change(taken)
                leaf = scores.detach()[rows].requires_grad_()
                loss = loss_fn(leaf, *(x[rows] for x in others), torch.tensor(rows))
                made += [loss.detach(), torch.autograd.grad(loss, leaf)[0]]
        return history

    def test_a_changing_temperature_is_compiled_at_most_twice(self, case):
        """For the first value, and for all others."""
        population = case.population(dtype=torch.float32)
        eager, compiled = case.make(population), case.make(population)
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        step = torch.compile(compiled, fullgraph=True, backend=counter)

        def change(taken):
            eager.temperature = compiled.temperature = 2.0 / (1 + taken)

        observed, expected = self.steps(case, [step, eager], change)
        torch.testing.assert_close(observed, expected, rtol=1e-5, atol=1e-6)
        assert counter.frame_count <= 2

    def test_a_schedule_is_compiled_once_and_gradients_are_of_the_step(self, case):
        """A compiler that works out the temperature again, from the step after, is wrong by a factor of up to 2."""
        population = case.population(dtype=torch.float32)
        eager, compiled = (case.make(population, temperature=falling) for _ in range(2))
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        step = torch.compile(compiled, fullgraph=True, backend=counter)
        observed, expected = self.steps(case, [step, eager])
        torch.testing.assert_close(observed, expected, rtol=1e-5, atol=1e-6)
        assert counter.frame_count == 1

    def test_a_schedule_in_double_precision(self, case):
        population = case.population()
        eager, compiled = (case.make(population, temperature=falling).double() for _ in range(2))
        step = torch.compile(compiled, fullgraph=True, backend="aot_eager")
        observed, expected = self.steps(case, [step, eager], dtype=torch.float64)
        torch.testing.assert_close(observed, expected, rtol=1e-12, atol=1e-13)

    def test_schedules_are_checked(self, case):
        population = case.population(dtype=torch.float32)
        loss_fn = case.make(population, temperature=lambda step: step - 1.0)
        step = torch.compile(loss_fn, fullgraph=True, backend="aot_eager")
        detached = ([x.detach() for x in population[0]], population[1])
        with pytest.raises(RuntimeError, match="temperature must be finite and above 0"):
            case.call(step, detached)
        assert not loss_fn.table.visits.any()


def test_the_table_of_a_falling_temperature_is_a_moving_average():
    """Rows are of the temperatures at which they were visited: u = u + γ (g - u), with g at that of the step."""
    population = AP.population()
    loss_fn, rows = AP.make(population, fcco.SOX(0.5), temperature=falling), None
    for taken in range(4):
        AP.call(loss_fn, population)
        exact = AP.make(population, fcco.BSGD(), temperature=falling(taken)).double()
        AP.call(exact, population)
        rows = exact.table.u if rows is None else rows + 0.5 * (exact.table.u - rows)
        torch.testing.assert_close(loss_fn.table.u, rows, rtol=1e-12, atol=1e-14)

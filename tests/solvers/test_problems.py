import copy
import math
import pickle
import sys
from dataclasses import fields
from functools import partial

import pytest
import torch

import fcco
from fcco.core.outers import takes_index
from fcco.solvers import Problem, problems
from fcco.theory import sox, sox_boost

CASES = {
    "nonconvex": lambda: problems.pseudo_huber(n=16, sigma=0.5, zeta=2.0),
    "convex": lambda: problems.pseudo_huber("convex", n=16, sigma=0.5, zeta=2.0),
    "strongly_convex": lambda: problems.pseudo_huber("strongly_convex", n=16, sigma=0.5, zeta=2.0),
    "without_noise": lambda: problems.pseudo_huber(n=16, sigma=0.0, zeta=0.0),
    "logistic": lambda: problems.invariant_logistic(n=100),
    "logistic_l2": lambda: problems.invariant_logistic(n=100, l2=0.1),
    "p_norm_push": problems.p_norm_push,
}


@pytest.fixture(params=CASES, scope="module")
def problem(request):
    return CASES[request.param]()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def nearby(problem, distance):
    direction = torch.randn(problem.start.shape, generator=generator(3), dtype=torch.float64)
    return problem.optimum + distance * direction / direction.norm()


def test_the_gradient_vanishes_at_the_optimum(problem):
    assert torch.func.grad(problem.objective)(problem.optimum).norm() <= 1e-10


@pytest.mark.parametrize("distance", [1e-3, 0.1, 1.0])
def test_the_optimum_is_below_its_neighbours(problem, distance):
    least = problem.objective(problem.optimum)
    assert problem.objective(nearby(problem, distance)) > least
    assert problem.objective(problem.start) > least + 1e-2


def test_the_objective_is_made_of_its_parts(problem):
    w, rows = nearby(problem, 0.5), torch.arange(problem.n)
    inner = problem.exact_inner(w)
    terms = problem.outer(inner, rows) if takes_index(problem.outer) else problem.outer(inner)
    assert problem.objective(w).item() == pytest.approx(terms.mean().item(), rel=1e-12)


def test_the_inner_estimate_is_unbiased_in_value_and_gradient(problem):
    # 40,000 samples of each of three rows; a bias of five standard errors would show.
    w, rows, count = nearby(problem, 0.5).requires_grad_(), torch.tensor([0, 3, 7]), 40_000
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def projected(inner):
        return weights @ inner.reshape(3, -1)[:, 0]

    blocks = [projected(problem.inner(w, rows, generator(k), count // 40)) for k in range(40)]
    values = torch.stack([block.detach() for block in blocks])
    slopes = torch.stack([torch.autograd.grad(block, w)[0] for block in blocks])
    exact = projected(problem.exact_inner(w)[rows])
    (slope,) = torch.autograd.grad(exact, w)
    assert (values.mean() - exact).abs() <= 5 * values.std() / math.sqrt(40) + 1e-12
    assert ((slopes.mean(0) - slope).abs() <= 5 * slopes.std(0) / math.sqrt(40) + 1e-12).all()


def test_an_inner_batch_of_several_is_drawn_for_every_row(problem):
    rows = torch.tensor([5, 2, 5])
    inner = problem.inner(problem.start, rows, generator(), 3)
    assert inner.shape == ((3,) if problem.dim == 1 else (3, problem.dim))
    assert torch.equal(inner, problem.inner(problem.start, rows, generator(), 3))


@pytest.mark.parametrize(
    "make",
    [
        problems.pseudo_huber,
        lambda **options: problems.pseudo_huber("convex", **options),
        problems.invariant_logistic,
        problems.p_norm_push,
    ],
)
def test_float32(make):
    problem = make(dtype=torch.float32)
    inner = problem.inner(problem.start, torch.tensor([1]), generator(), 2)
    assert {problem.start.dtype, problem.optimum.dtype, inner.dtype} == {torch.float32}
    assert problem.exact_inner(problem.start).dtype == torch.float32
    assert torch.func.grad(problem.objective)(problem.optimum).norm() <= 1e-4


class FixedSamples:
    """A substitute for torch.randint that returns every sample of the inner set once, in order."""

    def __call__(self, high, size, generator):
        assert size[1] == high
        return torch.arange(high).expand(size)


@pytest.mark.parametrize("set_size", [3, 4, 11])
@pytest.mark.parametrize("kind", ["nonconvex", "convex"])
def test_the_inner_set_has_the_mean_and_the_variances_claimed(monkeypatch, kind, set_size):
    problem = problems.pseudo_huber(kind, n=5, d=3, sigma=0.4, zeta=1.7, set_size=set_size)
    w, rows = nearby(problem, 2.0), torch.arange(5)
    monkeypatch.setattr(torch, "randint", FixedSamples())
    torch.testing.assert_close(problem.inner(w, rows, None, set_size), problem.exact_inner(w), atol=1e-12, rtol=0)

    def single(w, k):
        monkeypatch.setattr(torch, "randint", lambda high, size, generator: torch.full(size, k))
        return problem.inner(w, rows, None, 1) - problem.exact_inner(w)

    values = torch.stack([single(w, k) for k in range(set_size)])
    slopes = torch.stack([torch.autograd.functional.jacobian(lambda v, k=k: single(v, k), w) for k in range(set_size)])
    torch.testing.assert_close(values.square().mean(0), torch.full((5,), 0.4**2, dtype=torch.float64))
    torch.testing.assert_close(slopes.square().sum(2).mean(0), torch.full((5,), 1.7**2, dtype=torch.float64))


def test_p_norm_push_by_enumeration(monkeypatch):
    problem = problems.p_norm_push()
    w = nearby(problem, 0.5)
    monkeypatch.setattr(torch, "randint", FixedSamples())
    rows = torch.tensor([0, 100, 211])
    torch.testing.assert_close(problem.inner(w, rows, None, 357), problem.exact_inner(w)[rows])


def test_kinds_are_what_they_say():
    def eigenvalues(problem, w):
        return torch.linalg.eigvalsh(torch.func.hessian(problem.objective)(w))

    nonconvex, convex, strongly = (problems.pseudo_huber(k, n=16) for k in ("nonconvex", "convex", "strongly_convex"))
    assert eigenvalues(nonconvex, torch.zeros(4, dtype=torch.float64))[0] < -0.1
    for k in range(20):
        w = torch.randn(4, generator=generator(k), dtype=torch.float64)
        w = w / w.norm() * (k + 1) / 20
        assert eigenvalues(strongly, w)[0] >= strongly.mu
        smallest = eigenvalues(convex, w)
        assert abs(smallest[0]) < 1e-12 < smallest[1]
        assert (torch.func.vmap(torch.func.grad(convex.outer))(convex.exact_inner(w)) > 0).all()


def test_theorem_3_is_within_reach():
    problem = problems.pseudo_huber(n=32)
    gap = (problem.objective(problem.start) - problem.objective(problem.optimum)).item()
    chosen = sox(problem.constants, n=32, outer_batch=16, inner_batch=16, epsilon=0.25, gap=gap)
    assert chosen.steps == 35_877
    assert torch.func.grad(problem.objective)(problem.start).norm() > 3 * 0.25


def test_theorem_4_is_within_reach():
    problem = problems.pseudo_huber("strongly_convex", n=32, l_f=0.1, spread=0.25)
    gap = (problem.objective(problem.start) - problem.objective(problem.optimum)).item()
    stages = sox_boost(problem.constants, n=32, outer_batch=16, inner_batch=16, epsilon=0.1, gap=gap, mu=problem.mu)
    assert sum(stage.steps for stage in stages) == 35_529
    assert gap > 2 * 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "concave"}, "kind must be .*got 'concave'"),
        ({"d": 1}, "d must be at least 2; got 1"),
        ({"set_size": 2}, "set_size must be at least 3.*got 2"),
        ({"sigma": 0.0}, "sigma must be positive if zeta is.*got 0 with zeta = 0.1"),
        ({"sigma": -1.0}, "sigma must .*got -1.0"),
        ({"l_f": 0.0}, "l_f must be positive.*got 0.0"),
    ],
)
def test_refusals_of_pseudo_huber(change, message):
    with pytest.raises(ValueError, match=message):
        problems.pseudo_huber(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"p": 0.5}, "p must be at least 1; got 0.5"), ({"l2": 0.0}, "l2 must be positive.*got 0.0")],
)
def test_refusals_of_p_norm_push(change, message):
    with pytest.raises(ValueError, match=message):
        problems.p_norm_push(**change)


def test_separable_labels_have_no_optimum():
    with pytest.raises(RuntimeError, match="no minimum found"):
        problems.invariant_logistic(n=2, d=5)


@pytest.mark.parametrize(
    "make",
    [
        problems.pseudo_huber,
        partial(problems.pseudo_huber, "strongly_convex"),
        problems.invariant_logistic,
        problems.p_norm_push,
    ],
)
def test_they_can_be_pickled(make):
    """Problems can be sent to other processes, and saved."""
    problem = make()
    kept = pickle.loads(pickle.dumps(problem))
    assert type(kept) is type(problem)
    for field in fields(problem):
        ours, theirs = getattr(problem, field.name), getattr(kept, field.name)
        if isinstance(ours, torch.Tensor):
            assert torch.equal(ours, theirs), field.name
        elif not callable(ours):
            assert ours == theirs, field.name
    w = problem.start + 0.1
    assert torch.equal(kept.value(w), problem.value(w))
    assert torch.equal(kept.exact_inner(w), problem.exact_inner(w))
    rates = {"lr": 1e-3, "beta": 0.5, "gamma": 0.5, "steps": 3}
    first, second = (fcco.solve(p, **rates) for p in (problem, kept))
    assert torch.equal(first.weights, second.weights)


def test_problems_states_and_solutions_are_equal_only_to_themselves():
    """A comparison field by field would compare tensors, which has no truth value."""
    known = problems.pseudo_huber(n=4)
    plain = Problem(**{field.name: getattr(known, field.name) for field in fields(Problem)})
    states = []
    found = fcco.solve(known, lr=1e-3, beta=0.5, gamma=0.5, steps=3, callback=states.append)
    for one in (known, plain, states[0], found):
        assert (one == copy.copy(one)) is False
        assert len({one, one, copy.copy(one)}) == 2


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"p_norm_push\(\) needs scikit-learn: pip install 'fcco\[sklearn\]'"):
        problems.p_norm_push()

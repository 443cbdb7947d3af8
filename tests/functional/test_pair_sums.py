"""Sums over all pairs, and their gradient that is written by hand, against autograd."""

import pytest
import torch

from fcco._pool import ALL, Recall, Sides
from fcco.functional._pair_sums import pair_sums
from fcco.functional._surrogates import SURROGATES, resolve_surrogate

SCORES = torch.tensor([0.3, -1.2, 0.31, 2.0, -0.4, 0.9], dtype=torch.float64)
WEIGHT = torch.tensor([[1.0, 0.5], [0.0, 2.0], [3.0, 0.0], [0.2, 0.1], [1.0, 1.0], [0.7, 0.3]], dtype=torch.float64)
EXCLUDED = torch.eye(6, dtype=torch.bool)
MARGIN = 0.75


TEMPERATURES = [1.0, 1, 0.3, torch.tensor(0.3, dtype=torch.float64)]


@pytest.mark.parametrize("temperature", TEMPERATURES, ids=str)
@pytest.mark.parametrize(
    "sides",
    [ALL, Sides(4), Sides(0), Sides(4, Recall(apart=True)), Sides(0, Recall(apart=True))],
    ids=["all", "4", "0", "4 apart", "0 apart"],
)
@pytest.mark.parametrize("excluded", [False, True])
@pytest.mark.parametrize("name", SURROGATES)
def test_value_and_gradient_are_those_of_the_graph(name, excluded, sides, temperature):
    ell, own = resolve_surrogate(name, MARGIN), sides.own
    rivals = slice(own if sides.recall.apart else 0, None)
    weight, mask = WEIGHT[rivals], EXCLUDED[:own, : len(WEIGHT[rivals])] if excluded else None
    by_hand, by_graph = SCORES.clone().requires_grad_(), SCORES.clone().requires_grad_()
    first = pair_sums(by_hand, weight, ell, sides, mask, temperature)
    values = ell((by_graph[rivals].unsqueeze(0) - by_graph[:own].unsqueeze(1)) / temperature)
    second = (values if mask is None else values * ~mask) @ weight
    torch.testing.assert_close(first, second)
    pull = torch.linspace(-1, 2, first.numel(), dtype=torch.float64).reshape(first.shape)
    first.backward(pull)
    second.backward(pull)
    torch.testing.assert_close(by_hand.grad, by_graph.grad)


@pytest.mark.parametrize("temperature", TEMPERATURES, ids=str)
@pytest.mark.parametrize("name", SURROGATES)
def test_gradcheck(name, temperature):
    ell, scores = resolve_surrogate(name, MARGIN), SCORES.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda scores: pair_sums(scores, WEIGHT, ell, Sides(5), None, temperature), scores)


def test_an_offset_costs_no_digits_in_units_of_a_temperature():
    """Differences are divided: multiples of 1/16 at 1e6, in single precision."""
    near = (SCORES * 16).round() / 16
    far, ell = (near + 1e6).float(), resolve_surrogate("ramp")
    sums = pair_sums(far, WEIGHT.float(), ell, temperature=0.1)
    torch.testing.assert_close(sums.double(), pair_sums(near, WEIGHT, ell, temperature=0.1), rtol=1e-6, atol=1e-6)


def test_a_function_of_the_callers_own_is_differentiated_with_its_parameters():
    slope = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    pair_sums(SCORES, WEIGHT, resolve_surrogate(lambda t: slope * t), temperature=0.5).sum().backward()
    expected = ((SCORES.unsqueeze(0) - SCORES.unsqueeze(1)) @ WEIGHT).sum() / 0.5
    torch.testing.assert_close(slope.grad, expected)


def test_it_is_one_graph_and_works_under_func_grad():
    ell = resolve_surrogate("sigmoid")
    expected = torch.func.grad(lambda scores: (ell(scores.unsqueeze(0) - scores.unsqueeze(1)) @ WEIGHT).sum())(SCORES)
    torch.testing.assert_close(torch.func.grad(lambda s: pair_sums(s, WEIGHT, ell).sum())(SCORES), expected)
    compiled = torch.compile(lambda s: pair_sums(s, WEIGHT, ell).sum(), backend="eager", fullgraph=True)
    scores = SCORES.clone().requires_grad_()
    compiled(scores).backward()
    torch.testing.assert_close(scores.grad, expected)

"""What every exact objective must do."""

import numpy as np
import pytest
import torch

import fcco.functional
from functional.objectives import CASES, DEFAULTS, value_and_gradients


def test_every_objective_is_covered():
    objectives = {name for name in fcco.functional.__all__ if name.endswith("_loss")}
    assert {case.name for case in CASES} == objectives - {"maml_loss"}  # which takes a model


@pytest.mark.parametrize("case", CASES + DEFAULTS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_value_is_the_formula(case, seed):
    floats, others = case.make(seed=seed)
    np.testing.assert_allclose(case(*floats, *others).item(), case.naive(*floats, *others), rtol=1e-11)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradcheck(case):
    floats, others = case.make(n=8)
    assert torch.autograd.gradcheck(lambda *floats: case(*floats, *others), floats)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float32_keeps_its_dtype_and_agrees_with_float64(case):
    floats, others = case.make(n=40, dtype=torch.float32)
    loss, gradients = value_and_gradients(case, floats, others)
    wide = [x.detach().double().requires_grad_() for x in floats]
    exact, exact_gradients = value_and_gradients(case, wide, others)
    assert loss.shape == ()
    for mine, reference in zip([loss, *gradients], [exact, *exact_gradients], strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), reference, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_half_precision_is_computed_in_at_least_float32(case):
    floats, others = case.make(dtype=torch.bfloat16)
    loss, gradients = value_and_gradients(case, floats, others)
    exact = case(*[x.detach().float() for x in floats], *others)
    assert {x.dtype for x in (loss, *gradients)} == {torch.bfloat16}
    torch.testing.assert_close(loss.float(), exact, rtol=2**-8, atol=0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_order_of_the_data_is_of_no_account(case):
    floats, others = case.make(n=12)
    loss, gradients = value_and_gradients(case, floats, others)
    shuffle = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    moved = [x.detach()[shuffle].requires_grad_() for x in floats]
    moved_loss, moved_gradients = value_and_gradients(case, moved, [x[shuffle] for x in others])
    torch.testing.assert_close(moved_loss, loss, rtol=1e-12, atol=1e-14)
    for mine, reference in zip(moved_gradients, gradients, strict=True):
        torch.testing.assert_close(mine, reference[shuffle], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("case", [case for case in CASES if case.chunked], ids=str)
@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_chunk_is_of_no_account(case, chunk):
    floats, others = case.make(n=20)
    whole = value_and_gradients(case, floats, others)
    parts = value_and_gradients(case, floats, others, chunk=chunk)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_without_gradients(case):
    floats, others = case.make()
    loss = case(*floats, *others)
    with torch.no_grad():
        quiet = case(*floats, *others)
    assert loss.requires_grad
    assert not quiet.requires_grad
    torch.testing.assert_close(quiet, loss.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_arguments_are_left_as_they_are(case):
    floats, others = case.make()
    before = [x.detach().clone() for x in (*floats, *others)]
    case(*floats, *others).backward()
    for mine, reference in zip((*floats, *others), before, strict=True):
        assert torch.equal(mine.detach(), reference)

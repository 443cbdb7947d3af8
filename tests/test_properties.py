"""Properties of batches drawn at random: repeats, order, and where the rows lie."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fcco

N = 7
RULES = [fcco.SOX(0.3), fcco.SOAP(0.3), fcco.BSGD(), fcco.MOAP(0.3), fcco.SOX(fcco.schedules.RunningMean())]
estimates = st.floats(0.01, 100.0)
batches = st.lists(st.tuples(st.integers(0, N - 1), estimates), min_size=1, max_size=12)


def make_loss(rule, log, n=N):
    return fcco.CoupledLoss((lambda log_u: log_u) if log else torch.log, n, rule=rule, log=log)


def call(loss_fn, batch):
    index = torch.tensor([row for row, _ in batch])
    inner = torch.tensor([value for _, value in batch], dtype=torch.float64)
    inner = (inner.log() if loss_fn.log else inner).requires_grad_()
    loss = loss_fn(inner, index)
    loss.backward()
    return loss.detach(), inner.grad


def plain_table(loss_fn):
    values = loss_fn.table.read(None, cold=-math.inf if loss_fn.log else 0.0)
    return values.exp() if loss_fn.log else values


@settings(deadline=None, max_examples=60)
@given(st.lists(batches, min_size=1, max_size=4), st.sampled_from(RULES), st.booleans(), st.randoms())
def test_order_of_a_batch_is_irrelevant(steps, rule, log, random):
    first, second = make_loss(rule, log), make_loss(rule, log)
    for batch in steps:
        order = random.sample(range(len(batch)), len(batch))
        loss, gradient = call(first, batch)
        other_loss, other_gradient = call(second, [batch[i] for i in order])
        torch.testing.assert_close(other_loss, loss, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(other_gradient, gradient[order], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(first.table.u, second.table.u, rtol=1e-10, atol=1e-10)


@settings(deadline=None, max_examples=60)
@given(st.lists(batches, min_size=1, max_size=4), st.sampled_from(RULES), st.booleans())
def test_repeats_act_as_their_mean(steps, rule, log):
    """Any batch leaves the table as the batch of its distinct rows, each with its mean estimate, does."""
    with_repeats, without = make_loss(rule, log), make_loss(rule, log)
    for batch in steps:
        call(with_repeats, batch)
        rows = sorted({row for row, _ in batch})
        means = [[value for row, value in batch if row == wanted] for wanted in rows]
        call(without, [(row, sum(values) / len(values)) for row, values in zip(rows, means, strict=True)])
    torch.testing.assert_close(plain_table(with_repeats), plain_table(without), rtol=1e-10, atol=1e-10)


@settings(deadline=None, max_examples=60)
@given(st.lists(batches, min_size=1, max_size=4), st.sampled_from(RULES))
def test_log_space_is_the_same_algorithm(steps, rule):
    """Tables agree after any batches (gradients too, but for the safeguard)."""
    plain, log = make_loss(rule, log=False), make_loss(rule, log=True)
    for batch in steps:
        value, _ = call(plain, batch)
        log_value, _ = call(log, batch)
        torch.testing.assert_close(log_value, value, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(plain_table(log), plain_table(plain), rtol=1e-10, atol=1e-10)


@settings(deadline=None, max_examples=60)
@given(batches, st.sampled_from(RULES))
def test_only_the_batch_is_written(batch, rule):
    loss_fn = make_loss(rule, log=False)
    call(loss_fn, batch)
    assert set(loss_fn.table.visits.nonzero().ravel().tolist()) == {row for row, _ in batch}


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 10**6), st.integers(-(10**7), 10**7))
def test_an_index_is_taken_or_refused(n, row):
    loss_fn = make_loss(fcco.SOX(0.3), log=False, n=n)
    if 0 <= row < n:
        call(loss_fn, [(row, 1.0)])
    else:
        with pytest.raises(IndexError, match=rf"got {row} at position 0"):
            call(loss_fn, [(row, 1.0)])
    assert loss_fn.table.visits.any() == (0 <= row < n)

"""Exact objectives on several threads: the same to the last bit, and nothing of the caller's is changed."""

import threading
from functools import partial

import pytest
import torch

from fcco.functional import (
    _chunks,
    _ramps,
    average_precision_loss,
    ndcg_loss,
    p_norm_push_loss,
    partial_auc_loss,
)
from fcco.functional._ramps import ramp, ramp_sums
from fcco.functional._threads import in_order

N = 3000
RANDOM = torch.Generator().manual_seed(0)
SCORES = 20 * torch.randn(N, generator=RANDOM, dtype=torch.float64)
TARGET = torch.rand(N, generator=RANDOM) < 0.2
WEIGHT = torch.rand(N, generator=RANDOM, dtype=torch.float64)
RELEVANCE = torch.randint(0, 4, (N,), generator=RANDOM)

OBJECTIVES = {
    **{
        f"average precision, {surrogate}": partial(
            average_precision_loss, target=TARGET, weight=WEIGHT, surrogate=surrogate
        )
        for surrogate in ("ramp", "sigmoid", "squared_hinge")
    },
    "p-norm push, logistic": partial(p_norm_push_loss, target=TARGET, surrogate="logistic"),
    "partial AUC": partial(partial_auc_loss, target=TARGET, surrogate="sigmoid"),
    "NDCG, ramp": partial(ndcg_loss, relevance=RELEVANCE, query=torch.arange(N) // 37),
    "NDCG, ramp, one list": partial(ndcg_loss, relevance=RELEVANCE, query=torch.zeros(N, dtype=torch.int64)),
    "NDCG, sigmoid": partial(ndcg_loss, relevance=RELEVANCE, query=torch.arange(N) // 37, surrogate="sigmoid"),
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Cut small data into many parts, and set the number of threads back."""
    monkeypatch.setattr(_chunks, "_CPU_BYTES", 2**17)
    monkeypatch.setattr(_ramps, "_BLOCK", 100)
    monkeypatch.setattr(_ramps, "_LONG", 1000)
    monkeypatch.setattr(_ramps, "_SAMPLE", 4)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_values_and_gradients_do_not_depend_on_the_number_of_threads(name):
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        scores = SCORES.clone().requires_grad_()
        value = OBJECTIVES[name](scores)
        found.append((value.detach(), *torch.autograd.grad(value, scores)))
        assert torch.get_num_threads() == threads
    for value, gradient in found[1:]:
        assert torch.equal(value, found[0][0])
        assert torch.equal(gradient, found[0][1])


@pytest.mark.parametrize("points", [SCORES, torch.zeros(N, dtype=torch.float64), SCORES.round()])
def test_buckets_of_points_give_the_sums_of_ramps(points):
    thresholds = torch.cat([points[:20], points[:20] + 0.5])
    expected = ramp(points - thresholds.unsqueeze(1)) @ WEIGHT
    torch.testing.assert_close(ramp_sums(thresholds, points, WEIGHT), expected, rtol=1e-12, atol=1e-9)


def test_parts_run_on_other_threads_and_come_back_in_order():
    torch.set_num_threads(2)
    found = list(in_order(lambda part: (part, threading.current_thread().name), range(20), SCORES))
    assert [part for part, _ in found] == list(range(20))
    assert all(name.startswith("fcco") for _, name in found)


def test_one_thread_stays_in_the_calling_one():
    torch.set_num_threads(1)
    assert {*in_order(lambda _: threading.get_ident(), range(3), SCORES)} == {threading.get_ident()}


def test_operations_within_a_part_have_one_thread_and_the_grad_mode_of_the_caller():
    torch.set_num_threads(3)
    with torch.no_grad():
        states = {*in_order(lambda _: (torch.get_num_threads(), torch.is_grad_enabled()), range(9), SCORES)}
    assert states == {(1, False)}


def test_new_threads_of_the_user_have_the_threads_of_torch_that_were_set():
    torch.set_num_threads(4)
    list(in_order(int, range(9), SCORES))
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [4]


def test_an_error_of_a_part_is_the_callers():
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda part: 1 / (part - 3), range(9), SCORES))


def test_modes_of_torch_reach_all_parts():
    torch.set_num_threads(2)
    seen = set()

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.add(threading.get_ident())
            return function(*args, **(kwargs or {}))

    with Mode():
        average_precision_loss(SCORES, TARGET)
    assert seen == {threading.get_ident()}

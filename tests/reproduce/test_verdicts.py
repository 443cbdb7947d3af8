"""What is said to hold: every judge on results that it must accept, and on ones that it must not."""

import math

import pytest

from fcco_reproduce.nca import _verdict as nca
from fcco_reproduce.push import _curves
from fcco_reproduce.quick import _compare as quick
from fcco_reproduce.theory import _boost, _methods, _speedup, _split, _stationarity, _tracking


def curve(**changes):
    known = {"name": "covtype", "data": "covtype", "start": _curves.STARTS[0], "every": 100, "gamma": 0.5, "batch": 8}
    return {**known, **changes}


@pytest.mark.parametrize(
    ("small", "large", "holds"),
    [
        ([1.0, 0.7, 0.5], [1.0, 0.5, 0.4], True),
        ([1.0, 0.5, 0.5], [1.0, 0.5, 0.5], True),
        ([1.0, 0.5, 0.4], [1.0, 0.7, 0.5], False),
        ([1.0, 0.7, 0.5], [1.0, 0.5, None], False),
    ],
)
def test_larger_batches_need_no_more_iterations(small, large, holds):
    results = [curve(batch=8, losses=[small]), curve(batch=16, losses=[large])]
    assert _curves.judge_batches(results).holds is holds


@pytest.mark.parametrize(
    ("published", "from_zero", "holds"),
    [
        ({0.5: 0.3, 1.0: 0.4}, {0.5: 0.3, 1.0: 0.2}, True),  # said of the authors' start alone
        ({0.5: 0.4, 1.0: 0.3}, {0.5: 0.2, 1.0: 0.3}, False),
        ({0.5: None, 1.0: 0.3}, {0.5: 0.2, 1.0: 0.3}, False),
        ({0.5: 0.4, 1.0: None}, {0.5: 0.2, 1.0: 0.3}, True),
    ],
)
def test_the_best_gamma_is_not_one(published, from_zero, holds):
    results = [
        curve(start=start, gamma=gamma, losses=[[1.0, end], [1.0, end and end + 0.01]])
        for start, ends in zip(_curves.STARTS, (published, from_zero), strict=True)
        for gamma, end in ends.items()
    ]
    assert _curves.judge_gammas(results).holds is holds


def test_one_method_is_ahead_by_more_than_both_errors():
    def line(excess, error=0.3):
        return {"excess": excess, "+-": error}

    assert quick._is_ahead(line(0.5), line(1.0))
    assert not quick._is_ahead(line(0.5, 0.4), line(1.0, 0.4))  # 0.5 < hypot(0.4, 0.4)
    assert not quick._is_ahead(line(1.0), line(0.5))
    assert quick._is_ahead(line(0.5), line(None))
    assert not quick._is_ahead(line(None), line(0.5))
    assert not quick._is_ahead(line(None), line(None))


@pytest.mark.parametrize(
    ("rates", "edge"), [([1e-6, 1e-4, 1e-3], True), ([1e-4, 1e-3, 1e3], False), ([1e-3, 1e2, 1e3], True)]
)
def test_an_end_of_the_grid_is_seen(rates, edge):
    """A few steps want a larger lr than 1e-4; with 100 runs diverge."""
    plan = {"objective": "p-norm push", "batch": 4, "steps": 20, "seeds": 1, "tuning_seeds": 2, "gammas": [1.0]}
    found = quick.compare(method="BSGD", rates=rates, **plan)
    assert found["lr"] == 1e-3
    assert found["edge"] is edge


def test_runs_that_diverged_are_last_in_the_order_of_nca():
    def row(method, score):
        return {"block": "tuned alike", "method": method, nca.SCORE: score, "diverged": int(math.isnan(score))}

    rows = [row("BSGD", math.nan), row("SOAP", 0.5), row("MOAP", math.nan), row("SOX", 0.9)]
    for order in (rows, rows[::-1]):
        assert [row["method"] for row in nca._block(order, "tuned alike")][:2] == ["SOX", "SOAP"]


SPEEDUP = {
    "problems": {
        "easy": {
            "problem": {"kind": "convex"},
            "epsilon": [0.2, 0.1],
            "values": {"outer_batch": [2, 8, 32], "inner_batch": [2, 8, 32]},
        }
    }
}


def speedup(outer=-1.0, inner=-1.0):
    """Steps of SOX that follow power laws, and those of gradient descent."""
    known = {"problem": {"kind": "convex"}, "n": 64, "lr": [0.1, 0.2, 0.4]}
    sizes = {(b, 8) for b in (2, 8, 32)} | {(8, b) for b in (2, 8, 32)}
    results = [{**known, "arrived": {"0.2": [None, 3, 4], "0.1": [None, 5, 6]}}]
    for one, two in sizes:
        steps = None if inner is None and two == 2 else 1000 * (one / 8) ** outer * (two / 8) ** (inner or 0.0)
        arrived = {"0.2": [None, 100, 120], "0.1": [None, steps, None]}
        results.append({**known, "outer_batch": one, "inner_batch": two, "gamma": 1.0, "arrived": arrived})
    return results


def test_speed_up_is_judged_by_both_batches():
    assert _speedup.judge(speedup(), SPEEDUP).holds is True
    assert _speedup.judge(speedup(outer=-0.6), SPEEDUP).holds is False
    assert _speedup.judge(speedup(inner=-0.2), SPEEDUP).holds is False
    assert _speedup.judge(speedup(inner=None), SPEEDUP).holds is False  # one size is never solved
    found = _speedup.judge(speedup(), SPEEDUP)
    assert [row["its exponent"] for row in found.rows[:2]] == [0.0, 0.0]
    assert found.rows[0]["steps of gradient descent"] == "5 5 5"


@pytest.mark.parametrize(("worst", "holds"), [(0.99, True), (1.01, False)])
def test_theorem_1_is_about_every_seed(worst, holds):
    averages = [[2.0, 2.0], [0.1 * 0.04, worst * 0.04]]
    result = {"epsilon": 0.2, "averages": averages, "at": [1, 100], "steps": 100, "beta": 1, "gamma": 1, "lr": 1}
    assert _stationarity.judge([result]).holds is holds


@pytest.mark.parametrize(("left", "holds"), [(1.0, True), (1.05, True), (1.2, False)])
def test_lemma_1_is_judged_beyond_two_errors(left, holds):
    steps = [{"left": 0.5, "right": 1.0, "margin": 0.1, "without": 1.0}]
    steps.append({**steps[0], "left": left})
    result = {"gamma": 0.1, "lr": 0.1, "replicas": 10, "steps": steps}
    assert _tracking.judge([result]).holds is holds


SPLIT = {"batch": 32, "outer_batch": [4, 16, 28], "problems": {"easy": {"problem": {}, "epsilon": [0.1]}}}


def split(steps):
    control = {"problem": {}, "lr": [0.1], "arrived": {"0.1": [7]}}
    runs = [
        {"problem": {}, "outer_batch": b, "lr": [0.1], "gamma": 1.0, "arrived": {"0.1": [count]}}
        for b, count in steps.items()
    ]
    return [*runs, control]


def test_half_and_half_has_to_be_the_fastest_within_a_tenth():
    assert _split.judge(split({4: 300, 16: 100, 28: 300}), SPLIT).holds is True
    assert _split.judge(split({4: 300, 16: 109, 28: 100}), SPLIT).holds is True
    assert _split.judge(split({4: 100, 16: 200, 28: 300}), SPLIT).holds is False
    assert _split.judge(split({4: None, 16: 200, 28: None}), SPLIT).holds is True
    assert _split.judge(split({4: 100, 16: None, 28: None}), SPLIT).holds is False
    nowhere = _split.judge(split({4: None, 16: None, 28: None}), SPLIT)
    assert nowhere.holds is False
    assert "no split arrives" in nowhere.verdict


def boost(first=-1.0, second=-1.0, third=-1.2, target=1.0):
    steps = [100, 200, 400]
    power = {name: [[s**p, s**p] for s in steps] for name, p in (("a", first), ("b", second), ("c", third))}
    quick = {"steps": steps, "excess": power["a"], "targets": [target] * 3}
    return [quick, {"steps": steps, "distances": power["b"], "excess": power["c"]}]


def test_exponents_of_minus_one():
    assert _boost.judge(boost()).holds is True
    for wrong in ({"first": -0.6}, {"first": -1.4}, {"second": -0.6}, {"third": -0.7}, {"target": 1e-3}):
        assert _boost.judge(boost(**wrong)).holds is False


@pytest.mark.parametrize(("sox", "nasa", "holds"), [(0.1, 0.3, True), (0.4, 0.3, False), (0.1, None, True)])
def test_sox_is_ahead_of_those_that_evaluate_all_rows(sox, nasa, holds):
    ends = {"SOX": sox, "SOAP": 0.2, "MOAP": 0.2, "BSGD": 0.2, "SCGD": 0.5, "NASA": nasa}
    points = list(range(_methods.POINTS + 1))
    results = [
        {
            "problem": problem,
            "method": method,
            "n": 256,
            "lr": 1,
            "gamma": 1,
            "beta": 1,
            "tried": 1,
            "diverged": 0,
            "edge": 0,
        }
        | {"at": end and points, "excess": end and [[1.0, 1.0], *([end, end] for _ in points[1:])]}
        for problem in _methods.PROBLEMS
        for method, end in ends.items()
    ]
    assert _methods.judge(results).holds is holds

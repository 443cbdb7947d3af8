"""Figures: who has which colour, and what the data are called."""

import pytest

from fcco_reproduce import _figures as figures
from fcco_reproduce._methods import AS_PUBLISHED, CODED, EXACT, PRINTED
from fcco_reproduce._methods import TUNED as TUNED_ALIKE
from fcco_reproduce.ap import _comparison as ap
from fcco_reproduce.nca import STUDY as NCA
from fcco_reproduce.nca import _comparison as nca
from fcco_reproduce.push import STUDY as PUSH
from fcco_reproduce.push import _comparison as push
from fcco_reproduce.push import _curves
from fcco_reproduce.push._verdict import TUNED
from fcco_reproduce.quick import _compare as quick
from fcco_reproduce.theory import _methods as theory

FOUR = ("BSGD", "SOAP", "MOAP", "SOX")
FIVE = (*FOUR[:3], CODED, PRINTED)
ABSENT = "SOAP"


def colours(axes):
    """By name; what is drawn in more than one panel has one colour in all of them."""
    lines = [line for ax in axes for line in ax.get_lines() if not line.get_label().startswith("_")]
    found = {line.get_label(): line.get_color() for line in lines}
    assert {(line.get_label(), line.get_color()) for line in lines} == set(found.items())
    return {name: colour for name, colour in found.items() if name.split(":")[0] in figures.METHOD_STYLES}


def expected(methods):
    return {method: figures.style(method.split(":")[0])["color"] for method in methods}


def test_a_predicted_slope_goes_through_its_anchor():
    _, (ax,) = figures.new_figure()
    figures.slope(ax, [1.0, 2.0, 4.0], 3.0, -2.0, "predicted")
    (line,) = ax.get_lines()
    assert line.get_xydata().tolist() == [[1.0, 3.0], [4.0, 3.0 / 16]]


@pytest.mark.parametrize(
    ("runs", "above_zero", "ends"),
    [
        ([[1.0, 2.0], [3.0, 2.0]], False, (0.0, 4.0)),
        ([[1.0, 2.0], [3.0, 2.0]], True, (0.2, 4.0)),
        ([[2.0, 2.0]], False, (2.0, 2.0)),
    ],
)
def test_a_band_is_two_standard_errors_of_the_mean(runs, above_zero, ends):
    """1 and 3 have the deviation sqrt 2 of a sample, and their mean the standard error 1; one run has none."""
    _, (ax,) = figures.new_figure()
    figures.band(ax, [1.0, 2.0], runs, "SOX", "SOX", above_zero=above_zero)
    (line,), (area,) = ax.get_lines(), ax.collections
    assert line.get_ydata().tolist() == [2.0, 2.0]
    heights = [y for x, y in area.get_paths()[0].vertices if x == 1.0]
    assert (min(heights), max(heights)) == pytest.approx(ends)


@pytest.mark.parametrize("log", ["", "x", "y", "xy"])
def test_log_axes(log):
    _, (ax,) = figures.new_figure()
    figures.finish(ax, "a", "b", log=log)
    assert (ax.get_xscale() == "log", ax.get_yscale() == "log") == ("x" in log, "y" in log)


def two_panels():
    figure, axes = figures.new_figure(2)
    for ax in axes:
        ax.plot([1, 2], [3, 1], label="a < b & c")
        figures.finish(ax, "steps", "loss" if ax is axes[0] else "", "with *stars*", log="y")
    return figure


def test_a_file_says_what_it_shows_and_is_the_same_each_time(tmp_path):
    expected = "Chart of loss (log scale) by steps. with *stars*: a < b & c. with *stars*: the same lines."
    for name in ("one.svg", "two.svg"):
        figures.save(two_panels(), tmp_path / name)
        assert figures.description(tmp_path / name) == expected
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_methods_that_meet_in_a_figure_look_different():
    for together in ((*FOUR, "SCGD", "NASA"), (*FIVE, "in-batch AP", "cross entropy", "cross entropy, then AP")):
        assert len({figures.style(method)["color"] for method in together}) == len(together)


def push_runs(losses):
    known = {"data": "covtype", "every": 100}
    runs = [{**known, "block": b, "method": m, "losses": losses[m]} for b in (AS_PUBLISHED, *TUNED) for m in losses]
    runs.append({**known, "block": AS_PUBLISHED, "method": "BS-PnP", "losses": [[0.7]]})
    return [*runs, {**known, "block": EXACT, "method": "L-BFGS, weight decay 0", "losses": [[0.2]]}]


def test_a_method_that_diverges_leaves_its_colour_to_nobody():
    losses = {key: [[1.0, 0.5], [1.0, 0.6]] for key in FOUR} | {ABSENT: [[1.0, None], [1.0, None]]}
    axes = push.draw(push_runs(losses), {"exact_decays": [0.0]}).axes
    assert colours(axes) == expected(("BSGD", "SOAP: diverged", "MOAP", "SOX"))


@pytest.mark.parametrize("methods", [FOUR, tuple(method for method in FOUR if method != ABSENT)])
@pytest.mark.parametrize("study", ["push", "nca", "theory", "quick"])
def test_colours_are_those_of_the_methods_whichever_are_there(study, methods):
    curve = {"at": [0, 1, 2], "losses": [[-0.1, -0.5, -0.6]], "excess": [[1.0], [0.5], [0.1]]}
    curve |= {"values": [[1.0], [0.5], [0.3]], "data": "usps", "batch": 8}
    if study == "push":
        figure = push.draw(push_runs({key: [[1.0, 0.5]] for key in methods}), {"exact_decays": [0.0]})
    elif study == "nca":
        blocks = (AS_PUBLISHED, TUNED_ALIKE, EXACT)
        figure = nca.draw([{**curve, "block": block, "method": method} for block in blocks for method in methods])
    elif study == "theory":
        problems = theory.PROBLEMS
        figure = theory.draw([{**curve, "problem": problem, "method": m} for problem in problems for m in methods])
    else:
        figure = quick.draw([{"minimum": 0.1}, *({**curve, "method": method} for method in methods)])
    assert colours(figure.axes) == expected(methods)


def test_average_precision_has_the_same_colours_in_all_panels():
    """The last panel has a line at each mean, in place of a legend."""
    point = {"step": 0, "train loss": 0.5, "train AP": 0.5}
    run = {"diverged": False, "history": [point, {**point, "step": 1}], "test AP": 0.6}
    shown = {method: [run] for method in ("BSGD", PRINTED, "cross entropy")}
    _, axes = figures.new_figure(3)
    ap.draw_curves(axes[:2], shown, "")
    ap._draw_tests(axes[2], shown, "cifar10")
    assert colours(axes) == expected(shown)
    assert [line.get_color() for line in axes[2].get_lines()[1::2]] == list(expected(shown).values())


@pytest.mark.parametrize("study", [PUSH, NCA], ids=lambda study: study.name)
def test_data_that_stand_in_for_the_papers_are_named(study):
    for experiment in study.experiments("quick"):
        if "data" in experiment.settings:
            data, name = experiment.settings["data"], experiment.name
            assert experiment.claim.startswith(f"{data} in place of {name}: the paper's ")
    assert study.experiments()[0].claim.startswith(f"{study.experiments()[0].name}: the paper's ")


def curve(**changes):
    known = {"name": "covtype", "data": "breast cancer", "start": "as published", "every": 100, "gamma": 0.5}
    return {**known, "losses": [[1.0, 0.5], [1.0, 0.7]], "batch": 8, **changes}


@pytest.mark.parametrize(("judge", "draw"), [("judge_batches", "draw_batches"), ("judge_gammas", "draw_gammas")])
def test_curves_name_the_data_that_they_are_of(judge, draw):
    results = [curve(), curve(start="from w = 0")]
    assert "breast cancer in place of covtype" in getattr(_curves, judge)(results).verdict
    figure = getattr(_curves, draw)(results)
    assert all(ax.get_title().startswith("SOX (code) on breast cancer in place of covtype") for ax in figure.axes)


def test_a_batch_size_with_which_all_runs_diverge_is_counted():
    lost = {"losses": [[1.0, None], [1.0, None]]}
    found = _curves.judge_batches([curve(), curve(batch=16, **lost)])
    assert found.holds is False
    assert "covtype 100 (B = 16), divergence (B = 32). 2 of 4 runs diverge" in found.verdict
    assert [row["diverged"] for row in found.rows] == [0, 2]
    nothing = _curves.judge_batches([curve(**lost)])
    assert "covtype divergence (B = 16). 2 of 2 runs diverge" in nothing.verdict
    _curves.draw_batches([curve(**lost)])

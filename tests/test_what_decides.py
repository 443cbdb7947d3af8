"""What decides how far training gets: its plan and its verdicts by hand, and all of it in short form."""

import math

import pytest

import fcco
from harness import excess as harness
from harness.excess import Row
from what_decides.__main__ import answer
from what_decides._advice import Verdict
from what_decides._cells import IN_BATCH, QUESTIONS, Choice, advised, problems, tried
from what_decides._compiled import train
from what_decides._measure import Outcome


def test_names_are_rules():
    assert Choice("letter .1").rule(10) == fcco.SOX(0.1, safeguard=False)
    assert Choice("SOX .5").rule(10) == fcco.SOX(0.5)
    assert Choice("SOAP .7 exact").rule(10) == fcco.SOAP(0.7)
    assert Choice("SOAP cos .1").rule(10) == fcco.SOAP(fcco.schedules.Cosine(0.1, 5))
    assert Choice("SOAP mean 0").rule(10) == fcco.SOAP(fcco.schedules.RunningMean())
    assert Choice("SOAP power .5").rule(10) == fcco.SOAP(fcco.schedules.Power(0.5))
    assert [Choice(name).own_term["own_term"] for name in ("SOAP .7", "SOAP .7 exact", IN_BATCH)] == [
        "sampled",
        "exact",
        "sampled",
    ]


RUNS = [
    (Row("cox", "diabetes", 16, 3), 0.05),
    (Row("average_precision", "breast cancer", 32, 4), 1.0),
    (Row("p_norm_push", "breast cancer", 32, 3), 0.02),
    (Row("nca", "digits", 128, 2), 4.0),
]
VARIANTS = (
    IN_BATCH,
    "SOAP .3",
    "SOX .1",
    "letter .3",
    "SOAP cos .1",
    "SOAP mean 0",
    "SOAP mean .2",
    "SOAP power .5",
    "SOAP power .1",
)


@pytest.mark.parametrize(("row", "lr"), RUNS, ids=[row.objective for row, _ in RUNS])
def test_compiled_training_is_that_of_the_losses(row, lr):
    with_own_term = ("SOAP .5 exact", "BSGD exact") if row.objective in ("cox", "average_precision") else ()
    reached = {}
    # NCA's exact objective takes its time.
    for name in (*(VARIANTS[1:5] if row.objective == "nca" else VARIANTS), *with_own_term):
        reached[name] = train(row, Choice(name), lr, seed=0)
        # Float32 there, float64 here; what a wrong rule would reach differs in the third digit.
        assert reached[name] == pytest.approx(harness.train(row, Choice(name), lr, seed=0), rel=1e-5)
    assert len({round(value, 7) for value in reached.values()}) >= len(reached) - 1


def test_a_run_that_diverges_is_infinitely_bad():
    assert train(Row("p_norm_push", "breast cancer", 32, 3), Choice("SOAP .5"), 1e3, seed=0) == math.inf


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_point_of_a_figure_has_a_run(name):
    for problem in problems():
        for line in QUESTIONS[name].lines(problem):
            assert len(line.cells) == (1 if line.reference else len(line.x))
            assert {cell.data for cell in line.cells} == {problem.data}
            for cell in line.cells:
                assert isinstance(Choice(cell.variant).rule(10), fcco.Rule)


def test_advice_is_held_against_the_default_among_others():
    for problem in problems():
        for place in advised(problem):
            variants = [cell.variant for cell in tried(problem, *place)]
            assert variants[0] == IN_BATCH
            assert problem.default in variants
            assert len(set(variants)) == len(variants)


def verdict(use_table, gamma, **excess):
    runs = {IN_BATCH: Outcome((1.0,), 1.0)} | {f"SOAP .{name[1:]}": Outcome((e,), 1.0) for name, e in excess.items()}
    return Verdict("", 8, 10, [{"use_table": told, "gamma": gamma, "gain": 0.5} for told in use_table], runs, "SOAP .9")


@pytest.mark.parametrize(
    ("use_table", "gamma", "right"),
    [([True] * 3, 0.8, True), ([True] * 3, 0.2, False), ([False] * 3, 0.8, False), ([True, False, True], 0.9, True)],
)
def test_advice_is_right_where_its_gamma_is_ahead(use_table, gamma, right):
    assert verdict(use_table, gamma, g1=2.0, g9=0.5).right is right


def test_whoever_is_told_to_use_no_table_is_where_the_in_batch_loss_is():
    assert verdict([False], 0.8, g1=2.0, g9=0.5).followed == 1.0
    assert verdict([True], 0.8, g1=2.0, g9=0.5).followed == 0.5


def test_no_table_is_right_where_none_is_ahead_by_a_tenth():
    assert verdict([False], 0.5, g1=2.0, g9=0.95).right
    assert not verdict([False], 0.5, g1=2.0, g9=0.85).right


@pytest.mark.filterwarnings("ignore:batches has only")  # in so short a run
def test_a_short_study_draws_its_figures_and_writes_its_numbers(tmp_path):
    page = answer(["batch", "own_term", "advice"], tmp_path, tmp_path / "cache.jsonl", quick=True)
    assert {path.name for path in tmp_path.glob("*.svg")} == {"batch.svg", "own_term.svg"}
    assert "| in-batch |" in page
    assert "Right: " in page
    # Nothing is done twice.
    before = (tmp_path / "cache.jsonl").read_text()
    assert answer(["batch"], tmp_path, tmp_path / "cache.jsonl", quick=True).split("## ")[1] in page
    assert (tmp_path / "cache.jsonl").read_text() == before

"""The study in its quick form. Seeds are fixed, so the tolerances are not a matter of luck but of versions."""

import csv

import pytest

from fcco.cli import main
from fcco_reproduce import Scale, run_study
from fcco_reproduce.theory import STUDY


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Findings by key, and the folder they were written to."""
    out = tmp_path_factory.mktemp("theory")
    experiments = STUDY.experiments("quick")
    findings = run_study(experiments, Scale(4, "quick"), out, workers=1)
    return {experiment.key: finding for experiment, finding in zip(experiments, findings, strict=True)}, out


def test_theorem_1_holds(found):
    (row,) = found[0]["i"].rows
    assert row["worst seed"] <= 1
    assert 0 < row["reached at"] <= row["steps T"]


def test_speed_up_has_a_control(found):
    """Gradient descent has no batch: its steps are the same at every B1 and B2, so an exponent of its own is 0."""
    rows = found[0]["ii"].rows
    assert {row["size"] for row in rows} == {"B1", "B2", "n", "epsilon"}
    assert all(row["its exponent"] == 0 for row in rows if row["size"] in ("B1", "B2"))
    assert all("none" not in row["steps of SOX"] for row in rows if row["problem"] == "strongly_convex")


def test_splits_lie_on_both_sides_of_the_middle(found):
    rows = found[0]["iii"].rows
    assert {row["B1"] for row in rows} == {4, 16, 28}
    assert all(row["B1"] + row["B2"] == 32 for row in rows)
    assert len({row["steps of gradient descent"] for row in rows if row["problem"] == "strongly_convex"}) == 1


def test_one_over_epsilon(found):
    """Exponents of -1 within 0.35; a rate of 1 / epsilon^2 would show as -0.5."""
    boost, distance, average = found[0]["iv"].rows
    assert boost["fitted exponent"] == pytest.approx(-1, abs=0.35)
    assert distance["fitted exponent"] == pytest.approx(-1, abs=0.35)
    assert average["fitted exponent"] < -0.8


def test_lemma_1_holds(found):
    """At every step, within two standard errors; the bound is close, so half of it would be crossed."""
    for row in found[0]["v"].rows:
        assert row["beyond 2 s.e."] == 0
        assert 0.5 < row["largest left / right"] <= 1


def test_all_rows_a_step_cost_their_price(found):
    """SOX is ahead of SCGD and NASA, which take 13 to 16 times fewer steps, on every problem."""
    rows = {(row["problem"], row["method"]): row for row in found[0]["vi"].rows}
    assert len(rows) == 4 * 6
    for problem in {problem for problem, _ in rows}:
        sox = rows[problem, "SOX"]
        for method in ("SCGD", "NASA"):
            other = rows[problem, method]
            assert other["steps"] * 10 < sox["steps"]
            assert sox["excess / excess at the start"] < 0.8 * other["excess / excess at the start"]


def test_every_experiment_has_a_table_and_a_figure(found):
    for experiment in STUDY.experiments("quick"):
        with (found[1] / f"{experiment.stem}.csv").open() as file:
            assert len(list(csv.DictReader(file))) == len(found[0][experiment.key].rows)
        picture = (found[1] / f"{experiment.stem}.svg").read_text()
        assert "</svg>" in picture
        assert len(picture) < 200_000


def test_the_command(tmp_path, capsys):
    """From the cache of a first call, the second writes the page and prints the same."""
    options = ["reproduce", "theory", "--quick", "--only", "v", "--workers", "1", "--seeds", "2"]
    options += ["--out", str(tmp_path / "out")]
    assert main(options) == 0
    first = capsys.readouterr()
    assert main([*options, "--docs", str(tmp_path / "page.md")]) == 0
    second = capsys.readouterr()
    assert second.out == first.out
    assert "2/2 jobs" in first.err
    assert second.err == ""
    page = (tmp_path / "page.md").read_text()
    assert "![Chart of Ξ at t + 1 (lines), its bound (dots) (log scale) by t. Lemma 2, one step ahead: gamma" in page
    assert "](page/v-tracking.svg)" in page
    assert (tmp_path / "page" / "v-tracking.svg").exists()
    assert (tmp_path / "page" / "v-tracking.csv").exists()
    assert main([*options, "--fresh"]) == 0
    assert "2/2 jobs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "i,vii"], "--only must be among i, ii, iii, iv, v, vi; got 'vii'"),
        (["--seeds", "1"], "--seeds must be at least 2, to estimate the spread; got 1"),
        (["--workers", "0"], "workers must be at least 1; got 0"),
        (["--scale", "paper"], "--quick means --scale quick; got --scale paper too, so give only one of them"),
        (["--device", "cuda"], "--device must be cpu for the study theory; got cuda"),
    ],
)
def test_bad_options_are_refused(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit) as refused:
        main(["reproduce", "theory", "--quick", "--out", str(tmp_path / "out"), *options])
    assert refused.value.code == 2
    assert message in capsys.readouterr().err

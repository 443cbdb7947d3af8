"""The page of the paper's numbers and ours."""

import numpy as np
import pytest

from fcco.cli import main
from fcco_reproduce import _command as command
from fcco_reproduce._figures import band, new_figure
from fcco_reproduce._methods import CODED, FROM_VISIT, FROM_ZERO, PRINTED
from fcco_reproduce._results import PAPER, as_results

RUN = {"command": "fcco reproduce x", "date": "2030-01-02T03:04:05", "seeds": 5, "scale": None, "quick": False}
RUN |= {"environment": {"CPU": "a processor", "torch": "2"}}


def record(study, name, rows, **run):
    about = {"study": {"name": study}, "stem": f"i-{name}", "key": "i", "rows": rows, "verdict": "So it is."}
    return {**about, "run": {**RUN, **run}}


def push_row(block, method, loss, paper=None, std=None, diverged=0):
    off = None if paper is None else loss - paper
    known = {"test loss": loss, "std": 0.002, "seconds": 0.5, "runs": 20, "diverged": diverged}
    known |= {
        "paper std": std,
        "difference": off,
        "agrees": None if paper is None else abs(off) <= 2 * (std or 0.00025),
    }
    return {"block": block, "method": method, **known}


PUSH = [
    push_row("as published", "BS-PnP", 0.2681, 0.268),
    push_row("as published", "BSGD", 0.2021, 0.202, 0.001),
    push_row("as published", "SOAP", 0.1280, 0.128, 0.002),
    push_row("as published", "MOAP", 0.1500, 0.147, 0.001),
    push_row("as published", CODED, 0.1270, 0.128, 0.002),
    push_row(FROM_ZERO, PRINTED, 0.1277, 0.128, 0.002),
    push_row(FROM_VISIT, PRINTED, 0.15, 0.128, 0.002, diverged=12),
    push_row("other seeds", CODED, 0.1270, diverged=3),
    push_row("same steps", "BSGD", 0.1391),
    push_row("tuned alike (objective)", CODED, 0.1300),
    push_row("tuned alike (objective)", "BSGD", 0.1200),
    push_row("exact", "L-BFGS", 0.1100),
]


def test_printed_numbers_stand_in_one_file():
    for experiment in command.load("push").experiments(only="i,ii"):
        assert {"BS-PnP", *experiment.settings["published"]} == set(PAPER["test_loss"][experiment.name])
        assert {key for rates in experiment.settings["published"].values() for key in rates} == {"lr", "gamma", "beta"}
    for rates in command.load("ap").experiments(only="iv")[0].settings["published"].values():
        assert {key for some in rates.values() for key in some} == {"lr", "gamma"}


def test_what_has_not_been_run_is_said_to_and_the_papers_numbers_stand():
    text = as_results([], "fcco report --results R.md")
    for study in ("ap", "push", "nca"):
        assert f"`fcco reproduce {study}` has not been run" in text
    assert "| cifar100 | SOX (code) | 0.597 ± 0.012 |  |  |" in text
    assert "| covtype | BS-PnP | 0.778 |  |  |" in text
    assert "| covtype | BS-PnP | 6,043.90 |  |\n" in text
    assert "| cifar10 | MOAP | 13.0 ± 4.3 |  |\n" in text
    assert as_results([record("push", "ijcnn1", PUSH, quick=True)], "fcco report --results R.md") == text


def test_push():
    text = as_results([record("push", "ijcnn1", PUSH)], "fcco report")
    assert "| ijcnn1 | SOX (code) | 0.128 ± 0.002 | 0.1270 ± 0.0020 | -0.0010 |" in text
    assert "| ijcnn1 | SOX (Algorithm 1) | 0.128 ± 0.002 | 0.1277 ± 0.0020 | -0.0003 |" in text
    assert "| ijcnn1 | SOX (code) | 4.15 ± 0.06 | 0.500 |\n" in text  # two numbers, and no difference
    assert "SOX (code) 0.1270, Algorithm 1 0.1277 from u = 0, 0.1500 (12 of 20 diverge) from first visits." in text
    assert "4 of 5 test losses are those of the paper" in text
    assert "The farthest is 3.0 deviations off." in text  # (.150 - .147) / .001
    assert "Losses that are not met: MOAP on ijcnn1." in text
    assert "diverge: ijcnn1 SOX (code) 3 of 20." in text
    assert "0.1391, which is 85% of the way to SOAP," in text  # (.2021 - .1391) / (.2021 - .1280)
    assert "ijcnn1: BSGD 0.1200, SOX (code) 0.1300." in text
    assert "tests at 0.1100 on ijcnn1" in text
    assert "`fcco reproduce push` has not been run" not in text


def nca_row(block, method, score, within=None):
    return {"data": "usps", "block": block, "method": method, "-(test loss)": score, "std": 0.001} | {
        "paper's figure": "0.9 to 1",
        "their code, seed 0": None,
        "in its range": within,
    }


def test_nca():
    rows = [nca_row("as published", CODED, 0.94, True), nca_row("as published", "SOAP", 0.95, True)]
    rows += [
        {**nca_row(FROM_VISIT, PRINTED, np.nan), "runs": 5, "diverged": 4},
        nca_row("tuned alike", CODED, 0.97),
        nca_row("tuned alike", "SOAP", 0.95),
    ]
    text = as_results([record("nca", "usps", rows)], "fcco report")
    assert (
        "2 of 2 runs that the figure shows end in its range, and SOX (code) is first, as the paper has SOX, on none."
        in text
    )
    assert "| usps | SOX (Algorithm 1), rows from first visits | 0.9 to 1 |  | diverges with 4 of 5 seeds |" in text
    assert "The paper has SOX first; on usps the order is SOAP 0.9500, SOX (code) 0.9400." in text
    assert (
        "usps: SOX (code) 0.9700, SOAP 0.9500. The best method and the worst that does not diverge are this far apart, "
        "with the authors' rates and with one grid: usps 0.0100 and 0.0200." in text
    )


def ap_row(method, score):
    return {"data": "cifar10", "block": "tuned alike", "method": method, "test AP": score, "test AP std": 0.01} | {
        "epochs": 1.5
    }


def test_average_precision():
    rows = [ap_row("BSGD", 0.6), ap_row(CODED, 0.65), ap_row("cross entropy", 0.7)]
    methods = {**record("ap", "methods", rows), "key": "ii", "claim": "SOX is the best", "holds": False}
    batch = {**record("ap", "batch", []), "key": "i", "claim": "Larger is faster", "holds": True}
    text = as_results([methods, batch], "fcco report")
    assert "| cifar10 | SOX (code) | 0.765 ± 0.001 | 0.6500 ± 0.0100 | -0.1150 |" in text
    assert "| cifar10 | SOX (code) | 7.0 ± 3.3 | 1.50 |\n" in text
    assert "cifar100: has not been run." in text
    assert "far smaller than the paper's" in text
    assert "**What agreed.** Of the paper's statements: (i) Larger is faster." in text
    order = "cifar10: SOX (code) 0.6500, BSGD 0.6000 (not of the paper: cross entropy 0.7000)."
    assert f"**What did not.** (ii) SOX is the best. Test AP, best first: {order}" in text


def test_the_command(tmp_path, capsys):
    from fcco_reproduce import Scale, run_study
    from fcco_reproduce._record import write_records
    from reproduce.squares import STUDY

    experiments, scale = STUDY.experiments(), Scale(seeds=2)
    findings = run_study(experiments, scale, tmp_path / "squares", figures=False)
    write_records(STUDY, experiments, findings, scale, tmp_path / "squares", command="fcco reproduce squares")
    assert main(["report", str(tmp_path / "squares"), "--results", str(tmp_path / "RESULTS.md")]) == 0
    assert capsys.readouterr().out == f"results: {tmp_path / 'RESULTS.md'}\n"
    assert (tmp_path / "RESULTS.md").read_text() == as_results(
        [], f"fcco report {tmp_path / 'squares'} --results {tmp_path / 'RESULTS.md'}"
    )
    assert not (tmp_path / "squares" / "report.html").exists()


@pytest.mark.parametrize("above_zero", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_band_is_around_its_mean(sign, above_zero):
    """Two standard errors of 1 and 5 are 2 * sqrt(8) / sqrt(2) = 4, and 3 - 4 is below 0."""
    _, (ax,) = new_figure()
    band(ax, [0, 1], sign * np.array([[1.0, 3.0], [5.0, 3.0]]), "a", 0, above_zero=above_zero and sign > 0)
    y = ax.collections[0].get_paths()[0].vertices[:, 1]
    low = 0.3 if above_zero and sign > 0 else min(sign * 3 - 4, sign * 3 + 4)
    assert y.min() == pytest.approx(low)
    assert y.max() == pytest.approx(sign * 3 + 4)

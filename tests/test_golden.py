"""Losses and functions compute what they did when the golden runs were made; see golden/make.py."""

import pytest

from golden.make import BY_NAME, NAMES_OF_CASES, compute, difference, load, run

BEFORE, _ = load()
TOLERANCES = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 2e-2}
RESUMED = [
    name
    for name, case in BY_NAME.items()
    if case.draw == "random" and not case.copies and not case.call and case.dtype == "float64"
    if case.options in ("", "rule=SOX(0.3)", "rule=MOAP(0.3)", "rule=SOX(0.3), memory=12", "rule=SOX(0.3), memory=30")
    or any(text in case.options for text in ("learnt", "'auto'", "falling", "lr=", "RunningMean"))
]


def check(name, fields):
    tolerance = TOLERANCES[BY_NAME[name].dtype if name in BY_NAME else "float64"]
    differences = {field: difference(now, BEFORE[name][field]) for field, now in fields.items()}
    changed = {field: float(worst) for field, worst in differences.items() if not worst <= tolerance}
    assert not changed, f"{name} differs from the golden run, relative to its largest number, by {changed}"


def test_every_case_was_recorded():
    assert set(BEFORE) == set(NAMES_OF_CASES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES_OF_CASES)
def test_golden_run(name):
    check(name, compute(name))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RESUMED)
def test_resuming_in_the_middle_changes_nothing(name):
    check(name, run(BY_NAME[name], resume=True))

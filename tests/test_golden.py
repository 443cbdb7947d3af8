"""Losses and functions compute what they did when the golden runs were made; see golden/make.py."""

import pytest

from golden.make import BY_NAME, NAMES_OF_CASES, Case, compute, difference, load, run

BEFORE, _ = load()
TOLERANCES = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 2e-2}
RESUMED_OPTIONS = (
    *("", "rule=SOX(Power(0.5))", "rule=MOAP(Cosine(final=0.2, steps=10))", "outer=square, log=True, rule=MOAP(0.3)"),
    *(f"rule=SOX(0.3), memory={size}" for size in (12, 20, 30)),
    *("temperature=learnt", "temperature='auto'", "temperature=falling", "lr=0.05, rule=SOX(0.3)"),
)
ORDINARY = {name: case.options for name, case in BY_NAME.items() if case == Case(case.loss, case.options)}
RESUMED = [name for name, options in ORDINARY.items() if options in RESUMED_OPTIONS]


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

"""The study ``fcco reproduce theory``: evidence that the theorems hold, on problems with known constants."""

from pathlib import Path

from fcco_reproduce._study import Study
from fcco_reproduce.theory import _boost, _methods, _scaling, _split, _stationarity, _tracking

STUDY = Study(
    name="theory",
    title="Do the theorems hold?",
    introduction=(
        "What Theorems 1, 2 and 4 and Lemma 1 of Wang and Yang (ICML 2022) promise, measured on problems whose "
        "optimum, exact gradient and constants are known (`fcco.solvers.problems`). This page, its figures and its "
        "tables are written by\n\n    fcco reproduce theory --docs docs/theory.md\n\n"
        "with {seeds} seeds, of which none is left out. They are advanced together: to the engine, {seeds} problems "
        "of n rows are one of {seeds} n rows. Their draws come of one generator, seeded with 1 in (i), 0 in (ii), 0 "
        "and 2 in (iii), 3 and 4 in (iv), 5 in (v), and in (vi) with 6 for tuning and 7 for the result, so that the "
        "numbers come out the same again with the same version of PyTorch. The constants of Theorems 1 and 2 are "
        "those of `fcco.theory`, whose docstrings say where they correct the printed ones."
    ),
    folder=Path(__file__).parent,
    makers={
        "stationarity": _stationarity.experiment,
        "scaling": _scaling.experiment,
        "split": _split.experiment,
        "boost": _boost.experiment,
        "tracking": _tracking.experiment,
        "methods": _methods.experiment,
    },
    seeds=20,
)

__all__ = ["STUDY"]

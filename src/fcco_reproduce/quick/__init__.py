"""The study ``fcco reproduce quick``: every method on data that ships with scikit-learn, in two minutes."""

from pathlib import Path

from fcco_reproduce._study import Study
from fcco_reproduce.quick._compare import experiment
from fcco_reproduce.quick._objectives import PENALTY

STUDY = Study(
    name="quick",
    title="Every method, in two minutes",
    introduction=(
        "Three objectives that compare every example with a whole set, on data that ships with scikit-learn. The "
        "methods see a few rows a step and have the same grid of settings; the objective shown is exact, over all "
        f"pairs, with a penalty of {PENALTY / 2:g} |w|^2, next to what L-BFGS reaches on it with all of the data in "
        "every step."
    ),
    making=(
        "Run with {seeds} seeds by\n\n    fcco reproduce quick\n\n"
        "Estimates of g are written out and handed to `fcco.CoupledLoss` and `fcco.optim.MovingAverageSGD`, the engine "
        "that any user's training loop runs on; all rates and seeds of a method are advanced together, as one problem. "
        "SCGD and NASA evaluate all rows in every step: see the column of inner evaluations. BSGD, which has no table, "
        "is the in-batch loss that everybody uses."
    ),
    folder=Path(__file__).parent,
    makers={"comparison": experiment},
    seeds=3,
)

__all__ = ["STUDY"]

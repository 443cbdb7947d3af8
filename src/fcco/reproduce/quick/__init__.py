"""The study ``fcco reproduce quick``: every method on data that ships with scikit-learn, in two minutes."""

from functools import partial

from fcco.reproduce._study import Experiment, Study
from fcco.reproduce.quick._compare import TUNING_SEEDS, Plan, draw, judge
from fcco.reproduce.quick._objectives import DIGITS, PENALTY, P

PUSH = Plan("p-norm push", (4, 16), 1000, (1e-4, 3e-4, 0.001, 0.003, 0.01, 0.03, 0.1), (0.1, 0.5))
NCA = Plan(
    "NCA",
    (32,),
    500,
    (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
    (0.1, 0.5, 0.9),
    ("BSGD", "SOAP", "MOAP", "SOX"),
    lbfgs=60,
)
AP = Plan("average precision", (4,), 1000, (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), (0.1, 0.5))


def _experiment(plan: Plan, key: str, name: str, claim: str, about: str, closing: str) -> Experiment:
    method = (
        f"{about} lr in {plan.rates}, and gamma in {plan.gammas} where a method has one, by the mean exact objective "
        f"after {plan.steps:,} steps on {TUNING_SEEDS} seeds that are not used again; lr falls to 0 along a cosine, "
        "beta is 0.1 where a method has one. A setting in which a seed diverges is out. Bands and +- are two standard "
        "errors. 'Holds' says that SOX ends below BSGD by more than both errors, at every batch size, and no more."
    )
    return Experiment(key, name, claim, method, plan.tasks, partial(judge, closing=closing), draw)


STUDY = Study(
    name="quick",
    title="Every method, in two minutes",
    introduction=(
        "Three objectives that compare every example with a whole set, on data that ships with scikit-learn. The "
        "methods see a few rows a step and have the same grid of settings; the objective shown is exact, over all "
        f"pairs, with a penalty of {PENALTY / 2:g} |w|^2, next to what L-BFGS reaches on it with all of the data in "
        "every step. Run with {seeds} seeds by\n\n    fcco reproduce quick\n\n"
        "Estimates of g are written out and handed to `fcco.CoupledLoss` and `fcco.optim.MovingAverageSGD`, the engine "
        "that any user's training loop runs on; all rates and seeds of a method are advanced together, as one problem. "
        "SCGD and NASA evaluate all rows in every step: see the column of inner evaluations. BSGD, which has no table, "
        "is the in-batch loss that everybody uses."
    ),
    experiments=(
        _experiment(
            PUSH,
            "i",
            "push",
            "p-norm push: SOX ends nearer the minimum than the in-batch loss",
            f"A linear scorer of ten features of the breast-cancer data, p = {P}, exponential loss, from w = 0: benign "
            "cases outside, malignant ones inside.",
            "MOAP's n/B1 multiplies a row's first estimates, and their p-th power with it: it needs far smaller steps.",
        ),
        _experiment(
            NCA,
            "ii",
            "nca",
            "NCA: SOX ends nearer the minimum than the in-batch loss",
            f"A linear embedding of the first {DIGITS:,} digits into ten dimensions, from U(-1, 1) / 8; the rows of a "
            "batch are outer and inner. SCGD and NASA, which would evaluate all rows, are left out. The objective is "
            "not convex, and the minimum that of one start.",
            "",
        ),
        _experiment(
            AP,
            "iii",
            "precision",
            "Average precision: SOX ends nearer the minimum than the in-batch loss",
            "The same linear scorer, squared hinge with margin 1: malignant cases outside, all cases inside.",
            "The problem is easy: the in-batch loss all but reaches the minimum, and there is little for a table to "
            "win. SOX does not bear the large steps of the others here; it alone differentiates f at the row before "
            "its update, and outside log space without a floor.",
        ),
    ),
    seeds=3,
)

__all__ = ["STUDY"]

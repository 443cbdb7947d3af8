"""The study ``fcco reproduce push``: the paper's tables and figures of p-norm push, on covtype and ijcnn1."""

from pathlib import Path

from fcco_reproduce._study import Study
from fcco_reproduce.push import _comparison, _curves

STUDY = Study(
    name="push",
    title="p-norm push",
    introduction=(
        "The p-norm push experiment of Wang and Yang (ICML 2022, section 5.2 and appendix): a linear ranker on covtype "
        "(100,000 training rows) and ijcnn1 (31,500), p = 4, exponential loss, B1 = B2 = 32, weight decay 0.001, and "
        "the test loss, over all pairs and without weight decay, after iteration 9,500, counted from 0. The rarer "
        "class is the outer set."
    ),
    making=(
        "This page, its figures and its tables are written by\n\n"
        "    fcco reproduce push --docs docs/push.md\n\n"
        "with {seeds} seeds, from 0 on, of which none is left out. Data is read from `FCCO_DATA`, or downloaded; "
        "`--quick` takes scikit-learn's breast cancer data in the place of both.\n\n"
        "What is called 'as published' here is the fourth variant that was tried: the first, with draws of our own, "
        "met the published losses too, and with other starts, tried next, single runs diverged. The one that is shown "
        "has the weights and batches that the authors' code draws, and the runs with other seeds beside it say how "
        "often such a start diverges."
    ),
    folder=Path(__file__).parent,
    makers={"table": _comparison.experiment, "batches": _curves.batches, "gammas": _curves.gammas},
    seeds=5,
)

__all__ = ["STUDY"]

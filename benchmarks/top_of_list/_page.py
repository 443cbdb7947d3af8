"""The page: what was compared, what came out, and the tables."""

from __future__ import annotations

from collections import Counter
from statistics import fmean, stdev
from typing import Any

from harness.tables import Row, as_markdown
from top_of_list._compare import MEASURES, Results, differences
from top_of_list._linear import NARROW
from top_of_list._measure import Prepareds
from top_of_list._methods import BEST, DERIVED, KINDS, Kind, Scale, methods_of
from top_of_list._prepared import Prepared
from top_of_list._summary import TRAINED, compared, findings, halves, measured_names, rivals, score_rows
from top_of_list._tasks import TASKS, Task, available

TITLES: dict[Kind, str] = {"linear": "Linear models", "network": "Networks"}
COMMAND = "    FCCO_DATA=... make bench-top"
ABOUT: dict[Kind, str] = {
    "linear": (
        "Every method has the training and validation parts (80% of the rows) and chooses its settings by five-fold "
        "cross-validation of AP. *Logistic regression* is scikit-learn's, with C from 1e-6 to 1e4 (to 1e2 on data "
        "with more than {narrow} features or sparse data), and in a second form with balanced class weights. *p-norm "
        "push* is `PNormPushClassifier` with alpha of {alphas}. `AveragePrecisionClassifierCV` has its defaults. "
        "*LightGBM* is not linear and stands here for what a linear model misses."
    ),
    "network": (
        "A network with hidden layers of 128 and 64 units is trained by Adam for {steps:,} steps in batches of 64, "
        "with a cosine lr. Of ten looks along a run, the one with the best validation AP counts. Every method has the "
        "lr, of {lrs}, with the best validation AP on the first split. The sparse tasks are left out. *BCE* is cross "
        "entropy on random batches, *balanced BCE* on batches of which half are positive, and *focal loss* has gamma 2 "
        "and alpha .25, on random batches. *LibAUC* is its `APLoss` with its defaults after half a run of cross "
        "entropy, on balanced batches. *AP after balanced BCE* is cross entropy for half of the steps and then "
        '`AveragePrecisionLoss(temperature="auto")`, on balanced batches. *best usual loss* is the one of the first '
        "three that is best by validation on the split."
    ),
}
MEASURED = """\
## How it was measured

A split is random and stratified, 60% of the rows for training, 20% for validation and 20% for testing, and there is one
for every seed. Dense features are standardised by the training part and clipped to five standard deviations; sparse
features are divided by their largest value. All methods of a seed have the same split, and networks have the same
initial weights and, if their batches are drawn alike, the same batches. A noisy task has wrong labels in the training
and validation parts, and right ones in the test part.

Tables have means over splits ± the standard deviation. *above* and *below* mean that the mean of the paired differences
is more than two standard errors from 0. The splits of a task share rows, so these errors are somewhat too small.
Partial AUC is scikit-learn's `roc_auc_score(max_fpr=0.1)`, and precision at k takes as many rows as there are positives
in the test part. top_of_list.csv has every run; its seconds are CPU time, with the choice of settings for linear models
and without the choice of the lr for networks.
"""


def as_page(results: Results, tasks: Prepareds, scale: Scale, about: dict[str, Any], *, earlier: bool = False) -> str:
    """Return the page in Markdown; ``earlier`` says that it has results of earlier code too."""
    scores = score_rows(results)
    parts = ["# The top of the list", compared(results, tasks), COMMAND, "**What came out.**"]
    parts += ["\n".join(f"- {finding}" for finding in findings(results, tasks))]
    parts += [as_markdown(scores) if scores else ""]
    parts += _notes(results, tasks)
    for kind in KINDS:
        if results.tasks(kind):
            parts += _section(results, tasks, kind, scale)
    parts += ["## When it pays", *_when(results, tasks)] if _when(results, tasks) else []
    parts += ["## Tasks", as_markdown([_task_row(task, at) for task, at in tasks.items()])]
    parts += [MEASURED, "Measured with " + ", ".join(f"{key} {value}" for key, value in about.items()) + "."]
    parts += ["Some of the results were made by an earlier version of the code."] if earlier else []
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _notes(results: Results, tasks: Prepareds) -> list[str]:
    """Say what is left out, what is missing, and which choices lie at the end of a grid."""
    notes = []
    if len(available()) < len(TASKS):
        notes.append("FCCO_DATA is not set, so only the tasks ran whose data ship with scikit-learn and Python.")
    unable, missing = [], []
    for kind in KINDS:
        for method in methods_of(kind):
            meant = [task.name for task, at in tasks.items() if kind == "linear" or not at.sparse]
            count = sum(not results.values(kind, name, method.name) for name in meant)
            if count and not method.available:
                unable.append(f"{method.name} (needs `{method.needs}`)")
            elif count:
                missing.append(f"{method.name} ({count} of {len(meant)} tasks)")
    notes += [f"Left out: {', '.join(unable)}."] if unable else []
    notes += [f"Not measured yet: {', '.join(missing)}."] if missing else []
    return notes + _about_ends(results)


def _about_ends(results: Results) -> list[str]:
    """Return a line on choices at the end of a grid, beyond which there may be better ones."""
    runs = Counter(row.method for row in results.rows)
    ends = Counter(row.method for row in results.rows if row.setting.endswith("end of grid"))
    told = [f"{name} ({count} of {runs[name]})" for name, count in ends.items() if name not in DERIVED]
    return [f"The choice lies at the end of its grid in some runs of {', '.join(told)}."] if told else []


def _section(results: Results, tasks: Prepareds, kind: Kind, scale: Scale) -> list[str]:
    lrs, alphas = (", ".join(f"{value:g}" for value in grid) for grid in (scale.lrs, scale.alphas))
    text = ABOUT[kind].format(narrow=NARROW, lrs=lrs, alphas=alphas, steps=scale.steps)
    parts = [f"## {TITLES[kind]}", text, f"![A dot plot of the table below](top_of_list_{kind}.svg)"]
    for measure, title in MEASURES.items():
        parts += [
            f"*{title[0].upper()}{title[1:]} on test data*, the best in bold:",
            _levels(results, tasks, kind, measure),
        ]
    for name in measured_names(results, kind):
        parts += [f"*{name}*, paired differences of AP:", _differences(results, kind, name)]
    return parts


def _levels(results: Results, tasks: Prepareds, kind: Kind, measure: str) -> str:
    """Return a row for every task and a column for every method."""
    at, rows = {task.name: prepared for task, prepared in tasks.items()}, []
    for task in results.tasks(kind):
        row: Row = {"task": task, "n": at[task].n, "positive": f"{at[task].share:.1%}", "group": results.group(task)}
        means = {name: results.mean(kind, task, name, measure) for name in results.methods(kind)}
        best = max(value for value in means.values() if value == value)
        for name in results.methods(kind):
            text = _spread(list(results.values(kind, task, name, measure).values()))
            row[name] = f"**{text}**" if means[name] == best else text
        rows.append(row)
    return as_markdown(rows, markup=True)


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _differences(results: Results, kind: Kind, ours: str) -> str:
    """Return a row for every task, with the difference to each rival and the verdict."""
    rows: dict[str, Row] = {}
    for title, how in rivals(kind).items():
        for one in differences(results, kind, ours, **how):
            row = rows.setdefault(one.task, {"task": one.task, "group": one.group})
            verdict = one.verdict if one.verdict == "even" else f"**{one.verdict}**"
            row[f"less the {title}"] = f"{_signed(one.mean, one.margin)} {verdict}"
    return as_markdown(list(rows.values()), markup=True)


def _signed(mean: float, margin: float) -> str:
    return f"{mean:+.4f} ± {margin:.4f}"


def _when(results: Results, tasks: Prepareds) -> list[str]:
    """Return the mean gain of ours on halves of the tasks, for each kind."""
    found = []
    for kind in KINDS:
        for ours in measured_names(results, kind):
            rows = [_half_row(title, *cut) for title, cut in halves(results, tasks, kind, ours).items()]
            title = f"*{ours}* less the {BEST[kind]}: the mean difference of AP on the tasks of each half"
            found += [f"{title}.", as_markdown(rows)]
    return found


def _half_row(title: str, middle: float, few: list[Any], many: list[Any]) -> Row:
    means = [f"{fmean(one.mean for one in half):+.4f} ({len(half)})" if half else "" for half in (few, many)]
    return {"property": title, "median": f"{middle:.3g}", "up to it (tasks)": means[0], "above it (tasks)": means[1]}


def _task_row(task: Task, at: Prepared) -> Row:
    positives = round(TRAINED * at.n * at.share)
    row: Row = {"task": task.name, "positive": task.about, "rows": at.n, "share": f"{at.share:.1%}"}
    features = f"{at.features:,} {'sparse' if at.sparse else 'dense'}"
    return row | {"training positives": positives, "features": features, "group": task.group}

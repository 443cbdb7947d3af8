"""The questions, and the runs that answer them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import fcco
from harness import data
from harness.tasks import Variant

IN_BATCH = "in-batch"


class Choice(Variant):
    """A variant whose name may also be "letter .1", SOX as the paper has it.

    The own term is sampled unless the name ends with "exact".
    """

    @property
    def own_term(self) -> dict[str, str]:
        """The keyword argument for losses that have an own term."""
        return {"own_term": "exact" if self.name.endswith("exact") else "sampled"}

    def rule(self, steps: int) -> fcco.Rule:
        """Return the rule of the table for a run of ``steps`` steps."""
        kind, *rest = self.name.split()
        return fcco.SOX(float(rest[0]), safeguard=False) if kind == "letter" else super().rule(steps)


@dataclass(frozen=True)
class Problem:
    """An objective on data: a panel of every figure.

    Args:
        objective: as ``harness.objectives.OBJECTIVES`` names it.
        title: as the figures have it.
        data: what it is trained on.
        batch: examples in a batch.
        sizes: of batches, to compare.
        visits: of a row in a run, four numbers; the second and the third are "few" and "many".
        default: the variant that the loss has by default.
        lr: the centre of the grid of learning rates, at ``batch``; at other sizes, in proportion.
        has_own_term: whether the own term can be exact or sampled.
    """

    objective: str
    title: str
    data: str
    batch: int
    sizes: tuple[int, ...]
    visits: tuple[int, int, int, int]
    default: str
    lr: float
    has_own_term: bool = False

    @property
    def few_and_many(self) -> tuple[int, int]:
        return self.visits[1:3]


@dataclass(frozen=True)
class Cell:
    """A point of a figure: what is trained, and how."""

    objective: str
    data: str
    batch: int
    visits: int
    variant: str


@dataclass(frozen=True)
class Line:
    """Points of a panel that belong together.

    Args:
        label: for the legend.
        x: their places, numbers or names.
        cells: one for each.
        reference: a level to compare with, drawn from side to side.
    """

    label: str
    x: tuple[float | str, ...]
    cells: tuple[Cell, ...]
    reference: bool = False


@dataclass(frozen=True)
class Question:
    """A figure: what it asks, the name of its axis, and the lines of a panel."""

    title: str
    axis: str
    lines: Callable[[Problem], list[Line]]
    log_x: bool = False


def problems(*, quick: bool = False) -> list[Problem]:
    """The panels; of those whose file is not there, the same on data of scikit-learn."""
    if quick:
        return [
            Problem("cox", "Cox, diabetes", "diabetes", 64, (64, 128), (1, 1, 2, 2), "SOAP .7", 0.1, True),
            Problem("p_norm_push", "push, breast cancer", "breast cancer", 64, (64,), (1, 1, 2, 2), "SOAP .5", 0.01),
        ]
    cox = "whas500" if data.has("survival/sksurv/whas500.arff") else "diabetes"
    ap = "covtype" if data.has("covtype/covtype.data.gz") else "breast cancer"
    push = "ijcnn1" if data.has("ijcnn1/ijcnn1.tr.bz2") else "breast cancer"
    return [
        Problem("cox", f"Cox, {cox}", cox, 16, (8, 16, 32, 64, 128), (3, 10, 40, 160), "SOAP .7", 2**-5, True),
        Problem("nca", "NCA, digits", "digits", 64, (16, 32, 64, 128), (2, 5, 15, 40), "SOAP .9", 4.0),
        Problem("average_precision", f"AP, {ap}", ap, 32, (16, 32, 64, 128), (3, 10, 40, 120), "SOAP .7", 2.0, True),
        Problem("p_norm_push", f"push, {push}", push, 64, (16, 32, 64, 128), (2, 5, 15, 50), "SOAP .5", 2**-8),
    ]


def other_problems(*, quick: bool = False) -> list[Problem]:
    """The same objectives on other data, where there are any, to see whether advice carries over."""
    found = []
    if not quick and data.has("survival/sksurv/veteran.arff"):
        found += [
            Problem("cox", "Cox, veteran", "veteran", 8, (4,), (2, 10, 40, 40), "SOAP .7", 2**-4, True),
            Problem("nca", "NCA, usps", "usps", 64, (16,), (1, 2, 10, 10), "SOAP .9", 4.0),
            Problem(
                "average_precision",
                "AP, breast cancer",
                "breast cancer",
                32,
                (8,),
                (2, 10, 40, 40),
                "SOAP .7",
                2.0,
                True,
            ),
            Problem("p_norm_push", "push, breast cancer", "breast cancer", 32, (8,), (2, 5, 20, 20), "SOAP .5", 2**-6),
        ]
    return found


def line(
    problem: Problem, label: str, variants: tuple[str, ...], x: tuple[float | str, ...], visits: int, **more: bool
) -> Line:
    """Several variants at the same number of visits."""
    cells = (Cell(problem.objective, problem.data, problem.batch, visits, variant) for variant in variants)
    return Line(label, x, tuple(cells), **more)


def references(problem: Problem, x: tuple[float | str, ...]) -> list[Line]:
    """The in-batch loss, after few and many visits."""
    return [line(problem, f"in-batch, {k} visits", (IN_BATCH,), x, k, reference=True) for k in problem.few_and_many]


GAMMAS = (".03", ".1", ".3", ".5", ".7", ".9")


def by_gamma(problem: Problem) -> list[Line]:
    variants, x = tuple(f"SOAP {gamma}" for gamma in GAMMAS), tuple(map(float, GAMMAS))
    lines = [line(problem, f"{k} visits", variants, x, k) for k in problem.few_and_many]
    return lines + references(problem, x)


def by_visits(problem: Problem) -> list[Line]:
    def cell(visits: int, variant: str) -> Cell:
        return Cell(problem.objective, problem.data, problem.batch, visits, variant)

    variants = (IN_BATCH, "SOAP .1", "SOAP .3", "SOAP .7", "SOAP .9")
    return [Line(name, problem.visits, tuple(cell(visits, name) for visits in problem.visits)) for name in variants]


def by_batch(problem: Problem) -> list[Line]:
    def cell(size: int, variant: str) -> Cell:
        return Cell(problem.objective, problem.data, size, problem.few_and_many[1], variant)

    variants = {IN_BATCH: IN_BATCH, problem.default: f"{problem.default}, the default"}
    return [Line(label, problem.sizes, tuple(cell(k, name) for k in problem.sizes)) for name, label in variants.items()]


def by_row(problem: Problem) -> list[Line]:
    kinds = {"letter": "u before", "SOX": "u before, floored", "SOAP": "u after"}
    places = [(visits, gamma) for visits in problem.few_and_many for gamma in (".1", ".5")]
    x = tuple(f"{gamma}\nat {visits}" for visits, gamma in places)

    def along(label: str, name: str) -> Line:
        cells = (line(problem, "", (name.format(gamma),), x, visits).cells[0] for visits, gamma in places)
        return Line(label, x, tuple(cells))

    return [*(along(label, f"{kind} {{}}") for kind, label in kinds.items()), along(IN_BATCH, IN_BATCH)]


def by_own_term(problem: Problem) -> list[Line]:
    if not problem.has_own_term:
        return []
    gammas = (".1", ".5", ".9")
    x = tuple(map(float, gammas))
    lines = [
        line(problem, f"{own}, {k} visits", tuple(f"SOAP {gamma}{end}" for gamma in gammas), x, k)
        for own, end in (("sampled", ""), ("exact", " exact"))
        for k in problem.few_and_many
    ]
    return lines + references(problem, x)


def by_schedule(problem: Problem) -> list[Line]:
    names = {"SOAP .1": "const .1", "SOAP .5": "const .5", "SOAP cos .1": "cos to .1", "SOAP cos .5": "cos to .5"}
    names |= {"SOAP power .5": "1/√visits", "SOAP mean 0": "1/visits"}
    x = tuple(names.values())
    return [line(problem, f"{k} visits", tuple(names), x, k) for k in problem.few_and_many] + references(problem, x)


QUESTIONS = {
    "gamma": Question("Which gamma?", "gamma of SOAP", by_gamma, log_x=True),
    "row": Question("Which row is f differentiated at?", "gamma, at so many visits", by_row),
    "own_term": Question("An own term that is exact, or sampled?", "gamma of SOAP", by_own_term, log_x=True),
    "schedule": Question("Which schedule of gamma?", "", by_schedule),
    "batch": Question("Which batch size?", "batch", by_batch, log_x=True),
    "visits": Question("How many visits of a row?", "visits of a row in the run", by_visits, log_x=True),
}


def advised(problem: Problem) -> list[tuple[int, int]]:
    """Batch and visits of the situations in which :func:`fcco.diagnostics.advise` is asked."""
    few, many = problem.few_and_many
    return [(problem.batch, few), (problem.batch, many), (problem.sizes[0], many)]


def tried(problem: Problem, batch: int, visits: int) -> list[Cell]:
    """The rates that its advice is held against; the in-batch loss is the first."""
    variants = (IN_BATCH, *dict.fromkeys(("SOAP .1", "SOAP .3", "SOAP .5", "SOAP .7", "SOAP .9", problem.default)))
    return [Cell(problem.objective, problem.data, batch, visits, variant) for variant in variants]

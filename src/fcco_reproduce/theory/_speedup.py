"""(ii) With rates tuned at every B1 and B2, steps to a fixed accuracy fall as 1 / B1 and as 1 / B2."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from fcco_reproduce._config import Settings
from fcco_reproduce._figures import finish, new_figure, slope, style
from fcco_reproduce._runner import Job
from fcco_reproduce._study import Experiment, Finding, Scale
from fcco_reproduce._tables import Row
from fcco_reproduce.theory._fits import exponent
from fcco_reproduce.theory._tuned import BETA, EVERY, best, is_control, jobs_of

REFERENCE = {"n": 64, "outer_batch": 8, "inner_batch": 8}
PREDICTED = {"outer_batch": -1, "inner_batch": -1, "n": 1, "epsilon": -4}
SYMBOLS = {"outer_batch": "B1", "inner_batch": "B2", "n": "n", "epsilon": "epsilon"}
JUDGED = ("outer_batch", "inner_batch")
TOLERANCE = 0.35
THEOREM = "Theorem 3's exponent"


def _sizes(values: dict[str, list[int]]) -> list[dict[str, int]]:
    """Return the reference with each of its sizes varied by itself."""
    some = [{**REFERENCE, size: value} for size, varied in values.items() for value in varied]
    return [size for k, size in enumerate(some) if size not in some[:k]]


def jobs(scale: Scale, settings: Settings) -> list[Job]:
    """Return the jobs of every problem: SOX at every size and gamma, and gradient descent."""
    sizes = {name: _sizes(own["values"]) for name, own in settings["problems"].items()}
    return [job for name, some in sizes.items() for job in jobs_of(settings, name, some, scale.seeds)]


def _series(results: list[Any], own: Settings, size: str) -> tuple[list[float], list[dict[str, Any]], list[Any]]:
    """Return the values of a size, the fewest steps of SOX at each, and those of gradient descent."""
    mine = [result for result in results if result["problem"] == own["problem"]]
    sox, control = [r for r in mine if not is_control(r)], [r for r in mine if is_control(r)]
    if size == "epsilon":
        values = own["epsilon"]
        found = [best(sox, epsilon, **REFERENCE) for epsilon in values]
        return values, found, [best(control, epsilon, n=REFERENCE["n"])["steps"] for epsilon in values]
    values, epsilon = own["values"][size], own["epsilon"][-1]
    counts = values if size == "n" else [REFERENCE["n"]] * len(values)
    found = [best(sox, epsilon, **{**REFERENCE, size: value}) for value in values]
    return values, found, [best(control, epsilon, n=n)["steps"] for n in counts]


def _varied(own: Settings) -> list[str]:
    return [*own["values"], "epsilon"]


def _row(results: list[Any], name: str, own: Settings, size: str) -> Row:
    values, found, control = _series(results, own, size)
    steps = [one["steps"] for one in found]
    return {
        "problem": name,
        "size": SYMBOLS[size],
        "values": " ".join(f"{value:g}" for value in values),
        "steps of SOX": " ".join("none" if count is None else f"{count:,}" for count in steps),
        "at lr": " ".join("-" if one["lr"] is None else f"{one['lr']:g}" for one in found),
        "at gamma": " ".join("-" if one["gamma"] is None else f"{one['gamma']:g}" for one in found),
        THEOREM: PREDICTED[size],
        "fitted exponent": exponent(values, steps) if None not in steps else math.nan,
        "steps of gradient descent": " ".join(str(count) for count in control),
        "its exponent": exponent(values, control) if None not in control else math.nan,
        "rates at an end": sum(one["edge"] for one in found),
    }


def judge(results: list[Any], settings: Settings) -> Finding:
    """Return fitted exponents beside Theorem 3's and those of gradient descent."""
    rows = [_row(results, name, own, size) for name, own in settings["problems"].items() for size in _varied(own)]
    judged = [row for row in rows if row["size"] in [SYMBOLS[size] for size in JUDGED]]
    near = [abs(row["fitted exponent"] - row[THEOREM]) <= TOLERANCE for row in judged]
    listed = "; ".join(f"{row['problem']}, {row['size']}: {row['fitted exponent']:.2f}" for row in judged)
    rest = "; ".join(
        f"{row['problem']}, {row['size']}: {row['fitted exponent']:.2f}, where the theorem has {row[THEOREM]}"
        for row in rows
        if row not in judged
    )
    text = (
        f"Fitted exponents of the steps, where linear speed-up is -1: {listed}. {sum(near)} of {len(near)} are within "
        f"{TOLERANCE} of it. Gradient descent needs as many steps at every B1 and B2, since it has no batch: what it "
        "needs is the floor below which no batch can bring SOX. The other sizes are not judged, since Theorem 3 bounds "
        f"the steps from above and better is no contradiction: {rest}. At "
        f"{sum(row['rates at an end'] for row in rows)} of {sum(len(row['values'].split()) for row in rows)} points "
        "the best lr or gamma is an end of its grid (gamma = 1 is none), beyond which fewer steps may do."
    )
    return Finding(rows, all(near), text)


def draw(results: list[Any], settings: Settings) -> Any:
    """Draw a panel for B1 and one for B2 of every problem, with gradient descent as the floor."""
    problems = settings["problems"]
    figure, axes = new_figure(2 * len(problems), width=2.9, height=2.8)
    panels = [(name, own, size) for name, own in problems.items() for size in JUDGED]
    for ax, (name, own, size) in zip(axes, panels, strict=True):
        values, found, control = _series(results, own, size)
        steps = [math.nan if one["steps"] is None else one["steps"] for one in found]
        ax.plot(values, steps, label="SOX, tuned at each", **style(0))
        ax.plot(values, control, label="gradient descent, tuned", **style(1))
        if math.isfinite(steps[0]):
            slope(ax, values, steps[0], -1, "linear speed-up")
        finish(ax, SYMBOLS[size], "steps to epsilon" if ax is axes[0] else "", name, log="xy")
        ax.set_xticks(values, [f"{value:g}" for value in values])
        ax.minorticks_off()
    return figure


METHOD = (
    "The steps that SOX takes to |grad F|^2 <= epsilon^2, in the mean over seeds, from which on it stays there for as "
    f"many steps again. The gradient is exact, and measured every {EVERY} steps. lr in {{lr}} and gamma in {{gamma}} "
    f"are chosen for every B1, B2, n and epsilon anew, by the fewest steps; beta = {BETA:g}. Nothing here is taken "
    "from the theorem, so the exponents can come out otherwise. Around n = 64, B1 = B2 = 8 and the smallest epsilon, "
    "on {problems}. The control is gradient descent with exact gradients and no table, its lr chosen on the same grid. "
    f"'Holds' says that the exponents of B1 and B2 are within {TOLERANCE} of -1 on every problem. Rates taken from the "
    "theorem would show nothing: its lr is proportional to B1 B2 epsilon^2 / n, and with such an lr every method, "
    "gradient descent included, needs steps in proportion to n / (B1 B2 epsilon^4).\n\n"
    "What was settled on the way: the problems, their noise and epsilon come from trials with 5 seeds at five sizes, "
    "in which the exponents of the strongly convex problem, about -1 and -0.8, could already be seen. Trials with "
    "sigma = 1 and 3, and zeta = 0.5, in which most settings never arrived, were dropped; so was the running mean of "
    "|grad F|^2 as a measure, which w can bring down by passing the minimum. The first full run had gamma down to 0.1 "
    "only. At 22 of its 29 points the best rate was an end of the grid, the nonconvex exponent of B1 was -0.58, and "
    "the claim did not hold; gamma = 0.03 was added for the ends of the grid, and it alone brought the exponent within "
    "the tolerance."
)


def described(settings: Settings) -> str:
    """Return the problems of the settings in words."""
    return " and ".join(
        f"`pseudo_huber({', '.join(f'{key}={value!r}' for key, value in own['problem'].items())})` (epsilon down to "
        f"{own['epsilon'][-1]:g}, {own['steps']:,} steps at most)"
        for own in settings["problems"].values()
    )


def experiment(settings: Settings) -> Experiment:
    """Return the experiment on speed-up by batches."""
    return Experiment(
        key=settings["key"],
        name=settings["name"],
        claim="With tuned rates, steps to a fixed accuracy fall as 1 / B1 and as 1 / B2",
        method=METHOD.format(lr=settings["lr"], gamma=settings["gamma"], problems=described(settings)),
        jobs=partial(jobs, settings=settings),
        judge=partial(judge, settings=settings),
        draw=partial(draw, settings=settings),
        settings=settings,
    )

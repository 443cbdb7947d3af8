"""A study that takes no time, for the tests of what all studies share."""

from functools import partial
from pathlib import Path

from fcco_reproduce import Experiment, Finding, Job, Study
from fcco_reproduce._figures import band, finish, new_figure
from reproduce import work


def jobs(scale, settings):
    return [Job(work.square, {"number": k}) for k in settings["numbers"]]


def judge(results, settings):
    paper = settings["paper"]
    rows = [
        {"method": "<b>SOX</b>", "test loss": 0.1279, "paper": paper["SOX"], "difference": -0.0001, "agrees": True},
        {"method": "MOAP", "test loss": "diverged", "paper": None, "difference": None, "agrees": None},
        {"method": "BSGD", "test loss": results[2] / settings["factor"], "paper": paper["BSGD"]}
        | {"difference": -0.002, "agrees": False},
    ]
    return Finding(rows, False, "BSGD is not met & w* is, *nearly*. SOX is.")


def draw(results):
    figure, (ax,) = new_figure()
    band(ax, [1, 2, 3], [results[:3]], "squares", 0)
    finish(ax, "k", "k^2")
    return figure


def experiment(settings):
    return Experiment(
        key=settings["key"],
        name=settings["name"],
        claim=settings["claim"],
        method="`square(k)` for a few k.",
        jobs=partial(jobs, settings=settings),
        judge=partial(judge, settings=settings),
        draw=draw,
        settings=settings,
    )


STUDY = Study(
    name="squares",
    title="Squares & roots",
    introduction="Numbers & their squares.",
    making="With {seeds} seeds, by\n\n    fcco reproduce squares\n\nwhere f(w*) {is} w*.",
    folder=Path(__file__).parent,
    makers={"squares": experiment},
    seeds=2,
)

"""A study is a list of experiments, each a set of tasks, a table, a figure and a sentence on what came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from fcco.reproduce._figures import save
from fcco.reproduce._runner import Task, run_tasks
from fcco.reproduce._tables import Row, as_markdown, as_text, escaped, write_csv


@dataclass(frozen=True)
class Scale:
    """How much to do.

    Args:
        seeds: independent runs of every setting.
        quick: smaller settings, to see that everything works.
    """

    seeds: int
    quick: bool = False


@dataclass(frozen=True)
class Finding:
    """What an experiment found.

    Args:
        rows: its table.
        holds: whether the claim was observed.
        verdict: what agreed with the claim and what did not, with numbers.
    """

    rows: list[Row]
    holds: bool
    verdict: str


@dataclass(frozen=True)
class Experiment:
    """One claim, and how it is tested.

    Args:
        key: what ``--only`` calls it.
        name: what its files are called.
        claim: a heading.
        method: a paragraph on what is run.
        tasks: the work, for a :class:`Scale`.
        judge: the finding, from the results in the order of the tasks.
        draw: the figure, from the same.
    """

    key: str
    name: str
    claim: str
    method: str
    tasks: Callable[[Scale], list[Task]]
    judge: Callable[[list[Any]], Finding]
    draw: Callable[[list[Any]], Any]

    @property
    def stem(self) -> str:
        """The beginning of its files' names."""
        return f"{self.key}-{self.name}"


@dataclass(frozen=True)
class Study:
    """Experiments that belong together.

    Args:
        name: what ``fcco reproduce`` calls it.
        title: the heading of its page.
        introduction: the first paragraphs of its page; ``{seeds}`` stands for their number.
        experiments: in the order of the page.
        seeds: how many, unless told.
    """

    name: str
    title: str
    introduction: str
    experiments: tuple[Experiment, ...]
    seeds: int

    def choose(self, only: str | None) -> tuple[Experiment, ...]:
        """The experiments named in a list with commas; all without one.

        Raises:
            ValueError: a name that none has.
        """
        if only is None:
            return self.experiments
        wanted = [key.strip() for key in only.split(",")]
        known = {experiment.key: experiment for experiment in self.experiments}
        for key in wanted:
            if key not in known:
                raise ValueError(f"--only names experiments of {', '.join(known)}, got {key!r}")
        return tuple(known[key] for key in known if key in wanted)


def run_study(
    experiments: Sequence[Experiment],
    scale: Scale,
    out: Path,
    *,
    workers: int = 1,
    progress: TextIO | None = None,
    figures: bool = True,
) -> list[Finding]:
    """Run experiments and write ``cache.jsonl``, and a CSV and a PNG of each, to ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    tasks = [experiment.tasks(scale) for experiment in experiments]
    flat = run_tasks(
        [task for some in tasks for task in some], workers=workers, cache=out / "cache.jsonl", progress=progress
    )
    findings, at = [], 0
    for experiment, some in zip(experiments, tasks, strict=True):
        results, at = flat[at : at + len(some)], at + len(some)
        findings.append(experiment.judge(results))
        write_csv(findings[-1].rows, out / f"{experiment.stem}.csv")
        if figures:
            save(experiment.draw(results), out / f"{experiment.stem}.png")
    return findings


def as_report(experiments: Sequence[Experiment], findings: Sequence[Finding]) -> str:
    """What the command prints."""
    parts = []
    for experiment, finding in zip(experiments, findings, strict=True):
        answer = "holds" if finding.holds else "DOES NOT HOLD"
        parts += [f"({experiment.key}) {experiment.claim}: {answer}", as_text(finding.rows), finding.verdict, ""]
    return "\n".join(parts).rstrip()


def as_page(
    study: Study, scale: Scale, experiments: Sequence[Experiment], findings: Sequence[Finding], folder: str
) -> str:
    """The Markdown page, with the figures and CSV files in ``folder``, relative to the page."""
    parts = [f"# {study.title}", study.introduction.format(seeds=scale.seeds)]
    if scale.quick:
        parts.append("This is the quick form, to see that everything works. It is no evidence.")
    for experiment, finding in zip(experiments, findings, strict=True):
        parts += [
            f"## ({experiment.key}) {experiment.claim}",
            escaped(experiment.method),
            f"![{experiment.claim}]({folder}/{experiment.stem}.png)",
            as_markdown(finding.rows),
            f"**{'Holds' if finding.holds else 'Does not hold'}.** {escaped(finding.verdict)} "
            f"([CSV]({folder}/{experiment.stem}.csv))",
        ]
    return "\n\n".join(parts) + "\n"

"""A study is a list of experiments, each a set of jobs, a table, a figure and a sentence on what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from fcco_reproduce._config import Settings, at_scale, read
from fcco_reproduce._figures import save
from fcco_reproduce._runner import Job, run_jobs
from fcco_reproduce._tables import Row, as_markdown, as_text, escaped, write_csv

CHECKPOINTS = "checkpoints"
ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii")


@dataclass(frozen=True)
class Scale:
    """How much to do, and where.

    Args:
        seeds: independent runs of every setting.
        name: of the settings' scale, such as "quick": smaller ones, to see that everything works.
        device: what PyTorch calls it, for studies that leave the choice.
        folder: where jobs may keep what they need again, such as checkpoints; None for nowhere.
    """

    seeds: int
    name: str | None = None
    device: str = "cpu"
    folder: Path | None = None

    @property
    def quick(self) -> bool:
        """Whether nothing is to be concluded."""
        return self.name == "quick"


@dataclass(frozen=True)
class Finding:
    """What an experiment found.

    Args:
        rows: its table.
        holds: whether the claim was observed; None where there is nothing to conclude.
        verdict: what agreed with the claim and what did not, with numbers; an empty line parts paragraphs.
    """

    rows: list[Row]
    holds: bool | None
    verdict: str


@dataclass(frozen=True)
class Experiment:
    """One claim, and how it is tested.

    Args:
        key: what ``--only`` calls it.
        name: what its files are called.
        claim: a heading.
        method: a paragraph on what is run.
        jobs: the work, for a :class:`Scale`.
        judge: the finding, from the results in the order of the jobs.
        draw: the figure, from the same.
        settings: what it was made of, for the record.
    """

    key: str
    name: str
    claim: str
    method: str
    jobs: Callable[[Scale], list[Job]]
    judge: Callable[[list[Any]], Finding]
    draw: Callable[[list[Any]], Any]
    settings: Settings = field(default_factory=dict)

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
        folder: of its settings, a TOML file for each experiment; they are shown in the order of their keys.
        makers: from the ``kind`` of a file to what makes an experiment of its settings.
        seeds: how many, unless told.
        devices: where it can run.
    """

    name: str
    title: str
    introduction: str
    folder: Path
    makers: Mapping[str, Callable[[Settings], Experiment]]
    seeds: int
    devices: tuple[str, ...] = ("cpu",)

    def experiments(
        self, scale: str | None = None, only: str | None = None, changes: Sequence[Path] = ()
    ) -> tuple[Experiment, ...]:
        """The experiments, in the order of the page.

        Args:
            scale: of the settings.
            only: keys, with commas between them; all without.
            changes: files of settings to lay over those that are shipped; then only the experiments that they change.

        Raises:
            ValueError: a key, scale or setting that there is not.
        """
        shipped = sorted(map(read, self.folder.glob("*.toml")), key=lambda settings: ROMAN.index(settings["key"]))
        changed = _by_name([read(path) for path in changes], [settings["name"] for settings in shipped])
        keys = [settings["key"] for settings in shipped]
        wanted = keys if only is None else [key.strip() for key in only.split(",")]
        for key in wanted:
            if key not in keys:
                raise ValueError(f"--only names experiments of {', '.join(keys)}, got {key!r}")
        return tuple(
            self.makers[settings["kind"]](at_scale(settings, scale, changed.get(settings["name"])))
            for settings in shipped
            if settings["key"] in wanted and (settings["name"] in changed or not changed)
        )


def _by_name(changes: list[Settings], known: list[str]) -> dict[str, Settings]:
    for settings in changes:
        if settings["name"] not in known:
            raise ValueError(f"--config changes settings of {', '.join(known)}, got {settings['name']!r}")
    return {settings["name"]: settings for settings in changes}


def run_study(
    experiments: Sequence[Experiment],
    scale: Scale,
    out: Path,
    *,
    workers: int = 1,
    progress: TextIO | None = None,
    figures: bool = True,
) -> list[Finding]:
    """Run experiments and write ``cache.jsonl``, and a CSV and a PNG of each, to ``out``. Quick ones prove nothing."""
    out.mkdir(parents=True, exist_ok=True)
    scale = replace(scale, folder=out / CHECKPOINTS)
    jobs = [experiment.jobs(scale) for experiment in experiments]
    flat = run_jobs(
        [job for some in jobs for job in some], workers=workers, cache=out / "cache.jsonl", progress=progress
    )
    findings, at = [], 0
    for experiment, some in zip(experiments, jobs, strict=True):
        results, at = flat[at : at + len(some)], at + len(some)
        finding = experiment.judge(results)
        findings.append(replace(finding, holds=None) if scale.quick else finding)
        write_csv(findings[-1].rows, out / f"{experiment.stem}.csv")
        if figures:
            save(experiment.draw(results), out / f"{experiment.stem}.png")
    return findings


def answer(holds: bool | None) -> str:
    """A verdict, in words."""
    return "not judged" if holds is None else "holds" if holds else "does not hold"


def as_report(experiments: Sequence[Experiment], findings: Sequence[Finding]) -> str:
    """What the command prints."""
    parts = []
    for experiment, finding in zip(experiments, findings, strict=True):
        parts += [
            f"({experiment.key}) {experiment.claim}: {answer(finding.holds)}",
            as_text(finding.rows),
            finding.verdict,
            "",
        ]
    return "\n".join(parts).rstrip()


def as_page(
    study: Study, scale: Scale, experiments: Sequence[Experiment], findings: Sequence[Finding], folder: str
) -> str:
    """The Markdown page, with the figures and CSV files in ``folder``, relative to the page."""
    parts = [f"# {study.title}", study.introduction.replace("{seeds}", str(scale.seeds))]
    if scale.quick:
        parts.append("This is the quick form, to see that everything works. It is no evidence.")
    for experiment, finding in zip(experiments, findings, strict=True):
        parts += [
            f"## ({experiment.key}) {experiment.claim}",
            escaped(experiment.method),
            f"![{experiment.claim}]({folder}/{experiment.stem}.png)",
            as_markdown(finding.rows),
            f"**{answer(finding.holds).capitalize()}.** {escaped(finding.verdict)} "
            f"([CSV]({folder}/{experiment.stem}.csv))",
        ]
    return "\n\n".join(parts) + "\n"

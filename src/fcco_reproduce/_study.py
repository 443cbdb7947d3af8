"""Studies: lists of experiments, each with its jobs, a table, a figure and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from fcco_reproduce._cache import Cache
from fcco_reproduce._config import Settings, at_scale, read
from fcco_reproduce._figures import save
from fcco_reproduce._runner import Job, is_stored, run_jobs, sources
from fcco_reproduce._tables import Row, as_text, write_csv

CHECKPOINTS = "checkpoints"
ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii")


@dataclass(frozen=True)
class Scale:
    """How much to compute, and where.

    Parameters
    ----------
    seeds : int
        The number of independent runs of every setting.
    name : str or None
        The scale of the settings. "quick" selects small ones, which show that everything works and prove nothing.
    device : str
        A PyTorch device, for studies that can choose.
    folder : Path or None
        Where jobs may keep checkpoints. None keeps none.
    """

    seeds: int
    name: str | None = None
    device: str = "cpu"
    folder: Path | None = None

    @property
    def quick(self) -> bool:
        """Whether the settings are too small to conclude anything."""
        return self.name == "quick"


@dataclass(frozen=True)
class Finding:
    """The outcome of an experiment.

    Parameters
    ----------
    rows : list of Row
        The table of results.
    holds : bool or None
        Whether the claim was observed. None means that nothing can be concluded.
    verdict : str
        What agreed with the claim and what did not, with numbers. An empty line separates paragraphs.
    sources : dict
        By the name of a function, digests of the code that made its results; several if the code changed.
    """

    rows: list[Row]
    holds: bool | None
    verdict: str
    sources: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One claim and how it is tested.

    Parameters
    ----------
    key : str
        The name that ``--only`` uses.
    name : str
        The name of its files.
    claim : str
        The claim, used as a heading.
    method : str
        A paragraph that describes what is run.
    jobs : callable
        Maps a :class:`Scale` to the jobs to run.
    judge : callable
        Maps the results, in the order of the jobs, to a :class:`Finding`.
    draw : callable
        Maps the same results to a figure.
    settings : Settings
        The settings it was made from, for the record.
    more : callable or None
        Maps a :class:`Scale` and the results so far to further jobs, until there are none. None means that there are
        none from the beginning.
    """

    key: str
    name: str
    claim: str
    method: str
    jobs: Callable[[Scale], list[Job]]
    judge: Callable[[list[Any]], Finding]
    draw: Callable[[list[Any]], Any]
    settings: Settings = field(default_factory=dict)
    more: Callable[[Scale, list[Any]], list[Job]] | None = None

    @property
    def stem(self) -> str:
        """The file name of its results, without the extension."""
        return f"{self.key}-{self.name}"


@dataclass(frozen=True)
class Study:
    """A group of experiments with a common introduction.

    Parameters
    ----------
    name : str
        The argument of ``fcco reproduce`` that selects it.
    title : str
        The heading of its page.
    introduction : str
        What it compares: the first paragraph of its page.
    making : str
        How its page was made, which is the end of it. ``{seeds}`` is replaced by the number of seeds.
    folder : Path
        The folder of its settings, one TOML file per experiment. Experiments are shown in the order of their keys.
    makers : Mapping[str, Callable[[Settings], Experiment]]
        Maps the ``kind`` of a file to a function that makes an experiment from its settings.
    seeds : int
        The default number of seeds.
    devices : tuple of str
        The devices it can run on.
    """

    name: str
    title: str
    introduction: str
    making: str
    folder: Path
    makers: Mapping[str, Callable[[Settings], Experiment]]
    seeds: int
    devices: tuple[str, ...] = ("cpu",)

    def experiments(
        self, scale: str | None = None, only: str | None = None, changes: Sequence[Path] = ()
    ) -> tuple[Experiment, ...]:
        """Return the experiments in the order of the page.

        Parameters
        ----------
        scale : str or None
            The scale of the settings.
        only : str or None
            Comma-separated keys. None selects all experiments.
        changes : sequence of Path
            Files whose settings override the shipped ones. Only the experiments that they change are then returned.

        Returns
        -------
        tuple of Experiment
            The experiments.

        Raises
        ------
        ValueError
            If a key, scale or setting does not exist.
        """
        shipped = sorted(map(read, self.folder.glob("*.toml")), key=lambda settings: ROMAN.index(settings["key"]))
        changed = _by_name([read(path) for path in changes], [settings["name"] for settings in shipped])
        keys = [settings["key"] for settings in shipped]
        wanted = keys if only is None else [key.strip() for key in only.split(",")]
        for key in wanted:
            if key not in keys:
                raise ValueError(f"--only must be among {', '.join(keys)}; got {key!r}")
        return tuple(
            self.makers[settings["kind"]](at_scale(settings, scale, changed.get(settings["name"])))
            for settings in shipped
            if settings["key"] in wanted and (settings["name"] in changed or not changed)
        )


def _by_name(changes: list[Settings], known: list[str]) -> dict[str, Settings]:
    for settings in changes:
        if settings["name"] not in known:
            raise ValueError(f"the name in a --config file must be among {', '.join(known)}; got {settings['name']!r}")
    return {settings["name"]: settings for settings in changes}


def run_study(
    experiments: Sequence[Experiment],
    scale: Scale,
    out: Path,
    *,
    workers: int = 1,
    progress: TextIO | None = None,
    figures: bool = True,
    stored: Path | None = None,
    run: bool = True,
) -> list[Finding]:
    """Run experiments and write ``cache.jsonl``, and a CSV and an SVG file of each, to ``out``.

    Parameters
    ----------
    experiments : sequence of Experiment
        The experiments.
    scale : Scale
        How much to compute.
    out : Path
        The folder to write to, which is made if it does not exist.
    workers : int
        The number of processes.
    progress : TextIO or None
        A stream for the progress. None shows none.
    figures : bool
        Whether to draw the figures.
    stored : Path or None
        A file of results that is used instead of ``cache.jsonl``. Its results count whatever code made them.
    run : bool
        Whether to run jobs. If not, experiments are judged by what is stored.

    Returns
    -------
    list of Finding
        The outcome of each experiment. It has ``holds=None`` if a result is not stored and may not be computed, and at
        the scale "quick", which proves nothing.

    Raises
    ------
    ValueError
        If no job may run, and too few results of an experiment are stored for a table of them.
    """
    out.mkdir(parents=True, exist_ok=True)
    scale = replace(scale, folder=out / CHECKPOINTS)
    desk = _Desk(out / "cache.jsonl" if stored is None else stored, stored is not None, workers, progress, run)
    desk.say_damaged()
    desk.results([job for experiment in experiments for job in experiment.jobs(scale)])
    findings = []
    for experiment in experiments:
        jobs, results, lacking = desk.results(experiment.jobs(scale))
        while experiment.more is not None and (wanted := experiment.more(scale, results)):
            further, new, missing = desk.results(wanted)
            jobs, results, lacking = [*jobs, *further], [*results, *new], lacking + missing
            if missing:
                break
        if not results:
            raise ValueError(f"({experiment.key}) has no stored results to be judged by: run it first")
        with _whole(experiment, len(jobs), lacking):
            finding = replace(experiment.judge(results), sources=sources(jobs, desk.cache))
        if lacking:
            finding = replace(
                finding, verdict=f"{len(jobs)} runs are stored, at least {lacking} more are planned. {finding.verdict}"
            )
        findings.append(replace(finding, holds=None) if scale.quick or lacking else finding)
        write_csv(findings[-1].rows, out / f"{experiment.stem}.csv")
        if figures:
            with _whole(experiment, len(jobs), lacking):
                figure = experiment.draw(results)
            save(figure, out / f"{experiment.stem}.svg")
    return findings


@contextmanager
def _whole(experiment: Experiment, stored: int, lacking: int) -> Iterator[None]:
    """Explain an error of a block that works with what is stored, if something is lacking that it needs."""
    try:
        yield
    except (LookupError, StopIteration, TypeError, ValueError) as error:
        if not lacking:
            raise
        raise ValueError(
            f"({experiment.key}) cannot be judged by the {stored} runs that are stored: it needs some of the "
            f"{lacking} or more that are not. Leave it out with --only, or run it first"
        ) from error


@dataclass(frozen=True)
class _Desk:
    """Where results come from."""

    cache: Path
    any_code: bool
    workers: int
    progress: TextIO | None
    run: bool

    def say_damaged(self) -> None:
        """Say how many lines of the file cannot be read."""
        damaged = Cache(self.cache).damaged if self.progress is not None else 0
        if damaged and self.progress is not None:
            lines = "1 line is" if damaged == 1 else f"{damaged} lines are"
            self.progress.write(f"{self.cache}: {lines} damaged and ignored\n")

    def results(self, jobs: list[Job]) -> tuple[list[Job], list[Any], int]:
        """Return the jobs that have a result, the results, and how many jobs have none."""
        known = jobs if self.run else [job for job in jobs if is_stored(job, self.cache, any_code=self.any_code)]
        results = run_jobs(
            known, workers=self.workers, cache=self.cache, progress=self.progress, any_code=self.any_code
        )
        return known, results, len(jobs) - len(known)


def answer(holds: bool | None) -> str:
    """Return a verdict in words."""
    return "not judged" if holds is None else "holds" if holds else "does not hold"


def as_report(experiments: Sequence[Experiment], findings: Sequence[Finding]) -> str:
    """Return the text that the command prints."""
    parts = []
    for experiment, finding in zip(experiments, findings, strict=True):
        parts += [
            f"({experiment.key}) {experiment.claim}: {answer(finding.holds)}",
            as_text(finding.rows),
            finding.verdict,
            "",
        ]
    return "\n".join(parts).rstrip()

"""The page, read the way a browser would: whole, with all that it shows inside of it."""

import base64
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from fcco.cli import main
from fcco_command import parser
from fcco_reproduce import Finding, Job, Scale, _record, run_jobs, run_study
from fcco_reproduce._record import command_of, environment, read_records, write_records
from fcco_reproduce._report import as_html, write_page
from fcco_reproduce._stale import stale
from reproduce import work
from reproduce.squares import STUDY

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Elements and text; fails where tags do not match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def run(out, keys=None, scale=None, command="fcco reproduce squares"):
    scale = scale or Scale(seeds=2)
    chosen = STUDY.experiments(scale.name, keys)
    findings = run_study(chosen, scale, out)
    write_records(STUDY, chosen, findings, scale, out, command=command)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("results") / "squares"
    run(out)
    return out


@pytest.fixture(scope="module")
def html(folder):
    return as_html([(folder, read_records(folder))])


def test_it_is_whole_and_has_what_it_needs_inside(html):
    page = Page(html)
    assert html.startswith("<!doctype html>")
    for attributes in (attributes for _, attributes in page.elements):
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    assert not page.all("link")
    assert "@import" not in html
    assert "url(" not in html
    assert "http" not in re.sub(r"data:image/svg\+xml;base64,[\w+/=]+", "", html)


def test_every_figure_is_the_one_on_disk(folder, html):
    images = Page(html).all("img")
    assert [image["alt"] for image in images] == 2 * ["Chart of k^2 by k. squares."]
    for image, name in zip(images, ("i-small.svg", "ii-odd.svg"), strict=True):
        content = base64.b64decode(image["src"].removeprefix("data:image/svg+xml;base64,"), validate=True)
        assert content == (folder / name).read_bytes()
        ElementTree.fromstring(content)


def test_findings_come_first_and_lead_to_their_sections(html):
    page = Page(html)
    links, sections = [a["href"] for a in page.all("a")], [s["id"] for s in page.all("section")]
    assert links == [f"#{section}" for section in sections]
    assert len(set(sections)) == 2
    assert page.text.index("does not hold") < page.text.index("With 2 seeds")
    assert "0 of 2 claims hold." in page.text


def test_the_table_has_the_paper_beside_ours(html):
    page = Page(html)
    heads = [cell.get("class") for cell in page.all("th")]
    assert heads[:5] == [None, "number", "number", "number", None]
    values = [cell.get("data-value") for cell in page.all("td")]
    assert values[:15] == [
        *(None, "0.1279", "0.128", "-0.0001", None),
        *(None, None, None, None, None),
        *(None, "0.2", "0.202", "-0.002", None),
    ]
    assert "<b>SOX</b> 0.1279 0.128 -0.0001 yes" in page.text
    assert not page.all("b")


def test_text_is_text(html):
    page = Page(html)
    assert "BSGD is not met & w* is, nearly . SOX is." in page.text
    assert len(page.all("em")) == 4  # in the summary and in the section of both
    assert "where f(w*) {is} w*." in page.text
    assert "Squares & roots" in page.text


def test_commands_seeds_and_environment(html):
    text = Page(html).text
    assert "fcco reproduce squares" in text
    for name, value in environment().items():
        assert f"{name} {value}" in text
    assert re.search(r"date \d{4}-\d\d-\d\dT", text)
    assert "seeds 2" in text


def test_a_command_asks_for_the_same_again():
    """Not for what only says how fast, or whether again."""
    words = ["fcco", "reproduce", "ap", "--config", "a b.toml", "--scale", "paper", "--seeds", "7", "--only", "i"]
    words += ["--out", "x", "--device", "cuda:1"]
    given = parser("reproduce").parse_args([*words[1:], "--workers", "1", "--fresh", "--docs", "page.md"])
    assert command_of(given) == shlex.join(words)
    assert command_of(parser("reproduce").parse_args(["reproduce", "ap", "--quick"])) == "fcco reproduce ap --quick"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_that_of_the_checkout_which_has_the_file(tmp_path, monkeypatch):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    file = tmp_path / "file.py"
    file.touch()
    monkeypatch.setattr(_record, "__file__", str(file))
    git("init")
    git("commit", "--allow-empty", "-m", "a")
    assert _record._commit() is None  # as of a package that is installed below somebody's checkout
    git("add", "file.py")
    git("commit", "-m", "b")
    assert _record._commit() == git("rev-parse", "--short=12", "HEAD").strip()
    file.write_text("changed")
    assert _record._commit().endswith("-dirty")


def test_one_experiment_again_keeps_the_other(tmp_path):
    run(tmp_path)
    run(tmp_path, "ii", Scale(seeds=5), "fcco reproduce squares --only ii")
    records = read_records(tmp_path)
    assert [(record["key"], record["run"]["seeds"]) for record in records] == [("i", 2), ("ii", 5)]
    text = Page(as_html([(tmp_path, records)])).text
    assert "fcco reproduce squares --only ii" in text
    assert "With 2 or 5 seeds" in text


def test_small_settings_are_not_judged(tmp_path):
    run(tmp_path, scale=Scale(2, "quick"))
    text = Page(write_page([tmp_path], tmp_path / "page.html").read_text()).text
    assert "not judged" in text
    assert "hold" not in text


def test_the_command_rebuilds_the_page_from_results(folder, html, tmp_path, capsys, monkeypatch):
    page = tmp_path / "deep" / "page.html"
    assert main(["report", str(folder), "--out", str(page)]) == 0
    assert capsys.readouterr().out == f"report: {page}\n"
    assert page.read_text() == html
    results = tmp_path / "results"
    results.mkdir()
    for name in ("one", "two"):
        (results / name).symlink_to(folder)
    (results / "two" / "note.json").write_text("[1]")
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0
    both = Page((results / "report.html").read_text())
    assert len({section["id"] for section in both.all("section")}) == 4
    (folder / "note.json").unlink()


def test_numbers_of_numpy_are_numbers(tmp_path):
    import numpy as np

    chosen = STUDY.experiments(only="i")
    rows = [{"a": np.float64(0.5), "b": np.int64(3), "c": np.bool_(True), "d": float("inf")}]
    write_records(STUDY, chosen, [Finding(rows, np.bool_(True), "")], Scale(2), tmp_path, command="")
    (record,) = read_records(tmp_path)
    assert record["holds"] is True
    assert record["rows"] == [{"a": 0.5, "b": 3, "c": True, "d": float("inf")}]
    assert [cell.get("data-value") for cell in Page(as_html([(tmp_path, [record])])).all("td")][3] is None


def test_a_column_is_numeric_if_most_of_it_is(folder):
    record = read_records(folder)[0]
    rows = [{"most": 1, "half": 1, "none": "a"}, {"most": 2.5, "half": "diverged", "none": None}, {"most": "lost"}]
    page = Page(as_html([(folder, [{**record, "rows": rows}])]))
    assert [cell.get("class") for cell in page.all("th")] == ["number", None, None]


def test_folders_without_results_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "i.json").write_text("{")
    cases = {
        (): "there are no results in results: run fcco reproduce, or name a folder",
        (str(tmp_path),): f"{tmp_path} holds no results of fcco reproduce",
        (str(tmp_path / "broken"),): "i.json is not JSON",
    }
    for arguments, message in cases.items():
        with pytest.raises(SystemExit) as refused:
            main(["report", *arguments])
        assert refused.value.code == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


DAMAGES = {
    "stem": "../secret",
    "rows": [1],
    "holds": "yes",
    "claim": None,
    "verdict": ...,
    "key": ["i"],
    "study.title": ...,
    "run": [],
    "run.seeds": "2",
    "run.environment": {"CPU": 1},
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_record_is_named(name, folder, tmp_path, capsys):
    record = json.loads((folder / "i-small.json").read_text())
    *path, last = name.split(".")
    place = record[path[0]] if path else record
    if DAMAGES[name] is ...:
        del place[last]
    else:
        place[last] = DAMAGES[name]
    (tmp_path / "i-small.json").write_text(json.dumps(record))
    flaw = "run.command" if name == "run" else name
    with pytest.raises(SystemExit) as refused:
        main(["report", str(tmp_path)])
    assert refused.value.code == 2
    expected = f"{tmp_path / 'i-small.json'} is damaged: its {flaw} is missing, or is not what fcco reproduce writes"
    assert capsys.readouterr().err == f"fcco report: {expected}\n"


@pytest.mark.parametrize("stem", ["../secret", "/secret", "below/secret"])
def test_a_record_shows_no_figure_of_another_folder(stem, folder, tmp_path):
    results = tmp_path / "results"
    for place in (tmp_path, results, results / "below"):
        place.mkdir(exist_ok=True)
        (place / "secret.svg").write_bytes(b"secret")
    record = json.loads((folder / "i-small.json").read_text())
    stem = str(tmp_path / "secret") if stem == "/secret" else stem
    (results / "i-small.json").write_text(json.dumps({**record, "stem": stem}))
    with pytest.raises(ValueError, match="its stem is"):
        write_page([results], tmp_path / "page.html")


def test_a_table_that_lacks_what_the_page_shows_is_refused(folder, tmp_path, capsys):
    record = json.loads((folder / "i-small.json").read_text())
    record |= {"study": {**record["study"], "name": "push"}, "stem": "i-covtype"}
    (tmp_path / "i-covtype.json").write_text(json.dumps(record))
    with pytest.raises(SystemExit) as refused:
        main(["report", str(tmp_path), "--results", str(tmp_path / "RESULTS.md")])
    assert refused.value.code == 2
    message = f"a table in {tmp_path} is not complete (KeyError('block')): run fcco reproduce again\n"
    assert capsys.readouterr().err == f"fcco report: {message}"
    assert not (tmp_path / "RESULTS.md").exists()


def test_what_is_stale_is_listed(tmp_path, capsys):
    """Results know the code that made them: a record whose digest is another one, or that has none, is stale."""
    experiments, scale, out = STUDY.experiments(), Scale(seeds=2), tmp_path / "squares"
    findings = run_study(experiments, scale, out, figures=False)
    write_records(STUDY, experiments, findings, scale, out, command="fcco reproduce squares")
    assert main(["report", str(out), "--stale"]) == 0
    first = capsys.readouterr().out
    assert first.count("made by today's code") == len(experiments)
    path = out / f"{experiments[0].stem}.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "sources": {name: ["old"] for name in record["sources"]}}))
    assert main(["report", str(out), "--stale"]) == 0
    assert "the code behind reproduce.work.square has changed" in capsys.readouterr().out
    assert stale({**record, "sources": {"reproduce.work.cube": ["old"]}}) == ["reproduce.work.cube is gone"]


def test_stored_results_are_judged_as_far_as_they_go(tmp_path):
    """Without running anything: what is missing leaves a claim unjudged, and says so."""
    (first, *_), scale, stored = STUDY.experiments(), Scale(seeds=2), tmp_path / "runs.jsonl"
    jobs = first.jobs(scale)
    with pytest.raises(ValueError, match="has no stored results to be judged by"):
        run_study([first], scale, tmp_path, figures=False, stored=stored, run=False)
    run_jobs(jobs, cache=stored)
    (whole,) = run_study([first], scale, tmp_path, figures=False, stored=stored, run=False)
    assert whole.holds is False
    more = replace(first, more=lambda scale, results: [Job(work.square, {"number": 99})])
    (partial,) = run_study([more], scale, tmp_path, figures=False, stored=stored, run=False)
    assert partial.holds is None
    assert partial.verdict.startswith(f"{len(jobs)} runs are stored, at least 1 more are planned. ")


def test_a_judge_that_needs_what_is_not_stored_says_so(tmp_path):
    (first, *_), scale, stored = STUDY.experiments(), Scale(seeds=2), tmp_path / "runs.jsonl"
    run_jobs(first.jobs(scale)[:1], cache=stored)
    needy = replace(first, judge=lambda results: results[1])
    with pytest.raises(ValueError, match="cannot be judged by the 1 runs that are stored: it needs some of the"):
        run_study([needy], scale, tmp_path, figures=False, stored=stored, run=False)

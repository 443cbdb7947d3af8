"""What goes wrong while the command runs ends in a sentence and an exit code, and finished work is kept."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from fcco.cli import main
from fcco_reproduce import Experiment, Job, Study, _cache
from fcco_reproduce import _command as command
from fcco_reproduce._cache import Cache
from fcco_reproduce._tables import as_markdown
from reproduce import work
from reproduce.squares import STUDY

PATH = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])


@pytest.fixture
def squares(monkeypatch):
    monkeypatch.setattr(command, "load", lambda name: STUDY)


@pytest.fixture
def refused(capsys):
    """The sentence that a command ends with; fails if there is more than one, or another code."""

    def run(*arguments, code=2):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        assert ended.value.code == code
        lines = [line for line in capsys.readouterr().err.splitlines() if " jobs, " not in line]
        assert len(lines) == 1
        return lines[0]

    return run


def reproduce(out, *options):
    return ["reproduce", "quick", "--workers", "1", "--out", str(out), *options]


def no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_keeps_what_was_stored_before(tmp_path, squares, refused, monkeypatch, capsys):
    stored = []

    def sync(file):
        stored.append(file)
        if len(stored) > 2:
            no_space()

    with monkeypatch.context() as patch:
        patch.setattr(_cache.os, "fsync", sync)
        assert refused(*reproduce(tmp_path)) == "fcco reproduce: No space left on device"
    kept = (tmp_path / "cache.jsonl").read_text().splitlines()[:2]
    assert main(reproduce(tmp_path)) == 0
    assert (tmp_path / "cache.jsonl").read_text().splitlines()[:2] == kept
    assert len(Cache(tmp_path / "cache.jsonl").results) == 4


def test_a_folder_that_cannot_be_written_to(tmp_path, squares, refused, monkeypatch):
    def mkdir(path, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert refused(*reproduce(tmp_path / "out")) == f"fcco reproduce: Read-only file system: {tmp_path / 'out'}"


def test_a_file_in_place_of_the_folder(tmp_path, squares, refused):
    file = tmp_path / "file"
    file.write_text("mine")
    assert refused(*reproduce(file)) == f"fcco reproduce: --out must be a folder; got the file {file}"
    assert refused(*reproduce(file / "below")) == f"fcco reproduce: Not a directory: {file / 'below'}"
    assert file.read_text() == "mine"


@pytest.mark.parametrize("page", ["docs", "page"])
def test_a_page_of_docs_that_can_be_none(tmp_path, squares, refused, page):
    """Before any work is done: the figures of the page are in a folder of its name without the ending."""
    (tmp_path / "docs").mkdir()
    sentence = refused(*reproduce(tmp_path / "out", "--docs", tmp_path / page))
    assert sentence.endswith(f"--docs must be a Markdown file, such as docs/squares.md; got {tmp_path / page}")
    assert not (tmp_path / "out").exists()


def test_a_page_of_docs(tmp_path, squares):
    assert main(reproduce(tmp_path / "out", "--docs", str(tmp_path / "page.md"))) == 0
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# Squares & roots\n\n**What was compared.** Numbers & their squares.\n\n**What came out.**")
    assert "- (ii) " in page.split("## (i)")[0]
    assert page.count("`square(k)` for a few k.") == 1  # the second experiment is run as the first
    assert page.endswith(
        "## How this page was made\n\nWith 2 seeds, by\n\n    fcco reproduce squares\n\nwhere f(w*) {is} w*.\n"
    )
    assert {path.name for path in (tmp_path / "page").iterdir()} == {
        f"{name}.{ending}" for name in ("i-small", "ii-odd") for ending in ("csv", "json", "svg")
    }
    assert main(["report", str(tmp_path / "page"), "--docs", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == page


def test_a_page_of_docs_escapes_what_is_no_markdown(tmp_path, squares):
    """A claim and cells are text, and the name of the page may have any characters."""
    config = tmp_path / "claim.toml"
    config.write_text('name = "small"\nclaim = "<script>x</script> [a](b) is w*"\n')
    name = "a page (1)"
    assert main(reproduce(tmp_path / "out", "--config", str(config), "--docs", str(tmp_path / f"{name}.md"))) == 0
    page = (tmp_path / f"{name}.md").read_text()
    assert "## (i) \\<script>x\\</script> [a\\](b) is w\\*\n" in page
    assert "| \\<b>SOX\\</b> |" in page
    assert "(a%20page%20%281%29/i-small.svg)" in page
    assert "([CSV](a%20page%20%281%29/i-small.csv))" in page
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(page)
    assert "<script" not in html
    assert "<td>&lt;b&gt;SOX&lt;/b&gt;</td>" in html
    assert '<a href="b">' not in html


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a|b", "a\\|b"), ("a\\|b", "a\\\\\\|b"), ("a\nb", "a b"), ("x < y", "x < y"), ("`w*|<b>` w*", "`w*\\|<b>` w\\*")],
)
def test_cells_are_text(text, shown):
    assert as_markdown([{"column": text}]).splitlines()[-1] == f"| {shown} |"


def test_a_page_of_docs_elsewhere(tmp_path, squares, refused):
    assert main(reproduce(tmp_path / "out")) == 0
    sentence = refused("report", tmp_path / "out", "--docs", tmp_path / "docs" / "page.md")
    assert "--docs needs one folder of results, in the folder of the page" in sentence


def test_a_cache_that_is_no_file(tmp_path, squares, refused):
    (tmp_path / "cache.jsonl").mkdir()
    assert refused(*reproduce(tmp_path)) == f"fcco reproduce: Is a directory: {tmp_path / 'cache.jsonl'}"


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: json.dumps({**entry, "result": None}),
        lambda entry: json.dumps({**entry, "result": entry["result"] + 1}),
        lambda entry: json.dumps({**entry, "key": "0" * 32}),
        lambda entry: json.dumps({name: value for name, value in entry.items() if name != "sha256"}),
        lambda entry: json.dumps([entry]),
        lambda entry: "[" * 100_000,
        lambda entry: "\udcff\0",
        lambda entry: "",
    ],
)
def test_a_damaged_line_of_the_cache_is_computed_again(tmp_path, squares, damage, capsys):
    assert main(reproduce(tmp_path)) == 0
    printed, cache = capsys.readouterr().out, tmp_path / "cache.jsonl"
    whole = cache.read_text().splitlines()
    cache.write_text("\n".join([damage(json.loads(whole[2])), *whole[3:], ""]), errors="surrogateescape")
    assert main(reproduce(tmp_path)) == 0
    again = capsys.readouterr()
    assert again.out == printed
    lines = [line.split(",")[0] for line in again.err.splitlines()]
    assert lines[-3:] == ["1/3 jobs", "2/3 jobs", "3/3 jobs"]
    assert lines[:-3] == ([f"{cache}: 1 line is damaged and ignored"] if damage({"result": 0}) else [])


def test_a_result_under_the_key_of_another_task_is_not_believed(tmp_path, squares, capsys):
    assert main(reproduce(tmp_path)) == 0
    printed, cache = capsys.readouterr().out, tmp_path / "cache.jsonl"
    lines = cache.read_text().splitlines()
    swapped = json.dumps({**json.loads(lines[0]), "key": json.loads(lines[2])["key"]})  # 0 for 4
    cache.write_text("\n".join([*lines, swapped, ""]))
    assert main(reproduce(tmp_path)) == 0
    assert capsys.readouterr().out == printed


def test_a_file_of_stored_results_that_does_not_exist(tmp_path, squares, refused, capsys):
    missing, out = tmp_path / "typo.jsonl", tmp_path / "out"
    sentence = refused(*reproduce(out, "--stored", missing, "--no-run"))
    assert sentence.endswith(f"--no-run needs stored results; got --stored {missing}, which does not exist")
    assert not out.exists()
    assert main(reproduce(out, "--stored", str(missing))) == 0
    assert f"{missing} does not exist yet: all jobs run" in capsys.readouterr().err
    assert main(reproduce(out, "--stored", str(missing))) == 0
    assert capsys.readouterr().err == ""


def test_fresh_forgets_all_that_was_kept(tmp_path, squares, capsys):
    assert main(reproduce(tmp_path)) == 0
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "run.pt").touch()
    capsys.readouterr()
    assert main(reproduce(tmp_path, "--fresh")) == 0
    assert "4/4 jobs" in capsys.readouterr().err
    assert not (tmp_path / "checkpoints").exists()


def test_every_package_that_is_missing_is_named(tmp_path, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    for study in command.STUDIES:
        expected = "fcco reproduce: experiments need numba, pillow: pip install 'fcco[reproduce]'"
        assert refused("reproduce", study, "--out", tmp_path / "out") == expected
    assert not (tmp_path / "out").exists()


def test_data_that_are_missing(tmp_path, refused, monkeypatch):
    monkeypatch.setenv("FCCO_DATA", str(tmp_path))
    sentence = refused("reproduce", "push", "--only", "ii", "--workers", "1", "--out", tmp_path / "out")
    assert sentence.startswith(f"fcco reproduce: FCCO_DATA is {tmp_path}, which has no ijcnn1/ijcnn1.tr.bz2; put it")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_the_output():
    arguments = ["plan", "--n", "500", "--b1", "16", "--b2", "8", "--epsilon", "0.05"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fcco", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.stderr == "fcco plan: No space left on device\n"
    assert done.returncode == 2


def interrupted(out):
    kept = f"finished work is kept in {out}, and the same command continues from there"
    return f"fcco reproduce: interrupted; {kept}"


def test_ctrl_c(tmp_path, squares, refused, monkeypatch):
    def stop(number):
        if number == 2:
            raise KeyboardInterrupt
        return number**2

    monkeypatch.setattr(work, "square", stop)
    assert refused(*reproduce(tmp_path), code=130) == interrupted(tmp_path)
    assert sorted(Cache(tmp_path / "cache.jsonl").results.values()) == [0, 1]


SLOW = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored in the background of a shell
from fcco import cli
from fcco_reproduce import Experiment, Study, Job, _command
from reproduce import work

class Slow(Study):
    def experiments(self, *_):
        jobs = [Job(work.square, {"number": k, "seconds": 300.0 * k}) for k in range(4)]
        return (Experiment("i", "slow", "", "", lambda scale: jobs, None, None),)

_command.load = lambda name: Slow("slow", "", "", "", None, {}, 2)
sys.exit(cli.main(["reproduce", "quick", "--workers", "2", "--out", sys.argv[1]]))
"""


@pytest.mark.parametrize("early", [False, True])
def test_ctrl_c_reaches_the_workers(tmp_path, early):
    """A terminal sends it to all processes of the command, also to those that are still importing.

    The first job takes no time, and the others more than is waited for here.
    """
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(out)],
        env={**os.environ, "PYTHONPATH": PATH},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (out.exists() if early else (out / "cache.jsonl").exists()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert [line for line in errors.splitlines() if " jobs, " not in line] == [interrupted(out)]
    assert process.returncode == 130
    assert early or Cache(out / "cache.jsonl").results
    while _lives(process.pid):  # as the tracker of shared memory does for a moment
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_that_is_killed(tmp_path, refused, monkeypatch):
    class Deadly(Study):
        def experiments(self, *_):
            return (Experiment("i", "", "", "", lambda _: [Job(work.die, {"k": k}) for k in range(2)], None, None),)

    monkeypatch.setattr(command, "load", lambda name: Deadly("", "", "", "", tmp_path, {}, 2))
    sentence = refused("reproduce", "quick", "--workers", "2", "--out", tmp_path)
    assert sentence.startswith("fcco reproduce: a worker process was killed, perhaps for lack of memory")

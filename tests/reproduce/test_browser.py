"""The page in a browser, at the width of a telephone and of a desk: nothing is broken, nothing hangs over."""

import html
import json
import re
import shutil
import subprocess

import pytest
from PIL import Image

from fcco_reproduce import Scale, run_study
from fcco_reproduce._record import write_records
from fcco_reproduce._report import write_page
from reproduce.squares import STUDY

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
WIDTHS = (390, 1280)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"needs a browser, one of {', '.join(BROWSERS)}")

# A frame has its own width, and can be narrower than any window of the browser.
MEASURE = """
<body><pre id="found"></pre><script>
const frames = [...document.querySelectorAll("iframe")];
const measure = frame => {
  const page = frame.contentDocument, root = page.documentElement;
  const column = () => [...page.querySelector("tbody").rows].map(row => row.cells[1].textContent);
  const button = page.querySelectorAll("th button")[1], before = column();
  button.click();
  const up = column();
  button.click();
  return {width: root.clientWidth, content: root.scrollWidth, before, up, down: column(),
    images: [...page.images].map(image => image.complete && image.naturalWidth > 100),
    wide: [...page.querySelectorAll("p, h1, h3, li, pre, figure, .scroll, dl")]
      .filter(one => one.getBoundingClientRect().right > root.clientWidth).length};
};
addEventListener("load", () => {
  document.getElementById("found").textContent = JSON.stringify(frames.map(measure));
});
</script></body>
"""


def browse(tmp_path, page, *options):
    """What the browser prints, and what it has to say about the page."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out, scale = tmp_path_factory.mktemp("page"), Scale(seeds=2)
    experiments = STUDY.experiments()
    findings = run_study(experiments, scale, out)
    write_records(STUDY, experiments, findings, scale, out, command="fcco reproduce squares " + 40 * "--long ")
    return write_page([out], out / "report.html")


@pytest.fixture(scope="module")
def found(page, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frames")
    source = html.escape(page.read_text())
    frames = "".join(f'<iframe width="{width}" height="900" srcdoc="{source}"></iframe>' for width in WIDTHS)
    (folder / "frames.html").write_text(f"<!doctype html><meta charset=utf-8>{frames}{MEASURE}")
    printed, console = browse(folder, folder / "frames.html", "--dump-dom")
    text = re.search(r'<pre id="found">(.*?)</pre>', printed, re.DOTALL).group(1)
    return dict(zip(WIDTHS, json.loads(html.unescape(text)), strict=True)), console


def test_the_console_is_silent(found):
    assert found[1] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_images_are_there_and_nothing_hangs_over(found, width):
    measured = found[0][width]
    assert measured["images"] == [True, True]
    assert width - 30 < measured["width"] <= width  # of the frame, less its border and scroll bar
    assert measured["content"] == measured["width"]
    assert measured["wide"] == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_a_click_sorts_numbers_as_numbers(found, width):
    measured = found[0][width]
    assert measured["before"] == ["0.1279", "diverged", "0.2"]
    assert measured["up"] == ["0.1279", "0.2", "diverged"]
    assert measured["down"] == ["0.2", "0.1279", "diverged"]


def test_the_page_by_itself(page, tmp_path):
    printed, console = browse(tmp_path, page, "--dump-dom")
    assert console == []
    for number in ("0.1279", "0.128", "0.202", "-0.002"):
        assert f">{number}</td>" in printed
    picture = tmp_path / "page.png"
    browse(tmp_path, page, f"--screenshot={picture}", "--window-size=1280,1600")
    colours = Image.open(picture).convert("RGB").getcolors(1 << 24)
    assert len(colours) > 50  # text, a table and a figure, not an empty page

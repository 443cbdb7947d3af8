"""Build the wheel and the sdist, install them into empty environments, and try each. Used by ``make test-install``.

    python tests/installed.py                              # the wheel and the sdist, without extras and with each
    python tests/installed.py --python python3.13 --torch 2.9.0 --extra ""

Without options, every other supported version of Python that is found, on PATH or in pyenv's folder, gets the wheel
with one extra. Every environment is new and is removed afterwards. Packages come from the index that pip is set up for;
where it has no such package for a version of Python, the summary says so and the others are tried.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
EXTRAS = ("", "sklearn", "plot", "reproduce", "ecosystem")  # the others are these, or tools to work on the library
ELSEWHERE = "reproduce"  # for other versions of Python: the extra with the most compiled packages


@dataclass(frozen=True)
class Case:
    """An archive, an extra of it, and the interpreter to install it for."""

    archive: Path
    extra: str
    python: str

    def __str__(self) -> str:
        return f"{self.archive.name} [{self.extra}], Python {version(self.python)}"


def run(*words: object, cwd: Path) -> None:
    subprocess.run([str(word) for word in words], check=True, cwd=cwd)


def version(python: str) -> str:
    """Return the version of an interpreter as "3.12", or "" if it does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def interpreters() -> list[str]:
    """Return this interpreter, and one of every other supported version that is found."""
    found = {version(sys.executable): sys.executable}
    for wanted in VERSIONS:
        on_path = shutil.which(f"python{wanted}")
        places = [on_path] if on_path else []
        places += sorted(map(str, Path.home().glob(f".pyenv/versions/{wanted}.*/bin/python")))
        for place in places:
            if version(place) == wanted:
                found.setdefault(wanted, place)
    return list(found.values())


def build(folder: Path) -> tuple[Path, Path]:
    """Return a wheel and an sdist of the working tree."""
    tools = environment(folder / "build", sys.executable)
    pip(tools, folder, "build")
    run(tools, "-m", "build", "--outdir", folder / "dist", ROOT, cwd=folder)
    (wheel,), (sdist,) = ((folder / "dist").glob(pattern) for pattern in ("*.whl", "*.tar.gz"))
    return wheel, sdist


def environment(folder: Path, python: str) -> Path:
    """Make an empty environment and return its Python."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin" / "python"


def pip(python: Path, folder: Path, *words: object) -> None:
    """Install packages, or raise ``LookupError`` with the requirement that the index has nothing for."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run([str(word) for word in command], cwd=folder, stderr=subprocess.PIPE, text=True, check=False)
    if lacking := re.search(r"No matching distribution found for (.+)", done.stderr):
        raise LookupError(lacking[1])
    if done.returncode:
        sys.stderr.write(done.stderr)
        done.check_returncode()


def attempt(case: Case, torch: str | None) -> str:
    """Install an archive with an extra into a new environment, run the quick test, and say how it went."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            its = environment(folder / "venv", case.python)
            asked = f"{case.archive}[{case.extra}]" if case.extra else str(case.archive)
            if torch is None:
                pip(its, folder, "--constraint", ROOT / "constraints.txt", asked)
            else:
                pip(its, folder, f"torch=={torch}", asked)
            run(its, ROOT / "tests" / "quick.py", cwd=folder)
        except LookupError as lacking:
            return f"not tried, since pip finds no {lacking} for it here"
        except subprocess.CalledProcessError as failed:
            return f"failed: {failed.cmd[1:4]}"
    return "works"


def chosen(wheel: Path, sdist: Path, pythons: list[str] | None, extras: list[str] | None) -> list[Case]:
    """Return what was asked for, or everything on this Python and one extra on each of the others."""
    if pythons or extras:
        return [Case(wheel, extra, python) for python in pythons or [sys.executable] for extra in extras or EXTRAS]
    here, *others = interpreters()
    cases = [Case(archive, extra, here) for archive in (wheel, sdist) for extra in EXTRAS]
    return cases + [Case(wheel, ELSEWHERE, python) for python in others]


def main() -> int:
    """Try everything and return 0 if nothing fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", help="an interpreter to install for (default: all that are found)")
    parser.add_argument("--torch", help="a version of PyTorch in the place of that of constraints.txt")
    parser.add_argument("--extra", action="append", help="an extra, or '' for none (default: none, and each)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        outcomes = {}
        for case in chosen(*build(Path(name)), given.python, given.extra):
            outcomes[str(case)] = attempt(case, given.torch)
            print(f"{case}: {outcomes[str(case)]}", flush=True)
    print("\n".join(["", *(f"{case}: {outcome}" for case, outcome in outcomes.items())]))
    return int(any(outcome.startswith("failed") for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())

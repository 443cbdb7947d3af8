"""Build the wheel and the sdist, install them into empty environments, and try each. Used by ``make test-install``.

    python tests/installed.py                              # the wheel without extras and with each, and the sdist
    python tests/installed.py --python python3.13 --torch 2.9.0 --extra ""

Every environment is new and is removed afterwards. Packages come from the index that pip is set up for.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTRAS = ("", "sklearn", "plot", "reproduce", "ecosystem")


def run(*words: object, cwd: Path) -> None:
    subprocess.run([str(word) for word in words], check=True, cwd=cwd)


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
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words, cwd=folder)


def attempt(archive: Path, extra: str, python: str, torch: str | None) -> str:
    """Install an archive with an extra into a new environment, run the quick test, and say how it went."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            its = environment(folder / "venv", python)
            asked = f"{archive}[{extra}]" if extra else str(archive)
            if torch is None:
                pip(its, folder, "--constraint", ROOT / "constraints.txt", asked)
            else:
                pip(its, folder, f"torch=={torch}", asked)
            run(its, ROOT / "tests" / "quick.py", cwd=folder)
        except subprocess.CalledProcessError as failed:
            return f"failed: {failed.cmd[1:4]}"
    return "works"


def main() -> int:
    """Try everything and return 0 if all of it works."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter to install for")
    parser.add_argument("--torch", help="a version of PyTorch in the place of that of constraints.txt")
    parser.add_argument("--extra", action="append", help="an extra, or '' for none (default: none, and each)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        wheel, sdist = build(Path(name))
        cases = [(wheel, extra) for extra in given.extra or EXTRAS] + ([] if given.extra else [(sdist, "")])
        outcomes = {f"{path.name} [{extra}]": attempt(path, extra, given.python, given.torch) for path, extra in cases}
    for case, outcome in outcomes.items():
        print(f"{case}: {outcome}")
    return int(any(outcome != "works" for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())

"""The command ``fcco doctor``: what is installed, and what is missing or at odds."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DESCRIPTION = """Show the versions, devices, threads, caches and data that fcco finds on this machine.

Lines that begin with "!" name a problem and what to do. The exit code is 1 if fcco cannot work at all, else 0."""
OLDEST_TORCH = (2, 4)
# Extras for users. The others are sets of these, for developers.
EXTRAS = ("sklearn", "plot", "reproduce", "ecosystem")


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    section: str
    name: str
    value: str
    advice: str = ""
    fatal: bool = False


def define(parser: argparse.ArgumentParser) -> None:
    """Give the parser of the command its description and options."""
    parser.description = DESCRIPTION
    parser.add_argument("--json", action="store_true", help="print JSON, for a bug report or a script")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """Return what the command prints, or print it and exit with code 1 if something essential is broken."""
    findings = [*examine()]
    text = (
        json.dumps([asdict(found) for found in findings], indent=2) if arguments.json else "\n".join(_lines(findings))
    )
    if any(found.fatal for found in findings):
        print(text)
        raise SystemExit(1)
    return text


def examine() -> Iterator[Finding]:
    """Yield everything that is worth knowing about this installation."""
    yield Finding("fcco", "version", _version("fcco") or "not installed, run from its sources")
    yield Finding("fcco", "location", str(_folder()))
    yield Finding("python", "version", f"{platform.python_version()} ({sys.executable})")
    yield Finding("python", "platform", f"{platform.platform()}, {os.cpu_count()} cores")
    yield from _core()
    yield from _extras()
    yield from _caches()
    yield from _data()


def _folder() -> Path:
    """Return the folder of the library, which is not imported for that: PyTorch may be what is broken."""
    found = find_spec("fcco")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _core() -> Iterator[Finding]:
    for name in ("numpy", "torch"):
        try:
            import_module(name)
        except Exception as broken:
            advice = f"{type(broken).__name__}: {broken}; pip install --force-reinstall {name}"
            yield Finding("packages", name, _version(name) or "missing", advice, fatal=True)
            return
        yield Finding("packages", name, str(sys.modules[name].__version__), **_age(name))
    yield from _devices(sys.modules["torch"])


def _age(name: str) -> dict[str, Any]:
    release = tuple(map(int, re.findall(r"\d+", sys.modules[name].__version__)[:2]))
    if name == "torch" and release < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return {"advice": f"fcco needs PyTorch {oldest} or newer: pip install -U torch", "fatal": True}
    return {}


def _devices(torch: Any) -> Iterator[Finding]:
    found = [f"cuda:{k} ({torch.cuda.get_device_name(k)})" for k in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    yield Finding("devices", "accelerators", ", ".join(found) or "none: everything runs on the CPU")
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    limited = f", OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}" if "OMP_NUM_THREADS" in os.environ else ""
    advice = "" if threads <= cores else f"more threads than the {cores} cores: torch.set_num_threads({cores})"
    yield Finding("devices", "threads", f"{threads}{limited}", advice)
    compiler = next(filter(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++", "cl")), None)
    advice = "" if compiler else "torch.compile needs a C++ compiler on the CPU; everything else works without"
    yield Finding("devices", "C++ compiler", compiler or "none", advice)


def _extras() -> Iterator[Finding]:
    for extra in EXTRAS:
        packages = [*_packages_of(extra)]
        missing = [name for name in packages if _version(name) is None]
        have = ", ".join(f"{name} {_version(name)}" for name in packages if name not in missing)
        advice = f"without {', '.join(missing)}: pip install 'fcco[{extra}]'" if missing else ""
        yield Finding("extras", extra, have or "not installed", advice)


def _packages_of(extra: str) -> Iterator[str]:
    try:
        declared = requires("fcco") or []
    except PackageNotFoundError:
        return
    for line in declared:
        name = re.match(r"[\w.-]+", line)
        if name and name[0] != "fcco" and re.search(rf"extra == ['\"]{extra}['\"]", line):
            yield name[0]


def _caches() -> Iterator[Finding]:
    if find_spec("numba") is not None:
        folder = Path(os.environ.get("NUMBA_CACHE_DIR") or _folder() / "compiled")
        advice = "" if _writable(folder) else "cannot be written: every process compiles again; set NUMBA_CACHE_DIR"
        yield Finding("caches", "compiled kernels", _contents(folder, "*.nbc", "kernels"), advice)
    if find_spec("pooch") is not None:
        folder = Path(import_module("pooch").os_cache("fcco"))
        yield Finding("caches", "downloads", _contents(folder, "*", "files"))


def _contents(folder: Path, pattern: str, what: str) -> str:
    sizes = [path.stat().st_size for path in folder.rglob(pattern) if path.is_file()]
    return f"{folder}: {len(sizes)} {what}, {sum(sizes) / 1e6:.1f} MB"


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _data() -> Iterator[Finding]:
    given = os.environ.get("FCCO_DATA")
    if given is None:
        yield Finding("data", "FCCO_DATA", "not set: data sets are downloaded when they are needed")
    elif not Path(given).is_dir():
        yield Finding("data", "FCCO_DATA", given, "is not a folder: set it to one, or unset it to download data sets")
    else:
        held = sorted(path.name for path in Path(given).iterdir() if path.is_dir())
        yield Finding("data", "FCCO_DATA", f"{given}: {', '.join(held) or 'empty'}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _lines(findings: list[Finding]) -> Iterator[str]:
    width = max(len(found.name) for found in findings)
    section = ""
    for found in findings:
        if found.section != section:
            section = found.section
            yield section
        yield f"  {found.name.ljust(width)}  {found.value}"
        if found.advice:
            yield f"! {' ' * width}  {found.advice}"

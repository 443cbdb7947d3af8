"""The command ``fcco``.

``fcco plan`` is part of the library. ``fcco reproduce`` and ``fcco report`` belong to the package ``fcco_reproduce``,
which is looked up when the command runs, so that the library itself never imports it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import fcco
from fcco.theory import _plan

LABORATORY = "fcco_reproduce"


def commands() -> tuple[Any, ...]:
    """Return the modules that define a subcommand; those of ``fcco_reproduce`` only if that package is installed."""
    if find_spec(LABORATORY) is None:
        return (_plan,)
    return (_plan, *import_module(f"{LABORATORY}.cli").COMMANDS)


def parser() -> argparse.ArgumentParser:
    """Return the parser of ``fcco`` and all its subcommands."""
    top = argparse.ArgumentParser(prog="fcco", description=fcco.__doc__)
    top.add_argument("--version", action="version", version=f"fcco {fcco.__version__}")
    subparsers = top.add_subparsers(title="commands", dest="command", required=True)
    for command in commands():
        command.add_to(subparsers)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``fcco`` and return its exit code.

    What a user can do something about ends it with a sentence on stderr: code 2 for bad input, missing packages or
    data, and a disk that is full or cannot be written to; 130 for Ctrl-C.

    >>> main(["--version"])
    Traceback (most recent call last):
        ...
    SystemExit: 0
    """
    top = parser()
    given = top.parse_args(arguments)
    try:
        print(given.run(given), flush=True)
    except KeyboardInterrupt as stopped:
        top.exit(130, f"fcco {given.command}: interrupted{stopped}\n")
    except (ImportError, OSError, ValueError) as refused:
        top.exit(2, f"fcco {given.command}: {_sentence(refused)}\n")
    return 0


def _sentence(refused: Exception) -> str:
    if isinstance(refused, OSError) and refused.strerror:
        return f"{refused.strerror}: {refused.filename}" if refused.filename else refused.strerror
    return str(refused)

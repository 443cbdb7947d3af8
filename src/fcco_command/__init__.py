"""The command ``fcco``.

This is a package of its own, so that ``fcco --help`` need not import ``fcco``, and PyTorch with it. A subcommand is a
module that is imported when the command is given. ``fcco reproduce`` and ``fcco report`` belong to the package
``fcco_reproduce``, and are there only if that package is installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

__all__ = ["main", "parser"]

LABORATORY = "fcco_reproduce"
# By name: the module that defines the command, and what --help says of it.
COMMANDS = {
    "plan": ("fcco.theory._plan", "what the paper's theorems prescribe for a problem of given size"),
    "reproduce": (f"{LABORATORY}._command", "run the paper's experiments, with tables and figures"),
    "report": (f"{LABORATORY}._report", "make one HTML page of earlier results"),
    "doctor": ("fcco_command._doctor", "show what is installed, and what is missing"),
    "completion": ("fcco_command._completion", "complete the words of fcco in bash, zsh or fish"),
}


class _Version(argparse.Action):
    """Print the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print("fcco", version("fcco"))
        parser.exit()


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of ``fcco``.

    Parameters
    ----------
    command : str, optional
        The subcommand that is to be parsed. The others are known by their names only.
    """
    top = argparse.ArgumentParser(
        prog="fcco", description="Train PyTorch models on objectives that score every example against a whole set."
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    subparsers = top.add_subparsers(title="commands", dest="command")
    for name, (module, what) in COMMANDS.items():
        if find_spec(module.split(".")[0]) is None:
            continue
        its = subparsers.add_parser(name, help=what, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == command:
            import_module(module).define(its)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``fcco`` and return its exit code.

    What a user can do something about ends it with a sentence on stderr: code 2 for bad input, missing packages or
    data, and a disk that is full or cannot be written to; 130 for Ctrl-C.

    >>> main(["plan", "--n", "500"])
    Traceback (most recent call last):
        ...
    SystemExit: 2
    """
    words = sys.argv[1:] if arguments is None else arguments
    top = parser(next((word for word in words if not word.startswith("-")), None))
    given = top.parse_args(words)
    if given.command is None:
        top.print_help()
        return 0
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

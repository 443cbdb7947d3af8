"""The command ``fcco``. A subcommand lives next to what it is about, and is registered here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import fcco
from fcco.reproduce import _command as _reproduce
from fcco.reproduce import _report
from fcco.theory import _plan

COMMANDS = (_plan, _reproduce, _report)


def parser() -> argparse.ArgumentParser:
    """The parser of ``fcco`` and all its subcommands."""
    top = argparse.ArgumentParser(prog="fcco", description=fcco.__doc__)
    top.add_argument("--version", action="version", version=f"fcco {fcco.__version__}")
    commands = top.add_subparsers(title="commands", dest="command", required=True)
    for command in COMMANDS:
        command.add_to(commands)
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

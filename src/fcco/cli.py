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
    """Run ``fcco`` and return its exit code; bad input ends it with a sentence and code 2.

    >>> main(["--version"])
    Traceback (most recent call last):
        ...
    SystemExit: 0
    """
    top = parser()
    given = top.parse_args(arguments)
    try:
        print(given.run(given))
    except ValueError as refused:
        top.exit(2, f"fcco {given.command}: {refused}\n")
    return 0

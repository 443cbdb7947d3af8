"""The command ``fcco completion``: a script that lets a shell complete the words of ``fcco``."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import fcco_command

EPILOG = """To complete in this session, or from the next one on:
  bash:  source <(fcco completion bash)      or add that line to ~/.bashrc
  zsh:   source <(fcco completion zsh)       or add that line to ~/.zshrc, after compinit
  fish:  fcco completion fish | source       or save it as ~/.config/fish/completions/fcco.fish
"""


def define(parser: argparse.ArgumentParser) -> None:
    """Give the parser of the command its description and options."""
    parser.description = "Print a script that completes the commands and options of fcco."
    parser.epilog = EPILOG
    parser.add_argument("shell", choices=SCRIPTS, help="the shell to print the script for")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """Return the script for the chosen shell."""
    return SCRIPTS[arguments.shell](words())


def words() -> dict[str, list[str]]:
    """Return what can follow ``fcco`` (under the empty key) and each of its commands."""
    found = {"": [*_choices(fcco_command.parser()), "--help", "--version"]}
    for command in _choices(fcco_command.parser()):
        its = _subparsers(fcco_command.parser(command))[command]
        # Commands with parsers of their own below them give all of these the same options.
        below = [*_subparsers(its).values()][:1]
        actions = [action for parser in (its, *below) for action in parser._actions]
        options = [option for action in actions for option in action.option_strings if option.startswith("--")]
        found[command] = [*_choices(its), *dict.fromkeys(options)]
    return found


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next((a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {})


def _choices(parser: argparse.ArgumentParser) -> list[str]:
    """Return the values that the first positional argument may take."""
    return [str(word) for action in parser._actions if not action.option_strings for word in action.choices or ()]


def _bash(found: dict[str, list[str]]) -> str:
    cases = "\n".join(f'    {command}) words="{" ".join(its)}" ;;' for command, its in found.items() if command)
    return f"""_fcco() {{
  local words
  case "${{COMP_WORDS[1]}}" in
{cases}
    *) words="{" ".join(found[""])}" ;;
  esac
  [ "$COMP_CWORD" -eq 1 ] && words="{" ".join(found[""])}"
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _fcco fcco"""


def _zsh(found: dict[str, list[str]]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(found)}"


def _fish(found: dict[str, list[str]]) -> str:
    lines = [f'complete -c fcco -n __fish_use_subcommand -f -a "{" ".join(found[""])}"']
    for command, its in found.items():
        if command:
            lines.append(f'complete -c fcco -n "__fish_seen_subcommand_from {command}" -a "{" ".join(its)}"')
    return "\n".join(lines)


SCRIPTS: dict[str, Callable[[dict[str, list[str]]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

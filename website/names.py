"""Names of the library in the text of a page become links to the reference."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src"
# Modules that are public but not among the names of fcco itself.
ROOTS = ("fcco", "fcco.integrations.lightning", "fcco.integrations.skorch", "fcco_reproduce.datasets")
# A name in backticks, perhaps called, that is not the text of a link already.
NAME = re.compile(r"(?<!\[)`([A-Za-z][\w.]*)(\([^`]*\))?`(?!\])")
FENCE = re.compile(r"(^```.*?^```$|^#[^\n]*$|^<!--.*?-->$|^<figure.*?</figure>$)", flags=re.MULTILINE | re.DOTALL)


def public_names(module: str) -> dict[str, str]:
    """Return the names in a module's ``__all__`` and in those of the modules among them, by their full names."""
    path = SOURCES / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        return {}
    found = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            for name in ast.literal_eval(node.value):
                found[f"{module}.{name}"] = name
                found |= public_names(f"{module}.{name}")
    return found


@cache
def targets() -> dict[str, str]:
    """Return what a page may write, and the full name it stands for: full names, and classes that have no namesake."""
    names = {full: name for root in ROOTS for full, name in public_names(root).items()}
    short = [name for name in names.values() if name[0].isupper()]
    unique = {name: full for full, name in names.items() if short.count(name) == 1}
    return {full: full for full in names} | unique


def with_references(text: str) -> str:
    """Return the text of a page with the names of the library as links to the reference."""

    def linked(found: re.Match[str]) -> str:
        name = found.group(1)
        target = targets().get(name) or targets().get(name.rpartition(".")[0])  # also of a method
        return f"[{found.group(0)}][{target}]" if target else found.group(0)

    parts = FENCE.split(text)
    return "".join(part if k % 2 else NAME.sub(linked, part) for k, part in enumerate(parts))

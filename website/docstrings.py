"""Docstrings are written for ``help()``, in numpydoc. This turns what is reST in them into the Markdown of the site."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

from griffe import Alias, Extension, Module, Object

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([^`]+)`")
MATHS = re.compile(r"^( *)\.\. math::(.*(?:\n\1 +\S.*)*)", flags=re.MULTILINE)
REFERENCE = re.compile(r"^( *)\.\. \[(\d+)\] ", flags=re.MULTILINE)
SEE_ALSO = re.compile(r"^See Also\n-+\n(?:.+\n?)+", flags=re.MULTILINE)
SEEN = re.compile(r"^([\w.]+) : ", flags=re.MULTILINE)
PAGE = re.compile(r"(?<![\w/`])docs/(\w+)\.md")
TABLE = re.compile(r"^( *)(=+(?: =+)+)\n((?:.*\n)+?)\1\2\n((?:.*\n)+?)\1\2$", flags=re.MULTILINE)


def as_markdown(text: str, resolve: dict[str, str]) -> str:
    """Return a docstring as Markdown. ``resolve`` has the full names of the short names in it."""

    def reference(found: re.Match[str]) -> str:
        name = found.group(1)
        target = resolve.get(name)
        return f"[`{name}`][{target}]" if target else f"`{name}`"

    text = MATHS.sub(lambda found: f"{found.group(1)}$${' '.join(found.group(2).split())}$$\n", text)
    text = re.sub(r":math:`([^`]+)`", r"$\1$", text)
    text = TABLE.sub(_as_table, text)
    text = SEE_ALSO.sub(lambda found: SEEN.sub(r"- :func:`\1`: ", found.group(0)), text)
    text = ROLE.sub(reference, text)
    text = REFERENCE.sub(r"\1\2. ", text)
    text = re.sub(r"\[(\d+)\]_", r"[\1]", text)
    return PAGE.sub(r"[docs/\1.md](../\1.md)", text)


def _as_table(found: re.Match[str]) -> str:
    indent, rule, head, body = found.groups()
    spans = [match.span() for match in re.finditer("=+", rule)]
    spans[-1] = (spans[-1][0], 10_000)
    rows: list[list[str]] = []
    for line in (head + body).splitlines():
        cells = [line[len(indent) :][start:end].strip() for start, end in spans]
        if cells[0]:
            rows.append(cells)
        else:  # the line above goes on
            rows[-1] = [f"{above} {below}".strip() for above, below in zip(rows[-1], cells, strict=True)]
    rows.insert(1, ["---"] * len(spans))
    return "\n".join(f"{indent}| {' | '.join(row)} |" for row in rows)


def objects_of(module: Module) -> Iterator[Object]:
    """Yield a module and everything that is defined in it, but not what it imports."""
    waiting: list[Object] = [module]
    while waiting:
        found = waiting.pop()
        yield found
        waiting += [member for member in found.members.values() if isinstance(member, Object)]


def public_places(package: Module) -> dict[str, str]:
    """Return the path in the documentation of every public object, by the path where it is defined."""
    modules = [found for found in objects_of(package) if isinstance(found, Module) and found.exports]
    places = {}
    for module in sorted(modules, key=lambda module: module.path.count("."), reverse=True):
        if any(part.startswith("_") for part in module.path.split(".")):
            continue
        for name in map(str, module.exports or []):
            if member := module.members.get(name):
                places[member.target_path if isinstance(member, Alias) else member.path] = f"{module.path}.{name}"
    return places


def short_names(package: Module, places: dict[str, str]) -> dict[str, str]:
    """Return the full path of every name that a docstring may use for a public object or for a method of one."""
    names = {found.path: found.path for found in objects_of(package) if found.is_module and "._" not in found.path}
    for found in objects_of(package):
        if path := places.get(found.path):
            for full in [path, *(f"{path}.{name}" for name in documented(found))]:
                names[full] = full
                names[full.removeprefix(f"{path.rpartition('.')[0]}.")] = full
    return names


def documented(found: Object) -> list[str]:
    """Return the members of a class that have a place in the documentation."""
    return [
        name
        for name, member in found.members.items()
        if found.is_class and not name.startswith("_") and not member.is_alias and member.has_docstring
    ]


def shared_parts(package: Module) -> dict[str, str]:
    """Return what stands for the markers in the docstrings of linear rankers, which are filled in when imported."""
    if "estimators" not in package.members:
        return {}
    shared = ast.literal_eval(str(package["estimators._linear._SHARED"].value))
    return {marker: dedent(text) for marker, text in shared.items()}


class Docstrings(Extension):
    """Rewrites all docstrings of a package when it has been read."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Rewrite them."""
        places, shared = public_places(pkg), shared_parts(pkg)
        everywhere = short_names(pkg, places)
        for found in objects_of(pkg):
            if found.docstring:
                owner = found if found.is_class else found.parent
                here = places.get(owner.path) if owner else None
                own = {name: f"{here}.{name}" for name in documented(owner)} if owner and here else {}
                text = found.docstring.value
                for marker, part in shared.items():
                    text = text.replace(marker, part)
                found.docstring.value = as_markdown(text, everywhere | own)

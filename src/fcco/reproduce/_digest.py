"""A digest of the code that a function runs: its own definition, and all of this library that it leads to."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LIBRARY = "fcco"
_WITH_BODY = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@cache
def digest(function: Callable[..., Any]) -> str:
    """A hash of the definitions that ``function`` leads to, name by name, in its own package and in this library.

    A name leads to the statement that defines it, that to the names in it, and an imported name to its definition in
    the module that it comes from. Statements of those modules that define no name, such as an entry into a registry,
    count too. So an edit of a kernel changes the hash of all that is computed with it, and an edit of a figure or of a
    sentence beside it does not; nor do comments, docstrings and layout. Other packages, data, and what is looked up by
    a name made at run time are not seen. What has no source in Python has the hash of nothing.

    >>> digest(round) == digest(len), digest(digest) == digest(_parse)
    (True, False)
    """
    function = inspect.unwrap(function)
    if not inspect.isfunction(function):
        return hashlib.sha256().hexdigest()
    trail = _Trail({LIBRARY, function.__module__.split(".")[0]})
    trail.follow(function.__module__, function.__qualname__.split(".")[0])
    lines = [f"{module} {name}: {code}" for (module, name), code in sorted(trail.seen.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class _Module:
    """The statements of a file."""

    defined: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)  # a name: module and name there, "" for itself
    others: list[ast.stmt] = field(default_factory=list)


class _Trail:
    """Definitions that have been met, by module and name, among the modules of some packages."""

    def __init__(self, packages: set[str]) -> None:
        self.packages = packages
        self.seen: dict[tuple[str, str], str] = {}

    def follow(self, module: str, name: str) -> None:
        """Add what a name of a module leads to; "" stands for all of the module."""
        if (module, name) in self.seen or (content := self._read(module)) is None:
            return
        self.seen[module, name] = ""
        if not name:
            for known in (*content.defined, *content.imported):
                self.follow(module, known)
        elif name in content.defined:
            self._enter(module, name, content.defined[name])
        elif self._read(f"{module}.{name}") is not None:
            self.follow(f"{module}.{name}", "")
        elif name in content.imported:
            self.follow(*content.imported[name])
        if content.others and (module, "<others>") not in self.seen:
            self._enter(module, "<others>", content.others)

    def _enter(self, module: str, name: str, statements: list[ast.stmt]) -> None:
        self.seen[module, name] = " ".join(map(ast.dump, statements))
        for statement in statements:
            for at in self._names(module, statement):
                self.follow(*at)

    def _names(self, module: str, statement: ast.stmt) -> Iterator[tuple[str, str]]:
        """Where the names in a statement are defined; of a module with a dot behind it, only what follows the dot."""
        content = self._read(module)
        assert content is not None
        imported = {**content.imported, **dict(_imports(statement))}
        dotted = set()
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
                target = ".".join(filter(None, imported[node.value.id]))
                if self._read(target) is not None:
                    dotted.add(node.value)
                    yield target, node.attr
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node not in dotted:
                yield imported.get(node.id, (module, node.id))

    def _read(self, module: str) -> _Module | None:
        """The content of a module of the packages; None for what is no such module."""
        if module.split(".")[0] not in self.packages:
            return None
        try:
            loaded = sys.modules.get(module)
            origin = getattr(find_spec(module), "origin", None) if loaded is None else getattr(loaded, "__file__", None)
        except (ImportError, ValueError):
            return None
        return _parse(origin) if origin is not None and origin.endswith(".py") else None


@cache
def _parse(path: str) -> _Module:
    found = _Module()
    for statement in ast.parse(Path(path).read_text(encoding="utf-8")).body:
        names = list(_defined(statement))
        if isinstance(statement, ast.Import | ast.ImportFrom):
            found.imported.update(_imports(statement))
        elif names:
            for name in names:
                found.defined.setdefault(name, []).append(_without_docstrings(statement))
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            found.others.append(statement)
    return found


def _without_docstrings(statement: ast.stmt) -> ast.stmt:
    for node in ast.walk(statement):
        if isinstance(node, _WITH_BODY) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return statement


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, _WITH_BODY):
        yield statement.name
    else:
        yield from (n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _imports(statement: ast.stmt) -> Iterator[tuple[str, tuple[str, str]]]:
    """Names that a statement imports, and from where; this library has no relative imports."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.name if alias.asname else alias.name.split(".")[0]
                yield alias.asname or bound, (bound, "")
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, (node.module or "", alias.name)) for alias in node.names)

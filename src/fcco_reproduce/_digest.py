"""A digest of the code that a function runs: its own definition and every definition of this project it leads to."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

LIBRARIES = ("fcco", "fcco_reproduce")
_Place = tuple[str, str]  # a module and a name in it, "" for all of it
_WITH_BODY = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@cache
def digest(function: Callable[..., Any], packages: tuple[str, ...] = ()) -> str:
    """Return a hash of the definitions that ``function`` leads to.

    Names are followed in the function's own package, in ``packages``, in ``fcco`` and in ``fcco_reproduce``.

    A name leads to the statement that defines it, that to the names in it, and an imported name to its definition in
    the module that it comes from. Statements of those modules that define no name, such as an entry into a registry,
    count too. So an edit of a kernel changes the hash of all that is computed with it, and an edit of a figure or of a
    sentence beside it does not; nor do comments, docstrings, messages of exceptions and layout. Other packages, data,
    and what is looked up by a name made at run time are not seen. What has no source in Python has the hash of nothing.

    Examples
    --------
    >>> digest(round) == digest(len), digest(digest) == digest(_parse)
    (True, False)
    """
    function = inspect.unwrap(function)
    if not inspect.isfunction(function):
        return hashlib.sha256().hexdigest()
    trail = _Trail({*LIBRARIES, *packages, function.__module__.split(".")[0]})
    trail.follow(function.__module__, function.__qualname__.split(".")[0])
    return trail.digest()


def digest_modules(modules: Iterable[str], packages: tuple[str, ...] = ()) -> str:
    """Return a hash of all definitions in some modules, and of those that they lead to.

    This is for scripts, whose functions may be looked up by name; otherwise it is as :func:`digest`.

    Parameters
    ----------
    modules : iterable of str
        The names of modules that can be imported, such as those of a benchmark.
    packages : tuple of str
        Other packages to follow names in, besides those of the modules, ``fcco`` and ``fcco_reproduce``.

    Examples
    --------
    >>> digest_modules([__name__]) == digest_modules([__name__, __name__])
    True
    """
    modules = sorted(set(modules))
    trail = _Trail({*LIBRARIES, *packages, *(module.split(".")[0] for module in modules)})
    for module in modules:
        trail.follow(module, "")
    return trail.digest()


@dataclass(frozen=True)
class _Module:
    """The statements of a module."""

    package: str  # that its relative imports start from
    defined: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imported: dict[str, list[_Place]] = field(default_factory=dict)
    others: list[ast.stmt] = field(default_factory=list)


class _Trail:
    """The definitions met so far, by module and name, in the modules of some packages."""

    def __init__(self, packages: set[str]) -> None:
        self.packages = packages
        self.seen: dict[tuple[str, str], str] = {}

    def digest(self) -> str:
        """Return a hash of the definitions."""
        lines = [f"{module} {name}: {code}" for (module, name), code in sorted(self.seen.items())]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def follow(self, module: str, name: str) -> None:
        """Add the definitions that a name of a module leads to; "" means the whole module."""
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
        for place in content.imported.get(name, ()):
            self.follow(*place)
        if content.others and (module, "<others>") not in self.seen:
            self._enter(module, "<others>", content.others)

    def _enter(self, module: str, name: str, statements: list[ast.stmt]) -> None:
        self.seen[module, name] = " ".join(map(ast.dump, statements))
        for statement in statements:
            for place in self._names(module, statement):
                self.follow(*place)

    def _names(self, module: str, statement: ast.stmt) -> Iterator[_Place]:
        """Yield where the names in a statement are defined; for ``module.name``, only that name of the module."""
        content = self._read(module)
        assert content is not None
        inside = _imports(statement, content.package)
        imported, dotted = {**content.imported, **inside}, set()
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                for place in imported.get(node.value.id, ()):
                    target = ".".join(filter(None, place))
                    if self._read(target) is not None:
                        dotted.add(node.value)
                        yield target, node.attr
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node not in dotted:
                yield from inside.get(node.id, [(module, node.id)])

    def _read(self, module: str) -> _Module | None:
        """Return the content of a module of the packages, or None if there is no such module."""
        if module.split(".")[0] not in self.packages:
            return None
        try:
            loaded = sys.modules.get(module)
            origin = getattr(find_spec(module), "origin", None) if loaded is None else getattr(loaded, "__file__", None)
        except (ImportError, ValueError):
            return None
        if origin is None or not origin.endswith(".py"):
            return None
        return _parse(origin, module if Path(origin).stem == "__init__" else module.rpartition(".")[0])


@cache
def _parse(path: str, package: str) -> _Module:
    found = _Module(package)
    for statement in ast.parse(Path(path).read_text(encoding="utf-8")).body:
        names = list(_defined(statement))
        if not isinstance(statement, _WITH_BODY):  # whose imports are their own
            for name, places in _imports(statement, package).items():
                found.imported.setdefault(name, []).extend(places)
        if isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        if names:
            for name in names:
                found.defined.setdefault(name, []).append(_without_texts(statement))
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            found.others.append(statement)
    return found


def _without_texts(statement: ast.stmt) -> ast.stmt:
    """Take docstrings and the messages of exceptions away from a statement, since no result depends on them."""
    for node in ast.walk(statement):
        if isinstance(node, _WITH_BODY) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            node.exc.args = [value for value in node.exc.args if not _is_text(value)]
    return statement


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, _WITH_BODY):
        yield statement.name
    else:
        yield from (n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _imports(statement: ast.stmt, package: str) -> dict[str, list[_Place]]:
    """Return the names that a statement imports and their sources, several if it tries them in turn."""
    found: dict[str, list[_Place]] = {}
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.name if alias.asname else alias.name.split(".")[0]
                found.setdefault(alias.asname or bound, []).append((bound, ""))
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, []).append((source, alias.name))
    return found

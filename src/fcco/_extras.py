"""Packages that only some parts of the library need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Packages whose modules have another name.
_PACKAGES = {"PIL": "pillow", "markdown_it": "markdown-it-py", "sklearn": "scikit-learn"}


def package_of(module: str) -> str:
    """What pip calls the package that a module is of.

    >>> package_of("PIL.Image"), package_of("matplotlib.figure")
    ('pillow', 'matplotlib')
    """
    top = module.split(".")[0]
    return _PACKAGES.get(top, top)


def import_extra(module: str, what: str, extra: str = "reproduce") -> Any:
    """A module of an optional package.

    Args:
        module: its name.
        what: what needs it, for the message.
        extra: which of this library's extras has the package.

    Raises:
        ImportError: the package is not installed.

    >>> import_extra("math", "counting").floor(1.5)
    1
    >>> import_extra("no_such_package.submodule", "counting")
    Traceback (most recent call last):
        ...
    ImportError: counting needs no_such_package: pip install 'fcco[reproduce]'
    """
    try:
        return import_module(module)
    except ImportError as missing:
        message = f"{what} needs {package_of(module)}: pip install 'fcco[{extra}]'"
        raise ImportError(message, name=missing.name) from missing

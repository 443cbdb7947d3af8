"""Packages that only some parts of the library need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any

# Packages whose modules have another name.
_PACKAGES = {"PIL": "pillow", "markdown_it": "markdown-it-py", "sklearn": "scikit-learn"}


def package_of(module: str) -> str:
    """Return pip's name of the package that a module belongs to.

    Examples
    --------
    >>> package_of("PIL.Image"), package_of("matplotlib.figure")
    ('pillow', 'matplotlib')
    """
    top = module.split(".")[0]
    return _PACKAGES.get(top, top)


def import_extra(module: str, what: str, extra: str = "reproduce") -> Any:
    """Import a module of an optional package.

    Parameters
    ----------
    module : str
        Name of the module.
    what : str
        What needs the module, for the message.
    extra : str, default="reproduce"
        The extra of this library that installs the package.

    Returns
    -------
    module
        The module.

    Raises
    ------
    ImportError
        If the package is not installed.

    Examples
    --------
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


def new_axes(what: str, height: float = 0.0) -> Any:
    """Return the axes of a new figure of matplotlib's pyplot.

    Parameters
    ----------
    what : str
        What needs the axes, for the message.
    height : float, default=0.0
        Inches that the figure has at least, if that is more than the usual height.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    figure, ax = import_extra("matplotlib.pyplot", what, "plot").subplots(layout="constrained")
    figure.set_figheight(max(height, figure.get_figheight()))
    return ax


@contextmanager
def progress_bar(shown: bool, total: int, initial: int, label: str) -> Iterator[Callable[[int], Any]]:
    """Show the progress of a loop on stderr.

    Parameters
    ----------
    shown : bool
        If False, nothing is shown, and tqdm is not needed.
    total : int
        Number of steps.
    initial : int
        Number of steps done before.
    label : str
        Text in front of the bar.

    Yields
    ------
    callable
        To be called with the number of steps just done.

    Raises
    ------
    ImportError
        If tqdm is not installed.
    """
    if not shown:
        yield lambda steps: None
        return
    with closing(import_extra("tqdm", "progress=True").tqdm(total=total, initial=initial, desc=label)) as bar:
        yield bar.update

"""What is run, in small TOML files: one for each table or figure, in the folder of its study.

A file names an experiment and holds its settings; a function of the study, its *maker*, turns them into an
:class:`~fcco_reproduce.Experiment`::

    kind = "table"         # which of the study's makers reads the rest
    key = "ii"             # what --only calls it
    name = "ijcnn1"        # what its files are called
    steps = 9501

    [tuning]
    lr = [0.01, 0.03, 0.1]

    [scales.quick]         # what --quick, short for --scale quick, changes: laid over the settings above
    steps = 301
    tuning.lr = [0.03]

Scales are a study's own: every file has "quick", and others may stand beside it, such as "paper". The maker sees plain
dictionaries, the scale already laid over and ``scales`` gone: it never asks which scale it is. What a job needs it
gets from there, as its settings, so that results are stored under the numbers that they were made with.

``--config FILE`` lays a file of the user's over the shipped one of the same ``name``: a changed copy, or only what
differs. A setting that the shipped file does not have, or of another type, is refused.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

Settings = dict[str, Any]
NAMES = ("kind", "key", "name")


def read(path: Path) -> Settings:
    """Read a file of settings.

    Raises
    ------
    ValueError
        If the file cannot be read, is not TOML, or has no ``name``.
    """
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(settings.get("name"), str):
        raise ValueError(f'{path} must name the experiment whose settings it changes, as in name = "ijcnn1"')
    return settings


def at_scale(settings: Settings, scale: str | None, changes: Settings | None = None) -> Settings:
    """Return settings overridden by those of a scale and by the user's changes.

    Parameters
    ----------
    settings : Settings
        The content of a shipped file.
    scale : str or None
        A name among its ``scales``. None applies none.
    changes : Settings or None
        The content of a user's file, which may change scales too.

    Raises
    ------
    ValueError
        If the scale does not exist, or a change names a setting that does not exist.

    Examples
    --------
    >>> shipped = {"name": "squares", "steps": 100, "scales": {"quick": {"steps": 3}}}
    >>> at_scale(shipped, None), at_scale(shipped, "quick")
    ({'name': 'squares', 'steps': 100}, {'name': 'squares', 'steps': 3})
    >>> at_scale(shipped, None, {"name": "squares", "step": 7})
    Traceback (most recent call last):
        ...
    ValueError: the settings of squares have no 'step'; choose from name, steps
    """
    own = {} if changes is None else dict(changes)
    scales, own_scales = settings.get("scales", {}), own.pop("scales", {})
    if scale is not None and scale not in scales:
        raise ValueError(f"the settings of {settings['name']} have no scale {scale!r}; choose from {', '.join(scales)}")
    name = settings["name"]
    plain = {key: value for key, value in settings.items() if key != "scales"}
    plain = _lay_over(plain, scales.get(scale, {}), name, check=False)
    for layer in (own, own_scales.get(scale, {})):
        plain = _lay_over(plain, layer, name)
    return plain


def _lay_over(base: Settings, changes: Settings, where: str, *, check: bool = True) -> Settings:
    merged = dict(base)
    for key, value in changes.items():
        if key not in base:
            raise ValueError(f"the settings of {where} have no {key!r}; choose from {', '.join(base)}")
        old = base[key]
        if key in NAMES and old != value:
            raise ValueError(f"{key} of {where} must stay {old!r}; got {value!r}")
        if check and not _is_like(value, old):
            raise ValueError(f"{key} of {where} must have the type of {old!r}; got {value!r}")
        merged[key] = _lay_over(old, value, f"{where}.{key}", check=check) if isinstance(old, dict) else value
    return merged


def _is_like(value: Any, old: Any) -> bool:
    """Return whether a value may replace another: a non-empty list of like elements, or an int in place of a float."""
    if isinstance(old, list):
        return isinstance(value, list) and (not old or (len(value) > 0 and all(_is_like(one, old[0]) for one in value)))
    if isinstance(old, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(old)

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
    """The content of a file.

    Raises:
        ValueError: it cannot be read, is not TOML, or does not say whose settings it has.
    """
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(settings.get("name"), str):
        raise ValueError(f'{path} must say whose settings it changes, as in name = "ijcnn1"')
    return settings


def at_scale(settings: Settings, scale: str | None, changes: Settings | None = None) -> Settings:
    """Settings with ``changes`` of the user's, and then those of a scale, laid over them.

    Args:
        settings: of a shipped file.
        scale: a name of its ``scales``; None for the settings as they stand.
        changes: of a user's file; may change scales too.

    Raises:
        ValueError: the file has no such scale, or the user's has something that it has not.

    >>> shipped = {"name": "squares", "steps": 100, "scales": {"quick": {"steps": 3}}}
    >>> at_scale(shipped, None), at_scale(shipped, "quick")
    ({'name': 'squares', 'steps': 100}, {'name': 'squares', 'steps': 3})
    >>> at_scale(shipped, None, {"name": "squares", "step": 7})
    Traceback (most recent call last):
        ...
    ValueError: the settings of squares have no 'step', but name, steps
    """
    own = {} if changes is None else dict(changes)
    scales, own_scales = settings.get("scales", {}), own.pop("scales", {})
    if scale is not None and scale not in scales:
        raise ValueError(f"the settings of {settings['name']} have no scale {scale!r}, but {', '.join(scales)}")
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
            raise ValueError(f"the settings of {where} have no {key!r}, but {', '.join(base)}")
        old = base[key]
        if key in NAMES and old != value:
            raise ValueError(f"{key} of {where} is {old!r}, and cannot become {value!r}")
        if check and not _is_like(value, old):
            raise ValueError(f"{key} of {where} must be of the type of {old!r}, got {value!r}")
        merged[key] = _lay_over(old, value, f"{where}.{key}", check=check) if isinstance(old, dict) else value
    return merged


def _is_like(value: Any, old: Any) -> bool:
    """Whether one may stand for the other: a list that is not empty for its like, a whole number for a fraction."""
    if isinstance(old, list):
        return isinstance(value, list) and (not old or (len(value) > 0 and all(_is_like(one, old[0]) for one in value)))
    if isinstance(old, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(old)

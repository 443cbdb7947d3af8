"""The numbers that the paper prints, from the one file that holds them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from fcco_reproduce._methods import CODED, PRINTED

PAPER: dict[str, Any] = tomllib.loads((Path(__file__).parent / "paper.toml").read_text(encoding="utf-8"))


def paper_name(method: str) -> str:
    """Return what the paper calls a method: both forms of SOX are its SOX.

    Examples
    --------
    >>> paper_name("SOX (code)"), paper_name("SOAP")
    ('SOX', 'SOAP')
    """
    return "SOX" if method in (CODED, PRINTED) else method


def published(table: str, data: str, method: str) -> list[float] | None:
    """Return a printed value and, where there is one, its deviation; None if the paper has no such number.

    Examples
    --------
    >>> published("test_ap", "cifar10", "SOX"), published("test_ap", "cifar10", "cross entropy")
    ([0.765, 0.001], None)
    """
    value: list[float] | None = PAPER[table].get(data, {}).get(method)
    return value

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from datasets import server
from fcco_reproduce.datasets import _fetch
from fcco_reproduce.datasets._registry import FILES


@pytest.fixture
def site(monkeypatch) -> Iterator[server.Site]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("pooch.core.time.sleep", lambda _: None)
    with server.running() as site:
        yield site


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    """An empty cache, and no FCCO_DATA."""
    monkeypatch.delenv("FCCO_DATA", raising=False)
    monkeypatch.setattr(_fetch, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def offline(monkeypatch, tmp_path) -> Path:
    """An empty folder that FCCO_DATA names."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FCCO_DATA", str(folder))
    return folder


@pytest.fixture
def publish(monkeypatch) -> Callable[..., None]:
    """Put a small file in the place of a registered one."""

    def put(path: str, content: bytes, folder: Path | None = None, /, **changes: object) -> None:
        facts = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "content": None, "rows": None}
        monkeypatch.setitem(FILES, path, replace(FILES[path], **{**facts, **changes}))
        if folder is not None:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

    return put

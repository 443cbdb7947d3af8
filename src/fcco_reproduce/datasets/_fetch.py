"""Find a file in the folder that ``FCCO_DATA`` names, or in the cache, downloaded once and verified."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fcco._extras import import_extra
from fcco_reproduce.datasets._open import check_rows, naming, open_content
from fcco_reproduce.datasets._registry import FILES, File
from fcco_reproduce.datasets._types import DamagedFileError, Source, State

log = logging.getLogger("fcco.reproduce.datasets")

RETRIES = 3
_COMPRESSED = (".gz", ".bz2")
_DAY = 24 * 60 * 60


def cache_folder() -> Path:
    """Return the folder of downloads, in the platform's cache: ``$XDG_CACHE_HOME/fcco`` or ``~/.cache/fcco`` on Linux.

    Returns
    -------
    Path
        The folder, which need not exist yet.

    Examples
    --------
    >>> cache_folder().name
    'fcco'
    """
    return Path(_import_pooch().os_cache("fcco"))


def held(path: str) -> bool:
    """Return whether ``FCCO_DATA`` is set and its folder has this file of the registry."""
    return _under_fcco_data(FILES[path]) is not None


def locate(path: str) -> Source:
    """Return a verified file of the registry, from ``FCCO_DATA`` if that is set, else from the cache or the web.

    Raises
    ------
    FileNotFoundError
        If ``FCCO_DATA`` is set and its folder has no such file; or if it is not set, and the file was never published
        or has no known checksum.
    DamagedFileError
        If the file is not the published one.
    OSError
        If it could not be downloaded.
    """
    file = FILES[path]
    if os.environ.get("FCCO_DATA"):
        found = _under_fcco_data(file)
        if found is None:
            raise FileNotFoundError(_advice(file))
        return Source(found, verify(found, file))
    if not file.urls:
        raise FileNotFoundError(f"{path} was never published: set FCCO_DATA to a folder that has it")
    return fetch(file, cache_folder())


def _under_fcco_data(file: File) -> Path | None:
    root = os.environ.get("FCCO_DATA")
    if not root:
        return None
    plain = file.path.removesuffix(".gz").removesuffix(".bz2")
    names = dict.fromkeys([file.path, plain, *(plain + suffix for suffix in _COMPRESSED)])
    return next((path for path in (Path(root) / name for name in names) if path.is_file()), None)


def _advice(file: File) -> str:
    advice = f"; put it there (from {file.urls[0]}), or unset FCCO_DATA to download it" if file.urls else ""
    return f"FCCO_DATA is {os.environ['FCCO_DATA']}, which has no {file.path}{advice}"


def verify(path: Path, file: File, downloaded: bool = False) -> State:
    """Return how far the file at ``path`` is known to be ``file``.

    Parameters
    ----------
    path : Path
        The file to check.
    file : File
        The file that it should be.
    downloaded : bool
        Whether the file was downloaded. It must then be the published file, whereas a user's file may also be a known
        copy or have no known checksum.

    Raises
    ------
    DamagedFileError
        If the file at ``path`` is not ``file``.
    """
    digest = _digest(path.open("rb"))
    if digest == file.sha256:
        return "published"
    if not downloaded and digest == file.rebuilt:
        return "subset" if file.subset else "rebuilt"
    if file.content is not None:
        with naming(path):
            if _digest(open_content(path)) == file.content:
                return "same content"
    size = path.stat().st_size
    if file.size is not None and size < file.size:
        raise DamagedFileError(f"{path} is damaged: it has {size:,} of {file.size:,} bytes")
    if downloaded or file.sha256 or file.content or not file.urls:
        raise DamagedFileError(f"{path} is damaged: its sha256 is {digest}, {_wanted(file)}")
    _check_unknown(path, file, size)
    return "unverified"


def _check_unknown(path: Path, file: File, size: int) -> None:
    """Check the size and the rows of a file whose checksum is not known."""
    if file.size not in (None, size):
        raise DamagedFileError(f"{path} is damaged: it has {size:,} bytes, {file.size:,} were published")
    with naming(path), open_content(path) as lines:
        check_rows(path, sum(1 for _ in lines), file.rows)


def _wanted(file: File) -> str:
    known = {"sha256": file.sha256, "sha256 of its content": file.content, "copy's": file.rebuilt}
    return "not " + ", nor ".join(f"{value} ({kind})" for kind, value in known.items() if value is not None)


def _digest(stream: IO[bytes]) -> str:
    with stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def fetch(file: File, folder: Path) -> Source:
    """Return ``file`` in ``folder``, after downloading it if it is missing or damaged.

    A download goes to a file of another name, is verified there and then renamed. The file is therefore always
    complete, and several processes can download it at the same time.

    Raises
    ------
    FileNotFoundError
        If the file is missing and has no checksum to verify a download by.
    OSError
        If it could not be downloaded.
    """
    path = folder / file.path
    if not (file.sha256 or file.content):
        if path.exists():
            return Source(path, verify(path, file))
        raise FileNotFoundError(
            f"no checksum of {file.path} is known, so it is not downloaded: get it from {file.urls[0]}, as {path}"
        )
    if path.exists():
        try:
            return Source(path, verify(path, file, downloaded=True))
        except DamagedFileError as damage:
            log.warning("%s; downloading it again", damage)
            path.unlink(missing_ok=True)
    _sweep(path.parent)
    failures = []
    for url in file.urls:
        try:
            return _download(file, url, folder)
        except (DamagedFileError, OSError) as failure:
            failures.append(f"{url}: {failure}")
    raise OSError(f"could not download {file.path}; " + "; ".join(failures))


def _download(file: File, url: str, folder: Path) -> Source:
    pooch = _import_pooch()
    http = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(), chunk_size=1 << 16, headers={"Accept-Encoding": "identity"}
    )
    states = []

    def download_and_verify(url: str, output_file: str, pooch: Any) -> None:
        http(url, output_file, pooch)
        states.append(verify(Path(output_file), file, downloaded=True))

    store = pooch.create(
        path=folder, base_url="", registry={file.path: None}, urls={file.path: url}, retry_if_failed=RETRIES
    )
    found = Path(store.fetch(file.path, downloader=download_and_verify))
    # Another process may have been first: then nothing was downloaded here.
    return Source(found, states[-1] if states else verify(found, file, downloaded=True))


def _sweep(folder: Path) -> None:
    """Remove what interrupted downloads left behind more than a day ago."""
    for leftover in folder.glob("tmp*"):
        with suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > _DAY:
                leftover.unlink()


def _import_pooch() -> Any:
    return import_extra("pooch", "a data set that is not in FCCO_DATA")

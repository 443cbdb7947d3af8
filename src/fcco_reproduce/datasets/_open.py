"""Opening files by what they hold, not by what they are called, and naming the file in whatever goes wrong."""

from __future__ import annotations

import bz2
import gzip
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from fcco_reproduce.datasets._types import DamagedFileError

_NOT_OF_ITS_FORMAT = (EOFError, ValueError, struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors that say a file is not of its format, as ``DamagedFileError`` that names it."""
    try:
        yield
    except DamagedFileError:
        raise
    except _NOT_OF_ITS_FORMAT as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        # What gzip and bz2 raise about bytes, not about the disk.
        raise DamagedFileError(f"{path} cannot be read: {error}") from error


def open_content(path: Path) -> IO[bytes]:
    """The content of a file, decompressed if it is a gzip, a bzip2, or a zip of one file."""
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(path))
    if magic.startswith(b"BZh"):
        return cast(IO[bytes], bz2.open(path))
    if magic == b"PK\x03\x04":
        archive = zipfile.ZipFile(path)
        names = archive.namelist()
        if len(names) != 1:
            raise DamagedFileError(f"{path} must be a zip of one file, it has {', '.join(names)}")
        return archive.open(names[0])
    return path.open("rb")


def check_rows(path: Path, got: int, wanted: int | None) -> None:
    """Refuse a file that has not the published number of rows."""
    if wanted is not None and got != wanted:
        raise DamagedFileError(f"{path} has {got:,} rows, {wanted:,} were published")

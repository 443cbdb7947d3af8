"""Downloads under every accident, the cache, and the folder of FCCO_DATA."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fcco_reproduce.datasets import DamagedFileError, load_ijcnn1, load_sensorless, read_libsvm
from fcco_reproduce.datasets._fetch import RETRIES, cache_folder, fetch, locate, verify
from fcco_reproduce.datasets._images import read_webp
from fcco_reproduce.datasets._registry import FILES, File
from fcco_reproduce.datasets._survival import read_arff, read_hdf5

TEXT = b"".join(b"%d 1:0.5\n" % (i % 2) for i in range(20_000))
SHA256 = hashlib.sha256(TEXT).hexdigest()
CORPSE = "import sys; from pathlib import Path; from fcco_reproduce.datasets._fetch import fetch; "


def file_at(*urls: str, **facts: object) -> File:
    return File("set/file.txt", urls, **{"sha256": SHA256, "size": len(TEXT), **facts})


def leftovers(folder):
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "file.txt"]


def test_a_file_is_downloaded_once_and_then_read_from_the_cache(site, tmp_path):
    file = file_at(site.serve("/a", TEXT))
    first, second = fetch(file, tmp_path), fetch(file, tmp_path)
    assert first == second
    assert first.path == tmp_path / "set/file.txt"
    assert first.path.read_bytes() == TEXT
    assert first.state == "published"
    assert site.requests == ["/a"]
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("accident", ["dropped", "cut", "wrong", "missing"])
def test_an_accident_is_tried_again(site, tmp_path, accident):
    file = file_at(site.serve("/a", TEXT, accident, accident, "whole"))
    assert fetch(file, tmp_path).path.read_bytes() == TEXT
    assert len(site.requests) == 3
    assert not leftovers(tmp_path)


@pytest.mark.parametrize(
    ("accident", "reason"),
    [
        ("dropped", "IncompleteRead"),
        ("cut", f"it has {len(TEXT) // 2:,} of {len(TEXT):,} bytes"),
        ("wrong", re.escape(f"its sha256 is {hashlib.sha256(bytes(len(TEXT))).hexdigest()}, not {SHA256}")),
        ("missing", "404"),
    ],
)
def test_a_lasting_accident_is_named_and_leaves_nothing(site, tmp_path, accident, reason):
    file = file_at(site.serve("/a", TEXT, accident))
    with pytest.raises(OSError, match=rf"could not download set/file.txt; {site.url}/a: .*{reason}"):
        fetch(file, tmp_path)
    assert len(site.requests) == 1 + RETRIES
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_second_address_is_tried_after_the_first(site, tmp_path):
    file = file_at(site.serve("/a", b"", "missing"), site.serve("/b", TEXT))
    assert fetch(file, tmp_path).path.read_bytes() == TEXT
    assert site.requests == ["/a"] * (1 + RETRIES) + ["/b"]


def test_without_a_checksum_nothing_is_downloaded(site, tmp_path):
    """A user can put the file there; that it is whole is seen by its rows."""
    file, path = file_at(site.serve("/a", TEXT), sha256=None, size=None, rows=20_000), tmp_path / "set/file.txt"
    with pytest.raises(FileNotFoundError, match=rf"not downloaded: get it from {site.url}/a, as {path}"):
        fetch(file, tmp_path)
    assert site.requests == []
    path.parent.mkdir()
    path.write_bytes(TEXT)
    assert fetch(file, tmp_path).state == "unverified"
    path.write_bytes(TEXT[: len(TEXT) // 2])
    with pytest.raises(DamagedFileError, match="has 10,000 rows, 20,000 were published"):
        fetch(file, tmp_path)


def test_other_compression_of_the_same_content_is_accepted(site, tmp_path):
    file = file_at(site.serve("/a", bz2.compress(TEXT)), sha256="0" * 64, size=None, content=SHA256)
    assert fetch(file, tmp_path).state == "same content"


def test_a_rebuilt_copy_is_not_accepted_from_the_web(site, tmp_path):
    file = file_at(site.serve("/a", TEXT), sha256="0" * 64, rebuilt=SHA256)
    with pytest.raises(OSError, match=f"its sha256 is {SHA256}, not {'0' * 64}"):
        fetch(file, tmp_path)


def test_a_damaged_cache_is_downloaded_again(site, tmp_path, caplog):
    file = file_at(site.serve("/a", TEXT))
    path = tmp_path / "set/file.txt"
    path.parent.mkdir()
    path.write_bytes(TEXT[:100])
    with caplog.at_level("WARNING", logger="fcco"):
        fetch(file, tmp_path)
    assert re.search(r"file.txt is damaged: it has 100 of .* bytes; downloading it again", caplog.text)
    assert path.read_bytes() == TEXT


def test_many_at_once_all_find_the_whole_file(site, tmp_path):
    crowd = 6
    site.crowd = threading.Barrier(crowd)
    file = file_at(site.serve("/a", TEXT, "together"))
    with ThreadPoolExecutor(crowd) as pool:
        found = list(pool.map(lambda _: fetch(file, tmp_path).path.read_bytes(), range(crowd)))
    assert found == [TEXT] * crowd
    assert len(site.requests) == crowd
    assert not leftovers(tmp_path)


def test_a_process_killed_in_mid_download_leaves_no_file(site, tmp_path):
    file = file_at(site.serve("/a", TEXT, "stalled", "whole"))
    code = f"from fcco_reproduce.datasets._registry import File; fetch({file!r}, Path({str(tmp_path)!r}))"
    with subprocess.Popen([sys.executable, "-c", CORPSE + code], env={**os.environ, "no_proxy": "*"}) as process:
        deadline = time.monotonic() + 120
        while not any(path.stat().st_size for path in leftovers(tmp_path)):
            assert process.poll() is None, "the download ended by itself"
            assert time.monotonic() < deadline, "the download did not start"
            site.resume.wait(0.02)
        process.kill()
    assert not (tmp_path / "set/file.txt").exists()
    (corpse,) = leftovers(tmp_path)
    os.utime(corpse, (0, 0))
    assert fetch(file, tmp_path).path.read_bytes() == TEXT
    assert not leftovers(tmp_path), "an old leftover is swept away"


def test_a_fresh_leftover_may_be_a_download_and_stays(site, tmp_path):
    running = tmp_path / "set/tmp123"
    running.parent.mkdir()
    running.write_bytes(b"half")
    fetch(file_at(site.serve("/a", TEXT)), tmp_path)
    assert leftovers(tmp_path) == [running]


CACHES = {"linux": ".cache/fcco", "darwin": "Library/Caches/fcco"}


@pytest.mark.skipif(sys.platform not in CACHES, reason="the home folder is not in the environment there")
def test_the_cache_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / CACHES[sys.platform]


@pytest.mark.skipif(sys.platform != "linux", reason="the variable is one of Linux")
def test_the_cache_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fcco"


def test_locate_downloads_the_published_form(site, cache, monkeypatch):
    path = "ijcnn1/ijcnn1.tr.bz2"
    url = site.serve("/tr", bz2.compress(TEXT))
    monkeypatch.setitem(FILES, path, replace(FILES[path], urls=(url,), content=SHA256))
    assert locate(path).path == cache / path


def test_an_empty_fcco_data_is_not_set(monkeypatch, cache):
    monkeypatch.setenv("FCCO_DATA", "")
    with pytest.raises(FileNotFoundError, match="was never published"):
        load_sensorless("head")


@pytest.mark.parametrize("name", ["ijcnn1.tr.bz2", "ijcnn1.tr.gz", "ijcnn1.tr"])
def test_fcco_data_may_hold_any_compression(offline, publish, name):
    compress = {".bz2": bz2.compress, ".gz": gzip.compress}.get(name[name.rindex(".") :], bytes)
    content = b"1 1:0.5\n-1 22:2\n"
    path = "ijcnn1/ijcnn1.tr.bz2"
    publish(path, content, sha256=None, size=None, content=hashlib.sha256(content).hexdigest())
    (offline / "ijcnn1").mkdir()
    (offline / "ijcnn1" / name).write_bytes(compress(content))
    data = load_ijcnn1("tr")
    assert data.y.tolist() == [1, 0]
    assert data.sources[0].path == offline / "ijcnn1" / name
    assert data.sources[0].state == "same content"


def test_fcco_data_without_the_file_says_where_to_get_it(offline):
    url = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/ijcnn1.tr.bz2"
    with pytest.raises(FileNotFoundError, match=rf"{offline}, which has no ijcnn1/ijcnn1.tr.bz2; .*{url}"):
        load_ijcnn1("tr")


def test_what_was_never_published_is_not_downloaded(cache):
    with pytest.raises(FileNotFoundError, match=r"sensorless_balanced2200.txt.gz was never published: set FCCO_DATA"):
        load_sensorless("balanced")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-10], r"cannot be read: Compressed file ended before the end-of-stream marker"),
        (
            lambda content: bz2.compress(b"1 1:1\n"),
            r"is damaged: its sha256 is [0-9a-f]{64}, not [0-9a-f]{64} \(sha256 of",
        ),
        (lambda content: b"BZh9" + bytes(40), r"cannot be read: Invalid data stream"),
        (lambda content: b"", r"is damaged"),
    ],
)
def test_damage_under_fcco_data_is_named(offline, publish, damage, message):
    path = "ijcnn1/ijcnn1.tr.bz2"
    publish(path, damage(bz2.compress(TEXT)), offline, sha256=None, size=None, content=SHA256)
    with pytest.raises(DamagedFileError, match=rf"{offline}/ijcnn1/ijcnn1\.tr\.bz2 {message}"):
        load_ijcnn1("tr")


@pytest.mark.parametrize("known", ["sha256", "content"])
def test_a_download_is_verified_before_anybody_finds_it(site, tmp_path, monkeypatch, known):
    """And once more whenever it is found."""
    file = file_at(site.serve("/a", TEXT), **{"sha256": None, known: SHA256})
    path, seen = tmp_path / "set/file.txt", []

    def watched(where, *arguments, **options):
        seen.append((path.exists(), where == path))
        return verify(where, *arguments, **options)

    monkeypatch.setattr("fcco_reproduce.datasets._fetch.verify", watched)
    fetch(file, tmp_path)
    fetch(file, tmp_path)
    assert seen == [(False, False), (True, True)]


def test_a_download_is_the_published_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(TEXT)
    for facts in ({}, {"rebuilt": SHA256}):
        with pytest.raises(DamagedFileError):
            verify(path, File("file", ("https://x",), **facts), downloaded=True)


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_every_download_has_a_checksum(file, monkeypatch, tmp_path):
    """Those that have none are not downloaded; copies that nobody published are known by theirs."""
    monkeypatch.setattr("fcco_reproduce.datasets._fetch._download", lambda file, *_: file)
    without = {"sensorless/Sensorless_drive_diagnosis.txt", "usps/zip.train.gz", "usps/zip.test.gz"}
    if file.path in without:
        with pytest.raises(FileNotFoundError, match=r"no checksum of .* is known, so it is not downloaded"):
            fetch(file, tmp_path)
    else:
        assert file.sha256 or file.content if file.urls else file.rebuilt


def test_checksums_and_addresses_have_their_form():
    digests = [value for file in FILES.values() for value in (file.sha256, file.content, file.rebuilt) if value]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    assert all(url.startswith("https://") for file in FILES.values() for url in file.urls)


@pytest.mark.parametrize(
    ("module", "read", "package"),
    [
        ("pooch", lambda: locate("ijcnn1/ijcnn1.tr.bz2"), "pooch"),
        ("sklearn.datasets", lambda: read_libsvm("x"), "scikit-learn"),
        ("scipy.io.arff", lambda: read_arff("x"), "scipy"),
        ("h5py", lambda: read_hdf5("x"), "h5py"),
        ("PIL.Image", lambda: read_webp("x"), "pillow"),
    ],
)
def test_a_package_that_is_missing_is_named(module, read, package, monkeypatch):
    monkeypatch.delenv("FCCO_DATA", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"needs {package}: pip install 'fcco\[reproduce\]'"):
        read()


def test_nothing_heavy_is_imported_before_it_is_needed():
    heavy = "{'h5py', 'pooch', 'requests', 'sklearn', 'scipy', 'PIL'}"
    code = f"import sys, fcco_reproduce.datasets; print(*{heavy} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []

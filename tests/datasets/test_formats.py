"""The readers: what they return, and that what is wrong with a file is said with its name."""

from __future__ import annotations

import gzip
import zipfile

import numpy as np
import pytest

from datasets.published import hdf5, idx
from fcco_reproduce.datasets import DamagedFileError, load_letor, read_idx, read_letor, read_libsvm
from fcco_reproduce.datasets._images import parse_binary
from fcco_reproduce.datasets._open import open_content
from fcco_reproduce.datasets._survival import read_arff, read_csv, read_hdf5

RNG = np.random.default_rng(0)


@pytest.fixture
def write(tmp_path):
    def write(content, name="file"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_libsvm(write):
    x, y = read_libsvm(write("-1.0 2:0.5 4:-1e-3\n+1 1:2\n"), features=5)
    assert x.tolist() == [[0, 0.5, 0, np.float32(-1e-3), 0], [2, 0, 0, 0, 0]]
    assert x.dtype == np.float32
    assert y.tolist() == [-1, 1]


@pytest.mark.parametrize("text", ["1 1:2\n1 3:", "1 1:a\n", "a 1:1\n", "1 1:2 1:3\n", "1 5:1\n", "1 0:1\n", "1 -1:1\n"])
def test_libsvm_refuses_by_name(write, text):
    path = write(text)
    with pytest.raises(DamagedFileError, match=f"{path} cannot be read"):
        read_libsvm(path, features=3)


def test_letor(write):
    text = "2 qid:10 1:0.5 2:1 #docid = GX1\n0 qid:10 2:1 #docid = GX2\n1 qid:3 1:1\n"
    for content in (text.encode(), gzip.compress(text.encode())):
        data = load_letor(write(content), features=3)
        assert data.x.tolist() == [[0.5, 1, 0], [0, 1, 0], [1, 0, 0]]
        assert data.y.tolist() == [2, 0, 1]
        assert data.query.tolist() == [0, 0, 1]
        assert (data.x.dtype, data.y.dtype) == (np.float32, np.float32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 qid:1 1:1\n0 1:1\n", "cannot be read"),
        ("1 1:1\n", "cannot be read"),
        ("1 qid:1 1:1\n0 qid:2 1:1\n1 qid:1 1:2\n", "has the rows of query 1 in more than one place"),
        (gzip.compress(b"1 qid:1 1:1\n" * 99, mtime=0)[:-9], "cannot be read: Compressed file ended"),
    ],
)
def test_letor_refuses_by_name(write, text, message):
    path = write(text)
    with pytest.raises(DamagedFileError, match=f"{path} {message}"):
        read_letor(path)


def test_a_file_that_is_not_there_is_no_damaged_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_letor(tmp_path / "none")


@pytest.mark.parametrize("shape", [(7,), (3, 2), (2, 4, 5)])
def test_idx_round_trip(write, shape):
    array = RNG.integers(0, 256, shape, dtype=np.uint8)
    for content in (idx(array), gzip.compress(idx(array))):
        read = read_idx(write(content))
        assert np.array_equal(read, array)
        assert read.flags.writeable


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c[:-1],
        lambda c: c + b"\0",
        lambda c: b"\1" + c[1:],
        lambda c: c[:3],
        lambda c: c[:2] + b"\x0d" + c[3:],
    ],
)
def test_idx_refuses_by_name(write, change):
    path = write(change(idx(np.zeros((2, 3), np.uint8))))
    with pytest.raises(DamagedFileError, match=f"{path} cannot be read"):
        read_idx(path)


def test_content_of_a_zip_is_its_only_file(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one.txt", "1")
    with open_content(path) as file:
        assert file.read() == b"1"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("two.txt", "2")
    with pytest.raises(DamagedFileError, match=r"a.zip must be a zip of one file, it has one.txt, two.txt"):
        open_content(path)


def test_binary_records_refuse_what_is_cut_or_out_of_range():
    record = bytes([3, 42]) + bytes(range(256)) * 12
    x, labels = parse_binary(record * 2, (20, 100))
    assert labels.tolist() == [[3, 42]] * 2
    assert x[1, 0, 0, :3].tolist() == [0, 1, 2]
    for wrong, message in [(record[:-1], "whole number"), (b"", "whole number"), (b"\x14" + record[1:], "label 20")]:
        with pytest.raises(ValueError, match=message):
            parse_binary(wrong, (20, 100))


@pytest.mark.parametrize("order", "<>")
def test_hdf5_round_trip(write, order):
    arrays = {"x": RNG.random((5, 3)).astype(f"{order}f4"), "t": RNG.random(5), "e": np.arange(5, dtype=f"{order}i4")}
    path = write(hdf5({"train": arrays, "test": {"x": arrays["x"][:2]}}))
    for name, array in zip(arrays, read_hdf5(path, "train/x", "train/t", "train/e"), strict=True):
        assert np.array_equal(array, arrays[name])
    with pytest.raises(DamagedFileError, match=f"{path} cannot be read: it has no array test/t"):
        read_hdf5(path, "test/x", "test/t")
    with pytest.raises(DamagedFileError, match=f"{path} cannot be read: it has no array test"):
        read_hdf5(path, "test")


def test_hdf5_cut_anywhere_is_refused_by_name(write):
    whole = hdf5({"train": {"x": np.arange(4.0)}})
    for length in range(0, len(whole), 97):
        path = write(whole[:length])
        with pytest.raises(DamagedFileError, match=f"{path} cannot be read"):
            read_hdf5(path, "train/x")


def test_csv_has_nan_where_nothing_stands(write):
    columns = read_csv(write('"a","b"\n1,\n"0",2.5\n'))
    assert columns["a"].tolist() == [1, 0]
    assert np.array_equal(columns["b"], [np.nan, 2.5], equal_nan=True)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n3\n", "a,b\n1,2,3\n", "a\nyes\n"])
def test_csv_refuses_by_name(write, text):
    path = write(text)
    with pytest.raises(DamagedFileError, match=f"{path} cannot be read"):
        read_csv(path)


def test_arff_encodes_levels_and_gaps(write):
    text = "@relation r\n@attribute size numeric\n@attribute grade {I,II,III}\n@data\n1,I\n?,III\n2,?\n"
    columns = read_arff(write(text))
    nan = np.nan
    assert list(columns) == ["size", "grade=II", "grade=III"]
    assert np.array_equal(np.stack(list(columns.values())), [[1, nan, 2], [0, 0, nan], [0, 1, nan]], equal_nan=True)


@pytest.mark.parametrize(
    "text", ["@relation r\n@attribute a {x,y}\n@data\nz\n", "@relation r\n@attribute a numeric\n@data\nb\n"]
)
def test_arff_refuses_by_name(write, text):
    path = write(text)
    with pytest.raises(DamagedFileError, match=f"{path} cannot be read"):
        read_arff(path)

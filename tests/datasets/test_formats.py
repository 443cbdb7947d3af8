"""The readers: what they return, and that what is wrong with a file is said with its name."""

from __future__ import annotations

import gzip
import os
import pickle
import zipfile

import numpy as np
import pytest

from datasets.published import Hdf5, idx, pickled
from fcco.datasets import DamagedFileError, load_letor, read_idx, read_letor, read_libsvm
from fcco.datasets._hdf5 import read_hdf5
from fcco.datasets._images import parse_binary, parse_pickle
from fcco.datasets._open import open_content
from fcco.datasets._pickle import load_plain
from fcco.datasets._survival import read_arff, read_csv

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
        (gzip.compress(b"1 qid:1 1:1\n" * 99)[:-9], "cannot be read: Compressed file ended"),
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


@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: c + b"\0", lambda c: b"\1" + c[1:], lambda c: c[:3]])
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


def test_a_pickle_of_plain_data_is_read():
    value = {b"labels": [3, -1], b"name": b"batch", b"data": RNG.integers(0, 256, (2, 3072), dtype=np.uint8)}
    read = load_plain(pickled(value))
    assert np.array_equal(read.pop(b"data"), value.pop(b"data"))
    assert read == value
    modern = load_plain(pickle.dumps({"x": np.arange(6, dtype=np.uint8).reshape(2, 3)}, protocol=4))
    assert modern["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


class _Call:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (_Call(os.system, "touch {}"), f"{os.system.__module__}.system"),
        (_Call(eval, "open('{}', 'w')"), r"builtin\S*\.eval"),
        (_Call(getattr, [], "append"), r"builtin\S*\.getattr"),
        (_Call(np.load, "{}"), r"numpy\.load"),
        (np.zeros(2, np.float64), "f8|_codecs.encode"),
        (np.array([None], object), "O8|_codecs.encode"),
        (np.float64(1), r"numpy\S*\.scalar"),
        ({"a": [1.5]}, "float"),
        ([(1, 2)], "tuple"),
        ({1: {2}}, "set"),
        (DamagedFileError, r"fcco\.datasets\._types\.DamagedFileError"),
    ],
)
def test_a_pickle_that_asks_for_more_is_refused_by_name(tmp_path, value, name):
    trap = tmp_path / "trap"
    if isinstance(value, _Call):
        function, arguments = value.call
        value = _Call(function, *(a.format(trap) if isinstance(a, str) else a for a in arguments))
    for protocol in (0, 2, 4):
        with pytest.raises(ValueError, match=f"refused a pickle: .*({name})"):
            load_plain(pickle.dumps(value, protocol=protocol))
    assert not trap.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        pickled({b"labels": [1]})[:-3],
        b"not a pickle",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n}U\x01aK\x01sb.",  # to change what the name stands for
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R.",  # an array without content
        b"\x80\x02cnumpy\nndarray\n(K\x05tR.",  # an array of five elements of what was in memory
        b"\x80\x02](h\x00e.",
        b"\x80\x02]q\x00h\x00a.",  # a list in itself
        b"\x80\x02Pid\n.",
    ],
)
def test_a_broken_pickle_is_refused(data):
    with pytest.raises(ValueError, match="a pickle"):
        load_plain(data)


@pytest.mark.parametrize(
    "batch",
    [
        [1],
        {b"data": np.zeros((1, 3072), np.uint8)},
        {b"labels": [1], b"data": np.zeros((1, 3071), np.uint8)},
        {b"labels": [1, 2], b"data": np.zeros((1, 3072), np.uint8)},
        {b"labels": [10], b"data": np.zeros((1, 3072), np.uint8)},
        {b"labels": [-1], b"data": np.zeros((1, 3072), np.uint8)},
        {b"labels": [b"1"], b"data": np.zeros((1, 3072), np.uint8)},
        {b"labels": [1], b"data": b"0"},
    ],
)
def test_a_batch_of_another_form_is_refused(batch):
    with pytest.raises(ValueError, match=r"a pickle|label"):
        parse_pickle(pickled(batch), b"labels", 10)


def test_hdf5_round_trip(write):
    arrays = {"x": RNG.random((5, 3)).astype("<f4"), "t": RNG.random(5), "e": np.arange(5, dtype="<i4")}
    read = read_hdf5(write(bytes(Hdf5({"train": arrays, "test": {"x": arrays["x"][:2]}}).data)))
    assert set(read) == {"train/x", "train/t", "train/e", "test/x"}
    for name, array in arrays.items():
        assert read[f"train/{name}"].dtype == array.dtype
        assert np.array_equal(read[f"train/{name}"], array)


def test_hdf5_cut_anywhere_is_refused_by_name(write):
    whole = bytes(Hdf5({"train": {"x": np.arange(4.0)}}).data)
    for length in range(0, len(whole), 7):
        path = write(whole[:length])
        with pytest.raises(DamagedFileError, match=f"{path} cannot be read"):
            read_hdf5(path)


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

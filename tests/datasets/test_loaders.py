"""Every loader, on a small file of the published format that stands in the place of the published one."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import zipfile

import numpy as np
import pytest
import torch

from datasets.published import hdf5, idx, tar
from fcco_reproduce import datasets
from fcco_reproduce.datasets import DamagedFileError
from fcco_reproduce.datasets._registry import FILES
from fcco_reproduce.datasets._survival import DEEPSURV, TABLES

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (4, 3072), dtype=np.uint8)
IMAGES = PIXELS.reshape(4, 3, 32, 32)
FINE, COARSE = [99, 0, 5, 5], [19, 0, 1, 1]
FINE_NAMES, COARSE_NAMES = [f"fine_{i}" for i in range(100)], [f"coarse_{i}" for i in range(20)]


def lines(names):
    return "\n".join(names).encode() + b"\n"


def cifar100_binary():
    records = b"".join(bytes([c, f]) + p.tobytes() for c, f, p in zip(COARSE, FINE, PIXELS, strict=True))
    members = {
        "train.bin": records,
        "test.bin": records[: 2 * 3074],
        "fine_label_names.txt": lines(FINE_NAMES),
        "coarse_label_names.txt": lines(COARSE_NAMES),
    }
    return tar({f"cifar-100-binary/{name}": content for name, content in members.items()})


def cifar10_binary():
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    records = [bytes([label]) + PIXELS[label % 4].tobytes() for label in range(len(names))]
    return tar({f"cifar-10-batches-bin/{name}.bin": record for name, record in zip(names, records, strict=True)})


@pytest.mark.parametrize("coarse", [False, True])
def test_cifar100(offline, publish, coarse):
    publish("cifar100/cifar-100-binary.tar.gz", cifar100_binary(), offline)
    data = datasets.load_cifar100("train", coarse=coarse)
    assert np.array_equal(data.x, IMAGES)
    assert data.y.tolist() == (COARSE if coarse else FINE)
    assert data.classes == tuple(COARSE_NAMES if coarse else FINE_NAMES)
    assert np.array_equal(datasets.load_cifar100("test").x, IMAGES[:2])


def test_cifar100_is_downloaded_once_for_both_parts(site, cache, publish):
    url = site.serve("/binary", cifar100_binary())
    publish("cifar100/cifar-100-binary.tar.gz", site.files["/binary"], urls=(url,))
    assert datasets.load_cifar100("test").y.tolist() == FINE[:2]
    assert datasets.load_cifar100("train").y.tolist() == FINE
    assert site.requests == ["/binary"]


def test_cifar10(offline, publish):
    publish("cifar10/cifar-10-binary.tar.gz", cifar10_binary(), offline)
    train, test = datasets.load_cifar10("train"), datasets.load_cifar10("test")
    assert np.array_equal(train.x, IMAGES[[0, 1, 2, 3, 0]])
    assert train.y.tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(test.x, IMAGES[[1]])
    assert test.classes[test.y[0]] == "dog"


def test_cifar10_from_lossless_strips(offline, publish):
    image = pytest.importorskip("PIL.Image")
    pixels = RNG.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("labels.bin", bytes(i % 10 for i in range(20)))
        for i, picture in enumerate(pixels):
            strip = io.BytesIO()
            image.fromarray(picture.transpose(1, 2, 0)).save(strip, "webp", lossless=True)
            archive.writestr(f"{i:02}.webp", strip.getvalue())
    content = buffer.getvalue()
    publish("cifar10/test_batch.webp.zip", content, offline, sha256=None, rebuilt=hashlib.sha256(content).hexdigest())
    data = datasets.load_cifar10("test")
    assert np.array_equal(data.x, pixels)
    assert data.y.tolist() == [i % 10 for i in range(20)]
    assert data.sources[0].state == "rebuilt"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tar({"cifar-100-binary/test.bin": b""}), "it has no train.bin"),
        (tar({"a/train.bin": bytes(3074)}), "it has no fine_label_names.txt"),
        (tar({"a/train.bin": bytes(3073)}), "not a whole number of records"),
        (cifar100_binary()[:-2000], "cannot be read"),
    ],
    ids=["no batch", "no names", "half a record", "cut short"],
)
def test_an_archive_of_another_form_is_named(offline, publish, content, message):
    publish("cifar100/cifar-100-binary.tar.gz", content, offline)
    with pytest.raises(DamagedFileError, match=rf"{offline}/cifar100/cifar-100-binary.tar.gz .*{message}"):
        datasets.load_cifar100("train")


@pytest.mark.parametrize("part", ["train", "test"])
def test_mnist(offline, publish, part):
    x, y = RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8), np.array([7, 0, 9], np.uint8)
    prefix = {"train": "train", "test": "t10k"}[part]
    publish(f"mnist/{prefix}-images-idx3-ubyte.gz", gzip.compress(idx(x)), offline)
    publish(f"mnist/{prefix}-labels-idx1-ubyte.gz", gzip.compress(idx(y)), offline)
    data = datasets.load_mnist(part)
    assert np.array_equal(data.x, x)
    assert data.y.tolist() == [7, 0, 9]
    publish(f"mnist/{prefix}-labels-idx1-ubyte.gz", gzip.compress(idx(y[:2])), offline)
    with pytest.raises(DamagedFileError, match=rf"{prefix}-labels-idx1-ubyte.gz has 2 rows, 3 were published"):
        datasets.load_mnist(part)


SENSORLESS = "".join(f"{' '.join(f'{label}e-05' for _ in range(48))} {label}\n" for label in range(1, 12)).encode()


def zipped(content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("Sensorless_drive_diagnosis.txt", content)
    return buffer.getvalue()


@pytest.mark.parametrize("compress", [bytes, zipped])
def test_sensorless_whole(cache, publish, compress):
    path = "sensorless/Sensorless_drive_diagnosis.txt"
    publish(path, compress(SENSORLESS), cache, sha256=None, size=None, rows=11)
    data = datasets.load_sensorless()
    assert data.x.shape == (11, 48)
    assert data.x.dtype == np.float32
    assert data.y.tolist() == list(range(11))
    assert data.classes[0] == "1"
    assert data.sources[0].state == "unverified"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SENSORLESS[: SENSORLESS.index(b"11e-05")], "has 10 rows, 11 were published"),
        (SENSORLESS[:-100], "cannot be read"),
        (SENSORLESS.replace(b" 11\n", b" 12\n"), "has the label 12 in row 10"),
        (SENSORLESS.replace(b" 11\n", b" 10\n"), "has classes of .*, not of equal size"),
        (SENSORLESS.replace(b" 11\n", b"\n"), "cannot be read"),
        (SENSORLESS.replace(b"11e-05 11\n", b"x 11\n"), "cannot be read"),
    ],
)
def test_sensorless_of_another_form_is_named(offline, publish, content, message):
    path = "sensorless/Sensorless_drive_diagnosis.txt"
    publish(path, content, offline, sha256=None, size=None, rows=11)
    with pytest.raises(DamagedFileError, match=f"{offline}/{path} {message}"):
        datasets.load_sensorless()


def test_a_part_of_sensorless_is_never_given_for_the_whole(offline, publish):
    publish("sensorless/sensorless_balanced2200.txt.gz", gzip.compress(SENSORLESS), offline)
    with pytest.raises(FileNotFoundError, match=r"Subsets are part='balanced' and part='head'"):
        datasets.load_sensorless()
    assert len(datasets.load_sensorless("balanced").x) == 11


def test_usps_has_digits_in_both_forms(offline, publish):
    smoothed = b"7 1:-1.000000 256:0.5\n1 1:0.25\n"
    publish("usps/usps.bz2", bz2.compress(smoothed), offline)
    scanned = "".join(f"{digit} {' '.join(['-1'] * 255)} 0.5 \n" for digit in ("6.0000", "0.0000"))
    publish("usps/zip.train.gz", gzip.compress(scanned.encode()), offline)
    first, second = datasets.load_usps("train"), datasets.load_usps("train", raw=True)
    assert first.y.tolist() == second.y.tolist() == [6, 0]
    assert first.x.shape == second.x.shape == (2, 256)
    assert first.x[0, [0, 255]].tolist() == [-1, 0.5]


def test_covtype(offline, publish):
    rows = [[2596, *range(1, 54), 5], [2590, *range(-1, -54, -1), 7]]
    content = "".join(",".join(map(str, row)) + "\n" for row in rows).encode()
    publish("covtype/covtype.data.gz", gzip.compress(content), offline)
    data = datasets.load_covtype()
    assert data.x.tolist() == [row[:-1] for row in rows]
    assert data.y.tolist() == [4, 6]
    assert len(data.feature_names) == 54


def test_lightgbm(offline, publish):
    folder = "ltr/lightgbm-lambdarank"
    publish(f"{folder}/rank.train", b"2 1:0.5\n0 300:1\n1 2:1\n", offline)
    publish(f"{folder}/rank.train.query", b"1\n2\n", offline)
    data = datasets.load_lightgbm_ranking("train")
    assert data.x.shape == (3, 300)
    assert data.y.tolist() == [2, 0, 1]
    assert data.query.tolist() == [0, 1, 1]
    for sizes, total in ((b"1\n1\n", 2), (b"0\n3\n", 3), (b"4\n-1\n", 3)):
        publish(f"{folder}/rank.train.query", sizes, offline)
        with pytest.raises(DamagedFileError, match=rf"query cannot be read: its queries have {total} rows together"):
            datasets.load_lightgbm_ranking("train")


def test_deepsurv(offline, publish):
    arrays = {"x": np.array([[1.5, 2]], "<f4"), "t": np.array([3.5], "<f4"), "e": np.array([1], "<i4")}
    publish("survival/deepsurv/whas_train_test.h5", hdf5({"train": arrays}), offline)
    data = datasets.load_survival("whas", "train")
    assert (data.x.tolist(), data.time.tolist(), data.event.tolist()) == ([[1.5, 2]], [3.5], [True])
    assert data.time.dtype == np.float64
    with pytest.raises(DamagedFileError, match=r"whas_train_test.h5 cannot be read: it has no array test/x"):
        datasets.load_survival("whas", "test")


def test_a_table_without_outcome_or_identity_among_its_features(offline, publish):
    text = "@relation f\n@attribute age numeric\n@attribute futime numeric\n@attribute death {alive,dead}\n"
    text += "@attribute chapter {Blood,Skin}\n@data\n97,85,dead,Skin\n60,100,alive,?\n"
    publish("survival/sksurv/flchain.arff", text.encode(), offline)
    data = datasets.load_survival("flchain")
    assert data.feature_names == ("age",)
    assert (data.time.tolist(), data.event.tolist()) == ([85, 100], [True, False])
    publish("survival/lifelines/stanford_heart.csv", b'"start","stop","event","age","id"\n0,50,1,-17.5,1\n', offline)
    heart = datasets.load_survival("stanford_heart")
    assert (heart.feature_names, heart.entry.tolist(), heart.time.tolist()) == (("age",), [0], [50])


def test_a_table_without_its_outcome_is_named(offline, publish):
    publish("survival/lifelines/rossi.csv", b"week,fin\n20,0\n", offline)
    with pytest.raises(DamagedFileError, match=r"rossi.csv has no column arrest"):
        datasets.load_survival("rossi")


@pytest.mark.parametrize(
    ("load", "arguments", "message"),
    [
        (datasets.load_ijcnn1, ("t",), "part must be one of 'train', 'tr', 'val', 'test'; got 't'"),
        (datasets.load_mnist, ("valid",), "got 'valid'"),
        (datasets.load_usps, ("all",), "got 'all'"),
        (datasets.load_cifar10, ("val",), "got 'val'"),
        (datasets.load_sensorless, ("half",), "got 'half'"),
        (datasets.load_lightgbm_ranking, ("val",), "got 'val'"),
        (datasets.load_survival, ("titanic",), "name must be one of 'metabric'.*got 'titanic'"),
        (datasets.load_survival, ("gbsg",), "part of gbsg must be one of 'train', 'test'; got None"),
        (datasets.load_survival, ("lung", "train"), "lung is not split; part must be None; got 'train'"),
    ],
)
def test_an_unknown_choice_is_refused_before_anything_is_read(offline, load, arguments, message):
    with pytest.raises(ValueError, match=message):
        load(*arguments)


def test_arrays_are_ready_for_torch(offline, publish):
    publish("mnist/train-images-idx3-ubyte.gz", idx(np.zeros((1, 28, 28), np.uint8)), offline)
    publish("mnist/train-labels-idx1-ubyte.gz", idx(np.zeros(1, np.uint8)), offline)
    publish("cifar100/cifar-100-binary.tar.gz", cifar100_binary(), offline)
    for data in (datasets.load_mnist(), datasets.load_cifar100()):
        assert torch.from_numpy(data.y).dtype == torch.int64
        assert torch.from_numpy(data.x).dtype == torch.uint8


def test_every_survival_set_is_registered():
    paths = [*(f"deepsurv/{file}" for file in DEEPSURV.values()), *(table.path for table in TABLES.values())]
    assert {f"survival/{path}" for path in paths} == {path for path in FILES if path.startswith("survival/")}

"""The published files themselves, where FCCO_DATA has them."""

from __future__ import annotations

import csv
import doctest
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler

from fcco_reproduce import datasets

pytestmark = pytest.mark.skipif("FCCO_DATA" not in os.environ, reason="FCCO_DATA is not set")

LOADERS = [
    datasets.load_ijcnn1,
    datasets.load_covtype,
    datasets.load_usps,
    datasets.load_mnist,
    datasets.load_sensorless,
    datasets.load_cifar10,
    datasets.load_survival,
    datasets.load_lightgbm_ranking,
]


@pytest.mark.parametrize("loader", LOADERS, ids=lambda loader: loader.__name__)
def test_the_examples_of_the_loaders(loader):
    text = loader.__doc__.replace("  # doctest: +SKIP", "")
    example = doctest.DocTestParser().get_doctest(text, {**vars(datasets), "np": np}, loader.__name__, None, 0)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize(
    ("part", "rows", "positive"),
    [("train", 49_990, 4_853), ("tr", 35_000, 3_415), ("val", 14_990, 1_438), ("test", 91_701, 8_712)],
)
def test_ijcnn1(part, rows, positive):
    data = datasets.load_ijcnn1(part)
    assert data.x.shape == (rows, 22)
    assert data.y.sum() == positive


def test_usps_has_the_published_digits_and_like_pixels_in_both_forms():
    counts = {"train": [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]}
    counts["test"] = [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
    for part, expected in counts.items():
        smoothed, raw = datasets.load_usps(part), datasets.load_usps(part, raw=True)
        assert np.bincount(smoothed.y).tolist() == expected
        assert np.array_equal(smoothed.y, raw.y)
        assert np.corrcoef(smoothed.x.ravel(), raw.x.ravel())[0, 1] > 0.9  # 0.23 with rows in another order


def test_mnist_has_the_published_mean_and_deviation():
    x = datasets.load_mnist("train").x / np.float32(255)
    assert x.shape == (60_000, 28, 28)
    assert float(x.mean(dtype=np.float64)) == pytest.approx(0.1307, abs=5e-5)
    assert float(x.std(dtype=np.float64)) == pytest.approx(0.3081, abs=5e-5)


def test_sensorless_subsets_agree():
    balanced, head = datasets.load_sensorless("balanced"), datasets.load_sensorless("head")
    assert np.bincount(balanced.y).tolist() == [200] * 11
    assert np.bincount(head.y).tolist() == [5_319, 429]
    published = {row.tobytes() for row in head.x[head.y == 0]}
    assert all(row.tobytes() in published for row in balanced.x[balanced.y == 0])


def test_cifar10_has_the_bytes_of_the_published_binary_version():
    data = datasets.load_cifar10("test")
    records = np.concatenate([data.y.astype(np.uint8)[:, None], data.x.reshape(len(data.x), -1)], 1)
    published = "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"
    assert hashlib.sha256(records.tobytes()).hexdigest() == published


@pytest.mark.parametrize(
    ("name", "part", "shape", "events"),
    [
        ("metabric", "train", (1523, 9), 0.582),
        ("metabric", "test", (381, 9), 0.567),
        ("support", "train", (7098, 14), 0.680),  # 0.6795
        ("support", "test", (1775, 14), 0.683),
        ("gbsg", "train", (1546, 7), 0.626),
        ("gbsg", "test", (686, 7), 0.436),
        ("whas", "train", (1310, 6), 0.421),
        ("whas", "test", (328, 6), 0.421),
        ("flchain", None, (7874, 23), 0.2755),
        ("whas500", None, (500, 14), 0.43),
        ("gbsg2", None, (686, 9), 0.436),
        ("veteran", None, (137, 8), 0.934),
        ("actg320", None, (1151, 19), 0.083),
        ("breast_cancer", None, (198, 82), 0.258),
        ("rossi", None, (432, 7), 114 / 432),
        ("lung", None, (228, 7), 165 / 228),
        ("kidney_transplant", None, (863, 4), 140 / 863),
        ("stanford_heart", None, (172, 4), 75 / 172),
        ("larynx", None, (90, 4), 50 / 90),
    ],
)
def test_survival(name, part, shape, events):
    data = datasets.load_survival(name, part)
    assert data.x.shape == shape
    assert data.event.mean() == pytest.approx(events, abs=6e-4)
    assert len(data.feature_names) in (0, shape[1])
    assert (data.time >= 0).all()
    assert np.isnan(data.x).any() == (name in ("flchain", "lung"))


def test_the_german_breast_cancer_study_is_the_same_from_three_publishers():
    """DeepSurv's test part of gbsg, scikit-survival's gbsg2, and lifelines' table, which no loader reads."""
    h5, arff = datasets.load_survival("gbsg", "test"), datasets.load_survival("gbsg2")
    path = Path(os.environ["FCCO_DATA"]) / "survival/lifelines/gbsg2.csv"
    with path.open(newline="") as text:
        rows = list(csv.DictReader(text))
    age, node = (np.array([float(row[key]) for row in rows]) for key in ("age", "pnodes"))
    days, event = np.array([float(row["time"]) for row in rows]), np.array([row["cens"] == "1" for row in rows])
    of = dict(zip(arff.feature_names, arff.x.T, strict=True))
    assert np.array_equal(np.lexsort([of["pnodes"], of["age"], arff.time]), np.lexsort([node, age, days]))
    assert np.array_equal(arff.time, days)
    assert np.array_equal(arff.event, event)
    assert np.array_equal(np.sort(h5.x[:, 3]), np.sort(age))
    months = 365.25 / 12
    order, other = np.lexsort([h5.x[:, 3], h5.time]), np.lexsort([age, days])
    np.testing.assert_allclose(h5.time[order], days[other] / months, rtol=2e-3)
    assert np.array_equal(h5.event[order], event[other])


def test_lightgbm_example_has_queries_of_the_stated_sizes():
    data = datasets.load_lightgbm_ranking("train")
    assert data.x.shape == (3_005, 300)
    assert np.bincount(data.query)[:3].tolist() == [1, 13, 5]
    assert data.query[-1] == 200
    assert np.unique(data.y).tolist() == [0, 1, 2, 3, 4]


def test_the_split_of_ijcnn1_is_the_authors():
    data = datasets.load_ijcnn1("tr")
    x, x_test, y, y_test = train_test_split(data.x.astype(float), data.y, test_size=0.1, random_state=42)
    split = datasets.split_ijcnn1(data)
    assert (len(split.train.y), len(split.test.y)) == (31_500, 3_500)
    assert np.array_equal(split.train.y, 1 - y)
    assert np.array_equal(split.test.y, 1 - y_test)
    scaler = MinMaxScaler().fit(x)
    np.testing.assert_allclose(split.train.x, scaler.transform(x), atol=1e-6)
    np.testing.assert_allclose(split.test.x, scaler.transform(x_test), atol=1e-6)


def test_the_split_of_covtype_has_the_authors_sizes():
    split = datasets.split_covtype(datasets.load_covtype())
    assert split.train.x.shape == (100_000, 54)
    assert split.test.x.shape == (10_000, 54)
    kept = (297_711 // 10) / (297_711 // 10 + 283_301)
    assert (split.train.y == 0).mean() == pytest.approx(kept, abs=0.003)  # three deviations of a random draw
    assert split.train.x.min() == 0
    assert split.train.x.max() == 1

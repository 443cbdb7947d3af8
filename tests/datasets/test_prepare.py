"""The authors' splits, against scikit-learn, which they used, on made-up data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler

from fcco_reproduce.datasets import Classification, split_covtype, split_ijcnn1, split_imbalanced, split_nca

RNG = np.random.default_rng(0)


def by_scikit_learn(x, y, **sizes) -> Iterator[np.ndarray]:
    x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=42, **sizes)
    scaler = MinMaxScaler().fit(x_train)
    return scaler.transform(x_train), y_train, scaler.transform(x_test), y_test


def assert_same(split, expected):
    x_train, y_train, x_test, y_test = expected
    assert split.train.x.dtype == split.test.x.dtype == np.float32
    # A few units in the last place of float32, of numbers of order 1; other rows would be off by that order.
    np.testing.assert_allclose(split.train.x, x_train, atol=1e-6)
    np.testing.assert_allclose(split.test.x, x_test, atol=1e-6)
    assert np.array_equal(split.train.y, y_train)
    assert np.array_equal(split.test.y, y_test)


@pytest.mark.parametrize("n", [200, 205, 209])
def test_ijcnn1_is_split_and_scaled_as_by_scikit_learn_and_flipped(n):
    x = RNG.normal(size=(n, 4)).astype(np.float32)
    x[:, 3] = 2.5
    y = (np.arange(n) % 10 == 0).astype(np.int64)
    split = split_ijcnn1(Classification(x, y, ("-1", "1"), feature_names=tuple("abcd")))
    assert_same(split, by_scikit_learn(x, (y == 0).astype(int), test_size=0.1))
    assert split.train.classes == ("1", "-1")
    assert split.train.feature_names == tuple("abcd")
    assert (split.train.y == 0).sum() < (split.train.y == 1).sum()
    assert np.array_equal(split.train.x[:, 3], np.zeros(len(split.train.x)))


def test_ijcnn1_that_was_flipped_already_is_refused():
    with pytest.raises(ValueError, match=r"of which 1 is the rarer; got \[1, 3\]"):
        split_ijcnn1(Classification(np.zeros((4, 1)), np.array([0, 1, 1, 1]), ("1", "-1")))


def test_covtype_is_thinned_split_and_scaled_as_by_the_authors():
    n = 3000
    x, y = RNG.integers(0, 4000, (n, 5)).astype(np.float32), RNG.integers(0, 7, n)
    label = np.where(y == 1, 2, 1)
    ones, twos = np.where(label == 1)[0], np.where(label == 2)[0]
    index = np.concatenate((ones[: len(ones) // 10], twos))
    expected = by_scikit_learn(x[index], (label[index] == 2).astype(int), train_size=300, test_size=40)
    split = split_covtype(Classification(x, y, tuple("1234567")), train=300, test=40)
    assert_same(split, expected)
    assert len(split.train.y) == 300
    assert len(split.test.y) == 40
    assert split.train.classes == ("rest", "2")


def test_covtype_with_too_few_rows_is_refused():
    data = Classification(np.zeros((30, 1)), np.repeat([0, 1], [20, 10]), ("1", "2"))
    with pytest.raises(ValueError, match="train and test need 13 rows, there are 12"):
        split_covtype(data, train=8, test=5)


def test_nca_flattens_images():
    x, y = RNG.integers(0, 256, (53, 3, 3), dtype=np.uint8), RNG.integers(0, 10, 53)
    split = split_nca(Classification(x, y, tuple("0123456789")))
    assert_same(split, by_scikit_learn(x.reshape(53, 9).astype(float), y, test_size=0.1))


def images(classes, each):
    y = RNG.permutation(np.repeat(np.arange(classes), each))
    return Classification(np.arange(len(y))[:, None], y, tuple(map(str, range(classes))))


@pytest.mark.parametrize(("classes", "each"), [(10, 5000), (100, 500)])
def test_imbalanced_has_the_sizes_of_the_paper(classes, each):
    train, test = images(classes, each), images(classes, each // 5)
    split = split_imbalanced(train, test)
    assert np.bincount(split.train.y).tolist() == [20_000, 400]
    assert np.bincount(split.validation.y).tolist() == [5_000, 100]
    assert np.bincount(split.test.y).tolist() == [5_000, 5_000]
    rows = np.concatenate([split.train.x[:, 0], split.validation.x[:, 0]])
    assert len(np.unique(rows)) == len(rows)
    labels = train.y[rows]
    assert np.array_equal(labels >= classes // 2, np.concatenate([split.train.y, split.validation.y]) == 1)
    assert np.bincount(labels).tolist() == [each] * (classes // 2) + [each // 50] * (classes // 2)
    assert np.array_equal(split.test.x, test.x)


def test_imbalanced_is_drawn_by_the_seed():
    train = images(10, 500)
    first, again, other = (split_imbalanced(train, train, seed=seed).train.x for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(("share", "message"), [(0, "got 0"), (1.5, "got 1.5"), (0.001, "leaves 0 rows of 5")])
def test_imbalanced_refuses_a_share_that_leaves_nothing(share, message):
    train = images(10, 500)
    with pytest.raises(ValueError, match=message):
        split_imbalanced(train, train, share=share)

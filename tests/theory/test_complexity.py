import pytest

from fcco.theory import complexities

SIZES = {"n": 1000, "outer_batch": 8, "inner_batch": 4, "epsilon": 0.1}
EXPECTED = {
    # iterations, and inner samples per step
    ("BSGD", "NC"): (1e4, 1e2),
    ("BSGD", "C"): (1e2, 1e1),
    ("BSGD", "SC"): (0.5**-2 * 1e1, 1e1),
    ("SOAP", "NC"): (1000 * 1e5, 1),
    ("MOAP", "NC"): (1000 / 8 * 1e4, 8),
    ("SCGD", "NC"): (None, 1000 * 4),
    ("NASA", "NC"): (None, 1000 * 4),
    ("SOX", "NC"): (1000 / 32 * 1e4, 32),
    ("SOX-boost", "C"): (1000 / 32 * 1e3, 32),
    ("SOX-boost", "SC"): (1000 / 32 * 0.5**-3 * 1e1, 32),
    ("SOX (beta=1)", "C"): (1000 / 8 * 1e2, 32),
    ("SOX (beta=1)", "SC"): (1000 / 8 * 0.5**-2 * 1e1, 32),
}


@pytest.mark.parametrize(("method", "regime"), EXPECTED)
def test_the_table_of_the_paper(method, regime):
    (entry,) = [e for e in complexities(mu=0.5, **SIZES) if (e.method, e.regime) == (method, regime)]
    iterations, per_step = EXPECTED[method, regime]
    assert entry.samples_per_step == pytest.approx(per_step)
    if iterations is None:
        assert entry.iterations is entry.samples is entry.formula is None
    else:
        assert entry.iterations == pytest.approx(iterations)
        assert entry.samples == pytest.approx(iterations * per_step)


def test_the_table_has_no_other_entries():
    assert {(e.method, e.regime) for e in complexities(**SIZES)} == set(EXPECTED)


def test_without_mu_the_strongly_convex_entries_are_formulas():
    for entry in complexities(**SIZES):
        if entry.regime == "SC":
            assert entry.iterations is None
            assert "mu" in entry.formula


def test_an_inner_batch_beyond_n_no_longer_helps():
    def iterations(inner):
        sizes = {**SIZES, "n": 10, "outer_batch": 2, "inner_batch": inner}
        return next(e.iterations for e in complexities(**sizes) if e.method == "SOX")

    assert iterations(10) == pytest.approx(10 / (2 * 10) * 1e4)
    assert iterations(1000) == iterations(10)

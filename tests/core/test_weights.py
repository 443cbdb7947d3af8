"""What candidates stand for, against plain loops and against what the weights have to add up to."""

import itertools

import numpy as np
import pytest

from core.compare import LIBRARIES, assert_close
from fcco.core.weights import less, weigh, weigh_candidates, weigh_fresh

SIZES = [(7.0, 30.0), (1.0, 30.0), (4.0, 3.0)]
THERE = [(2.0, 3.0), (1.0, 3.0), (1.0, 1.0), (0.0, 3.0), (3.0, 0.0), (4.0, 3.0)]
TERMS = [(None, None), (0, None), *itertools.product((0, 1), ("exact", "sampled", "bounded"))]


def filled(sizes, there):
    """Return how many of the population are in each relation, where others stand for those that are not there."""
    seen = sum(n for n, q in zip(sizes, there, strict=True) if q > 0)
    return [n * sum(sizes) / seen if q > 0 else 0.0 for n, q in zip(sizes, there, strict=True)]


def naive(sizes, there, copies, relation, term, fill):
    """Return for one anchor what the others in each relation stand for, the self term, and whether enough is known."""
    others = [q - copies * (k == relation) for k, q in enumerate(there)]
    if relation is None or term == "sampled":
        full, known = (filled(sizes, there) if fill else sizes), all(q > 0 for q in there)
        if fill:
            known = sum(there) > 0 if relation is None else there[relation] > 0
        own = 0.0 if relation is None else full[relation] / max(there[relation], 1) * copies
        return [n / max(q, 1) * o for n, q, o in zip(full, there, others, strict=True)], own, known
    if term == "bounded":
        full = filled(sizes, there)
        own = 2 - min(there[relation] / sizes[relation], 1) if others[relation] > 0 else full[relation]
        return [n - own * (k == relation) for k, n in enumerate(full)], own, there[relation] > 0
    rest = [n - (k == relation) for k, n in enumerate(sizes)]
    known = all(q > 0 or n == 0 for n, q in zip(rest, others, strict=True))
    return [n if q > 0 else 0.0 for n, q in zip(rest, others, strict=True)], 1.0, known


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize(("relation", "term"), TERMS)
def test_weights_of_a_pool(relation, term, fill):
    cases = [c for c in itertools.product(SIZES, THERE, (1.0, 2.0)) if relation is None or c[1][relation] >= c[2]]
    sizes, there, copies = (np.array(column).T for column in zip(*cases, strict=True))
    totals, own, known = (np.array(x).T for x in zip(*(naive(*c, relation, term, fill) for c in cases), strict=True))
    others = np.stack([there[k] - copies * (k == relation) for k in (0, 1)])
    for to in LIBRARIES.values():
        w = weigh(to(sizes), to(there), to(copies), relation, term, fill)
        assert_close(np.asarray(w.each) * others, totals)
        assert np.array_equal(w.known, known)
        assert (w.own is None) == (term is None)
        if term is not None:
            assert_close(np.asarray(w.own) + 0 * own, own)


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize(("relation", "term"), TERMS)
def test_weights_of_fresh_candidates(relation, term, fill):
    sizes, fresh, held = (np.array(x) for x in ([[7.0], [30.0]], [[2.0, 0.0], [3.0, 3.0]], [[3.0, 1.0], [4.0, 9.0]]))
    rest = [n - (k == relation) for k, n in enumerate(sizes[:, 0])]
    full = np.array([filled(rest, q) if fill else rest for q in fresh.T]).T * (fresh > 0)
    for to in LIBRARIES.values():
        w = weigh_fresh(to(sizes), to(fresh), to(held), relation, term, fill)
        assert_close(np.asarray(w.each) * fresh, full)
        assert np.array_equal(w.known, (fresh > 0) | fill)
        if term is None:
            assert w.own is None
            continue
        part = held[relation] / sizes[relation]
        own = {"exact": 1 + 0 * part, "sampled": 1 / part, "bounded": 2 - part.clip(None, 1)}[term]
        assert_close(np.asarray(w.own) + 0 * own, own)


def test_weights_of_fresh_candidates_as_anchors_see_them():
    sizes, there, stands = np.array([[6.0, 4.0]]), np.array([[3.0, 0.0]]), np.array([[5.0, 2.0]])
    for to in LIBRARIES.values():
        assert_close(weigh_candidates(to(sizes), to(there), 12.0, to(stands)), [[5.0 * (6.0 / 12.0) / 3.0, 0.0]])
        rest = less(to(np.array([[5.0], [3.0]])), 1, to(np.array([1.0, 2.0])))
        assert_close(rest, [[5.0, 5.0], [2.0, 1.0]])

"""How many examples of the population each candidate stands for. A mistake here is silent: it is a bias.

The pairs of an anchor i and a candidate j are divided into *relations*: j is positive or negative, of i's class or not.
Of the N others in a relation with i, q are there, and each stands for N / q. So the sampler need not be known: the
estimate is unbiased if all others in a relation are equally likely to be there.

The gradient of a batch with a memory has two sides, as only fresh outputs have one. A fresh anchor i meets all
candidates of the pool, fresh and remembered, with the weights above. A fresh candidate k meets all anchors of the pool
in the same way: N' anchors are in a relation with it, q' of them are there, and each stands for N' / q'. What is left
is how often it is fresh and meets any at all, for which there is a running mean. With an empty memory, both sides
together are the gradient of the batch by itself.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from fcco.core.arrays import Array, at_least, is_positive, namespace

SelfTerm = Literal["exact", "sampled", "bounded"] | None
TINY = 1e-30


class Pool(NamedTuple):
    """Those that can be candidates: a batch, alone or with what is remembered."""

    kind: Array
    """[R], what kind of example each is."""
    weight: Array
    """[R], how often each counts: 1.0, or 0.0 for an empty place."""
    there: Array
    """[C], how many of each kind there are."""


class Weights(NamedTuple):
    """How many of the population the candidates stand for, as seen from each anchor."""

    each: Array
    """[S, 1] or [S, m], for a candidate of each relation; None: 1."""
    own: Array | float | None
    """[m] or a number, the weight of the self term; None: there is none."""
    known: Array
    """[m] or one bool: whether there are enough candidates to estimate g of the anchor."""
    there: Array = None
    """[S, 1] or [S, m], how many of the pool are in each relation."""


def weigh(
    sizes: Array, there: Array, copies: Array | float, relation: int | None, term: SelfTerm, fill: bool
) -> Weights:
    """Weigh the candidates of a pool.

    ``sizes`` and ``there``, [S, 1] or [S, m], are how many of the population and of the pool are in each relation with
    an anchor, which is in ``relation`` with itself, ``copies`` times. With ``fill``, the others stand for a relation of
    which nobody is there.

    The self term "sampled" has the weight of those in its relation, "exact" 1, and "bounded" 2 less the part of the
    relation that is there, so 1 if all are; with None there is none.
    """
    xp = namespace(there)
    if relation is None or term == "sampled":
        each = sizes / at_least(there, 1)
        if fill:
            if not is_positive(there):
                each = each * (sizes.sum(0) / ((each * there).sum(0) + TINY))
            known = there.sum(0) > 0 if relation is None else there[relation] > 0
        elif is_positive(there):
            known = there[0] > 0
        else:
            known = ((there > 0) | (sizes <= 0)).all(0)
        return Weights(each, None if relation is None else each[relation] * copies, known, there)
    others = less(there, relation, copies)
    if term == "bounded":
        each = sizes / at_least(there, 1)
        own = 2 - 1 / at_least(each[relation], 1)
        each = each * (sizes.sum(0) / ((each * there).sum(0) + TINY))
        all_of_them = each[relation] * there[relation]
        own = xp.where(others[relation] > 0, own, all_of_them)
        each = each + 0 * own
        each[relation] = (all_of_them - own) / at_least(others[relation], 1)
        return Weights(each, own, there[relation] > 0, there)
    rest = at_least(less(sizes, relation, 1.0), 0)
    known = ((others > 0) | (rest <= 0)).all(0)
    return Weights(rest / at_least(others, 1), None if term is None else 1.0, known, there)


def weigh_fresh(sizes: Array, fresh: Array, held: Array, relation: int | None, term: SelfTerm, fill: bool) -> Weights:
    """Weigh fresh candidates as remembered anchors see them, of which none is fresh; ``held`` is the pool's part.

    ``known``, [S, 1] or [S, m], is for each relation.
    """
    rest = sizes if relation is None else at_least(less(sizes, relation, 1.0), 0)
    each, own = rest / at_least(fresh, 1), None
    if fill and not is_positive(fresh):
        each = each * (rest.sum(0) / ((each * fresh).sum(0) + TINY))
    if relation is not None and term is not None:
        part = sizes[relation] / at_least(held[relation], 1)
        own = 1.0 if term == "exact" else part if term == "sampled" else 2 - 1 / at_least(part, 1)
    return Weights(each, own, each == each if fill else (fresh > 0) | (rest <= 0))


def weigh_candidates(sizes: Array, there: Array, anchors: float | Array, stands: Array) -> Array:
    """Return what a fresh candidate gets from the anchors of the pool is multiplied by, in each relation, [S', R].

    ``sizes`` and ``there`` are how many other anchors of the population and of the pool are in a relation with it, and
    ``anchors`` how many there are in all. It ``stands`` for so many, as on average over batches so many like it are
    fresh and meet an anchor in this relation.
    """
    return stands * (sizes / anchors) * (there > 0) / at_least(there, TINY)


def less(counts: Array, relation: int, own: Array | float) -> Array:
    """Return how many there are other than the example itself."""
    if len(counts) == 1:
        return counts - own
    counts = counts + 0 * own  # of the shape of both
    counts[relation] -= own
    return counts

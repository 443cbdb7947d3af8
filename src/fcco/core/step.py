"""One step of any objective: a pure function of the batch, the rows of the table, and the memory.

It writes nothing, so that an error at any point leaves all state as it was. A :class:`Step` is what is then written.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from fcco.core.arrays import (
    Array,
    ascending,
    at_least,
    cast,
    column,
    counted,
    is_positive,
    namespace,
    numbered,
    ones,
    order_of,
    placed,
    places_of,
    repeated,
    slots_of,
    taken,
)
from fcco.core.kernels import Backward, Same
from fcco.core.objective import Objective
from fcco.core.outers import Outer
from fcco.core.rules import Batch as Met
from fcco.core.rules import updated
from fcco.core.spaces import LOG, PLAIN, Rate, Space
from fcco.core.weights import TINY, Pool, Weights, less, weigh_candidates, weigh_fresh


class Rows(Protocol):
    """What a step reads of the table."""

    def read(self, rows: Array, first: Array) -> Array:
        """Return what rows hold, and ``first`` where they are new."""
        ...

    def rate(self, rows: Array) -> Rate:
        """Return gamma of this step, or of each row."""
        ...

    def coverage(self, distinct: Any) -> Rate:
        """Return how many rows there are for each in the batch, of which so many are distinct."""
        ...


class Ranks:
    """One process by itself. Those of several send messages here."""

    def exchange(self, *parts: Array) -> tuple[tuple[Array, ...], slice]:
        """Return the parts of all processes, joined, and where this process's are."""
        return parts, slice(0, len(parts[0]))

    def sum(self, values: Array) -> Array:
        """Return the sum over all processes."""
        return values


ALONE = Ranks()


class Batch(NamedTuple):
    """The fresh examples of all processes."""

    x: Any
    """The columns of the objective, [B, ...]."""
    rows: Array
    """[B], their rows in the training set."""
    pool: Pool
    """These as candidates."""
    same: Any
    """Which pairs of an anchor of any process and a candidate are one example; None: these are in no relation."""
    anchors: Array | None
    """Where this process's anchors are; None: everywhere, and some examples are none, in fixed shapes."""
    every: Any
    """Where the anchors of all processes are."""
    mine: slice
    """Which of these are this process's."""
    repeats: bool
    """Whether a row may appear twice."""
    share: Array | None = None
    """How much each f counts, if the caller says so."""
    sample: Any = None
    """What the caller's f is evaluated on, of this process's anchors."""
    ordered: Array | None = None
    """[B], the rows in ascending order, if that is known."""
    apart: slice | None = None
    """Where this process's examples are, if only these are candidates of its anchors."""


def as_batch(
    objective: Objective,
    x: Any,
    rows: Array,
    *,
    ordered: Array | None = None,
    mine: slice | None = None,
    fixed: bool = False,
    is_apart: bool = False,
) -> Batch:
    """Return examples as a batch, of which this process has those of a slice, and compares only these if it is apart.

    With ``fixed``, no shape depends on values: all examples are anchors, of which some do not count. Of an objective
    without a pool, ``x`` has this process's examples alone, all of which are anchors.
    """
    x, everyone = objective.describe(x), mine or slice(0, len(rows))
    weight = ones(x[0])
    if is_apart:
        weight[: everyone.start] = weight[everyone.stop :] = 0.0
    pool = objective.pool(x, weight)
    meets_itself = objective.self_relation is not None
    if fixed:
        same = Same(rows, rows, False) if objective.has_pool and meets_itself else None
        return Batch(x, rows, pool, same, None, None, everyone, True)
    xp, ordered = namespace(rows), ascending(rows) if ordered is None else ordered
    repeats = bool(xp.count_nonzero(ordered[1:] == ordered[:-1]))
    if not objective.has_pool:
        return Batch(x, rows, pool, None, None, None, everyone, repeats, ordered=ordered)
    every = places_of(objective.is_anchor(x))
    first, last = (0, len(every)) if mine is None else ((every < end).sum() for end in (mine.start, mine.stop))
    anchors = every if mine is None else every[int(first) : int(last)]
    if repeats:
        same = pairs_of(taken(rows, every), rows) if meets_itself else None
    else:
        same = Same(numbered(len(every), rows), every, is_each=True)
    own, apart = slice(int(first), int(last)), everyone if is_apart else None
    return Batch(x, rows, pool, same, anchors, every, own, repeats, ordered=ordered, apart=apart)


def pairs_of(rows: Array, others: Array) -> Same:
    """Return all pairs of places at which two arrays of rows have the same one."""
    xp, order = namespace(rows), order_of(others)
    ordered = taken(others, order)
    first, last = (xp.searchsorted(ordered, rows, side=side) for side in ("left", "right"))
    anchors = repeated(numbered(len(rows), rows), last - first)
    start = (last - first).cumsum(0) - (last - first)
    places = numbered(len(anchors), rows) - taken(start, anchors) + taken(first, anchors)
    return Same(anchors, taken(order, places))


class Remembered(NamedTuple):
    """Recent outputs, in places of which some are empty."""

    x: Any
    rows: Array
    pool: Pool
    """These as candidates: a place does not count if it is empty or its row is in the batch."""
    at: Array
    """[P] or [P, dim], the running estimate of g (log g)."""
    share: Array
    """[P], how much f counts; 0 without a term, and for places that do not count."""
    anchors: Array | None
    """Where the anchors are; None: everywhere, and some places are none."""
    mean: Array
    """The running means: what the shares of a batch add up to in each stratum, and how many of its fresh candidates
    meet an anchor, in each relation."""
    rate: Array | float
    """How much this batch counts in them."""
    in_gradient: bool
    """Whether what is here has a part in the gradient, and not only in the rows of the table."""


class Estimate(NamedTuple):
    """Inner values of anchors and their ``backward``; how much each f counts, and what adds up to the divisor."""

    inner: Array
    share: Array
    count: Array
    backward: Backward


class Update(NamedTuple):
    """What the rows of the anchors of all processes were, and become; see :class:`Step`."""

    rows: Array
    before: Array
    new: Array
    at: Array
    rate: Rate
    written: Array | None


class Step(NamedTuple):
    """What a step has worked out, of which nothing is written yet."""

    value: Array
    gradients: tuple[Array, ...]
    """Of the outputs of all B examples."""
    share: Array
    """How much f of each anchor of all processes counts."""
    rows: Array
    """The rows of these anchors."""
    before: Array
    """What the rows held."""
    new: Array
    """What they become."""
    at: Array
    """What f is differentiated at."""
    rate: Rate
    written: Array | None
    """Which of the rows are more than padding, [m] of bool; None: all."""
    kept: Array
    """The inner values that the memory keeps of the batch."""
    refreshed: Array | None
    """The running estimates of remembered anchors; None: they have not changed."""
    mean: Array | None
    """The running means of the memory."""
    extra: Array | None
    """A scalar with a graph to what else has a gradient, of this process's anchors: the parameters of the objective and
    of f, and f's sample. Its value means nothing. None: there is nothing else."""
    outer: Outer
    """f, as it was in this step."""


def take(x: Any, places: Array | None) -> Any:
    """Return some of the examples; None: all."""
    return x if places is None else type(x)(*[None if c is None else taken(c, places) for c in x])


def at(values: Array, places: Array | None) -> Array:
    """Return some of the values; None: all."""
    return values if places is None else taken(values, places)


def join(one: Any, other: Any) -> Any:
    """Return the columns of both."""
    xp = namespace(one[0])
    return type(one)(*[None if a is None else xp.concatenate([a, b]) for a, b in zip(one, other, strict=True)])


def estimate(objective: Objective, batch: Batch, memory: Remembered | None = None) -> Estimate:
    """Estimate g of this process's anchors from the batch and what is remembered, whose places come last."""
    xp, anchors, x, pool = namespace(batch.rows), take(batch.x, batch.anchors), batch.x, batch.pool
    if memory is not None:
        x, (kind, weight, there) = join(batch.x, memory.x), memory.pool
        pool = Pool(xp.concatenate([pool.kind, kind]), xp.concatenate([pool.weight, weight]), pool.there + there)
    same = batch.same
    if same is not None and batch.mine != slice(0, len(batch.rows if batch.every is None else batch.every)):
        own = (same.anchors >= batch.mine.start) & (same.anchors < batch.mine.stop)
        same = Same(same.anchors[own] - batch.mine.start, same.candidates[own], same.is_sparse, same.is_each)
    if same is not None and not same.is_sparse and memory is not None:
        same = same._replace(candidates=xp.concatenate([same.candidates, memory.rows]))
    copies = same.copies(pool.weight, len(anchors[0])) if same is not None and batch.repeats else 1.0
    w = objective.weigh(anchors, x, pool, copies)
    inner, backward = objective.inner(anchors, x, objective.pairs(anchors, x, pool.weight, same), w)
    if batch.share is not None:
        return Estimate(inner, batch.share, batch.share, backward)
    share, count = objective.shares(anchors, w, batch.pool)
    if batch.anchors is None and objective.has_pool:
        is_anchor = objective.is_anchor(anchors)
        share, count = share * is_anchor, count * is_anchor
    if not is_positive(share):
        inner = xp.where(column(share > 0, inner), inner, objective.unknown)
    return Estimate(inner, share, count, backward)


def take_step(
    objective: Objective, rule: Any, table: Rows, batch: Batch, memory: Remembered | None = None, ranks: Ranks = ALONE
) -> Step:
    """Work out a step."""
    space, two_sided = LOG if objective.log else PLAIN, memory is not None and memory.in_gradient
    pooled = estimate(objective, batch, memory)
    own = pooled if memory is None or two_sided else estimate(objective, batch)
    # Every process updates the rows of all of them, so that their tables stay the same.
    parts = [own.inner, own.share, own.count] + ([] if own is pooled else [pooled.inner])
    (inner, share, count, *remembered), mine = ranks.exchange(*parts)
    kept = remembered[0] if remembered else inner
    update = update_rows(rule, table, batch, kept, share, space)
    outer, leaves, weight = objective.outer_of(kept, share), objective.parameters, share / (count.sum() + TINY)
    value, of_f = evaluate(outer, batch, update, weight, mine, ranks)
    met = share
    if batch.apart is not None:  # other processes' anchors do not meet what is here
        count, met = (part * at(batch.pool.weight, batch.every) for part in (count, share))
    mean, meets = (None, None) if memory is None else expected(objective, batch, memory, count, met, ranks)
    if two_sided:
        weight = share / (expected_total(objective, batch, mean) + TINY)
    slope, slopes = differentiate(outer, batch, update, space, inner, weight, mine)
    to_anchors, to_candidates, *to_parameters = own.backward(slopes, "anchors" if two_sided else "both")
    refreshed = None
    if two_sided and memory is not None and meets is not None:
        fresh = Fresh(slope, update.at, met)
        to_candidates, refreshed = against_fresh(objective, outer, space, batch, memory, fresh, meets)
    gradients = in_batch(objective, batch, to_anchors, to_candidates, ranks, two_sided=two_sided)
    extra = with_graph(leaves, to_parameters, of_f)
    return Step(value, gradients, share, *update, kept, refreshed, mean, extra, outer)


def take_step_of_all(objective: Objective, rule: Any, table: Rows, batch: Batch, n: int, ranks: Ranks = ALONE) -> Step:
    """Work out a step of a rule that updates all n rows by an estimate of each, of which f is evaluated at some."""
    space, of_each, rows = LOG if objective.log else PLAIN, batch.x[0], batch.rows
    one = ones(of_each)
    inner = ranks.sum(of_each) / ranks.sum(one[:1])  # every process has an estimate of all
    everyone = batch._replace(rows=numbered(n, rows), repeats=False)
    update = update_rows(rule, table, everyone, inner, one, space)
    share = one[:1].repeat(len(rows[batch.mine])) if batch.share is None else batch.share
    (share,), mine = ranks.exchange(share)
    weight, drawn = share / (share.sum() + TINY), update._replace(rows=rows, new=taken(update.new, rows))
    drawn = drawn._replace(at=taken(update.at, rows))
    value, of_f = evaluate(objective.outer, batch, drawn, weight, mine, ranks)
    _, slopes = differentiate(objective.outer, batch, drawn, space, taken(inner, rows), weight, mine)
    gradient = torch.zeros_like(inner).index_add(0, rows[mine], slopes)
    extra = with_graph((), (), of_f)
    return Step(value, (gradient,), share, *update, inner, None, None, extra, objective.outer)


def update_rows(rule: Any, table: Rows, batch: Batch, inner: Array, share: Array, space: Space) -> Update:
    """Update the rows of the anchors of all processes by the estimates of their inner values."""
    rows, written, there = at(batch.rows, batch.every), None if is_positive(share) else share > 0, share
    if batch.repeats:  # a row is updated once, by the mean of its estimates
        slot, weight = slots_of(rows), cast(share > 0, share)
        there = counted(slot, len(rows), weight)
        written = taken(there, slot) > 0
        mean = taken(space.group_mean(inner, slot, weight, there), slot)
        inner = namespace(rows).where(column(written, inner), mean, inner)
    before, rate = table.read(rows, inner), table.rate(rows)
    met = Met(inner, rate, lambda: table.coverage(cast(there > 0, share).sum()), space)
    new, where = updated(rule, before, met)
    return Update(rows, before, new, where, rate, written)


def evaluate(
    f: Outer, batch: Batch, update: Update, weight: Array, mine: slice, ranks: Ranks
) -> tuple[Array, Array | None]:
    """Return the value, and this process's part of it with a graph to what the caller's f has of its own."""
    new, rows = update.new, update.rows
    if f.arrays:
        terms = f.value(new, rows)  # in double precision, where they are differences of what may be large
        return terms.dot(cast(weight, terms)), None
    with torch.enable_grad():
        if batch.sample is None:
            values = f.value(new.clone(), rows)  # as f may work in place
            terms = namespace(weight).where(weight > 0, values, 0.0) * weight
            value, part = terms.detach().sum(), terms[mine].sum()
        else:
            part = (f.value(new[mine], rows[mine], batch.sample) * weight[mine]).sum()
            value = ranks.sum(part.detach())
    return value, part if part.requires_grad else None


def differentiate(
    f: Outer, batch: Batch, update: Update, space: Space, inner: Array, weight: Array, mine: slice
) -> tuple[Array, Array]:
    """Return the slopes of f at the rows, and the gradient in the inner values of this process's anchors.

    With a sample, which is of these anchors, f is differentiated for them alone.
    """
    where, rows = update.at, update.rows
    if batch.sample is not None:
        where, rows, inner, weight, mine = where[mine], rows[mine], inner[mine], weight[mine], slice(None)
    slope = f.slope(where, rows, batch.sample)
    return slope, weighed(space.slope(slope, inner, where), weight)[mine]


def in_batch(
    objective: Objective, batch: Batch, to_anchors: Any, to_candidates: Any, ranks: Ranks, *, two_sided: bool
) -> tuple[Array, ...]:
    """Return the gradients in the outputs of all processes, given those in this process's anchors and in candidates.

    With two sides, every process has the candidates' in full, or its own, if it is apart.
    """
    if not objective.has_pool:
        return tuple(to_anchors)
    size, gradients = len(batch.rows), []
    for a, b in zip(to_anchors, to_candidates, strict=True):
        own = a if batch.anchors is None else placed(a, batch.anchors, size)
        gradients.append(ranks.sum(own) + b if two_sided and batch.apart is None else own + b)
    if two_sided:
        here = None if batch.apart is None else numbered(size, batch.rows)[batch.apart]
        gradients = [objective.without_net_force(at(g, here), take(batch.x, here)) for g in gradients]
        gradients = gradients if here is None else [placed(g, here, size) for g in gradients]
    return tuple(gradients) if two_sided and batch.apart is None else tuple(ranks.sum(g) for g in gradients)


def with_graph(leaves: Any, gradients: Any, more: Array | None) -> Array | None:
    """Return a scalar that has these gradients in the leaves, and another one added."""
    if not leaves:
        return more
    with torch.enable_grad():
        scalar = sum((leaf * grad).sum() for leaf, grad in zip(leaves, gradients, strict=True))
        return scalar if more is None else scalar + more


def weighed(slopes: Array, weight: Array) -> Array:
    """Return slopes times a weight of each; 0 where that is."""
    if is_positive(weight):
        return slopes * column(weight, slopes)
    return namespace(slopes).where(column(weight > 0, slopes), slopes * column(weight, slopes), 0.0)


class Meets(NamedTuple):
    """What a fresh candidate meets: how many other anchors of the pool and of the population, in each relation."""

    there: Array
    """[S', 1] or [S', R]."""
    sizes: Array
    """[S', 1] or [S', R]."""
    total: Array | float
    """What the shares of all anchors are divided by."""
    stands: Array
    """[S', R], how many a fresh candidate that meets any stands for."""


def expected(
    objective: Objective, batch: Batch, memory: Remembered, count: Array, share: Array, ranks: Ranks = ALONE
) -> tuple[Array, Meets]:
    """Return the running means with this step, and what each fresh candidate meets."""
    xp, x, one, strata = namespace(batch.rows), batch.x, batch.pool.weight, objective.strata
    counts, stratum = cast(share > 0, share), objective.stratum(x, batch.pool.kind)
    is_known = counts if batch.every is None else placed(counts, batch.every, len(one))
    parts = (x, batch.pool.kind, is_known), (memory.x, memory.pool.kind, cast(memory.share > 0, one))
    pools = [(c, Pool(kind, weight, counted(kind, objective.kinds, weight))) for c, kind, weight in parts]
    there = objective.anchors_there(x, *pools)
    sizes, known = objective.anchor_population(x, there), objective.anchor_sizes is not None
    of_others, n, part = objective.is_mean and objective.leaves_itself_out, one.sum() + memory.pool.weight.sum(), 1.0
    if of_others and objective.sizes is not None:
        n, part = objective.sizes.sum(), objective.sizes.sum() / n
        sizes = sizes if known else sizes * part
    if objective.self_relation is not None:  # an anchor does not meet itself
        own = batch.same.copies(counts, len(one), of_candidates=True) if batch.repeats else is_known
        row = min(objective.self_relation, len(there) - 1)
        there, sizes = less(there, row, own), less(sizes, row, objective.is_anchor(x) * one if known else own)
    now = [counted(at(stratum, batch.every), strata, count), counted(stratum, strata, (there > 0) * one).reshape(-1)]
    sums = xp.concatenate(now) if batch.apart is None else ranks.sum(xp.concatenate(now))
    mean = memory.mean + memory.rate * (sums - memory.mean)
    stands = 1.0 + 0 * now[0] if objective.is_mean else objective.stratum_sizes
    if of_others:  # of which there is one less
        stands = stands * n / at_least(n - 1.0, 1)
    if stands is None:
        everyone = xp.concatenate([stratum, objective.stratum(memory.x, memory.pool.kind)])
        stands = counted(everyone, strata, xp.concatenate([one, memory.pool.weight]))
    stands = taken(stands / at_least(mean[strata:].reshape(-1, strata), TINY), stratum, 1)
    total = objective.total if known else part * sum(pool.there.sum() for _, pool in pools) + TINY
    return mean, Meets(there, sizes, total, stands)


def expected_total(objective: Objective, batch: Batch, mean: Array) -> Array:
    """Return what the shares of a batch add up to on average, or for each anchor, with the part of its stratum."""
    totals = mean[: objective.strata]
    if objective.stratum_parts is None:
        return totals.sum()
    stratum = at(objective.stratum(batch.x, batch.pool.kind), batch.every)
    return taken(totals / at_least(objective.stratum_parts, TINY), stratum)


class Fresh(NamedTuple):
    """The fresh anchors of all processes, as fresh candidates meet them."""

    slope: Array
    """The slopes of f."""
    at: Array
    """The rows that it is differentiated at."""
    share: Array


def against_fresh(
    objective: Objective, outer: Outer, space: Space, batch: Batch, memory: Remembered, fresh: Fresh, meets: Meets
) -> tuple[Any, Array]:
    """Return the candidates' side of the gradient, in which fresh candidates meet the anchors of the pool.

    The running estimates of remembered anchors meet what is fresh: the second result.
    """
    xp, first = namespace(memory.at), len(fresh.share)
    old, same = take(memory.x, memory.anchors), batch.same
    rows, share, refreshed = (at(c, memory.anchors) for c in (memory.rows, memory.share, memory.at))
    if same is not None:
        same = same if same.is_sparse else same._replace(anchors=xp.concatenate([same.anchors, rows]))
    anchors = join(take(batch.x, batch.every), old)
    pairs = objective.pairs(anchors, batch.x, batch.pool.weight, same)
    w, rate = weigh_refresh(objective, old, batch, memory)
    new, gradient = objective.against(anchors, batch.x, pairs, w, first)
    where = refreshed
    if objective.refreshes:
        mixed = space.mix(refreshed, new, rate)
        where = refreshed = mixed if is_positive(rate) else xp.where(rate > 0, mixed, refreshed)
        where = objective.floor(old, batch.x, new, where)
    slope = xp.concatenate([fresh.slope, outer.slope(where, rows)])
    where, share = xp.concatenate([fresh.at, where]), xp.concatenate([fresh.share, share])
    share = objective.worth(anchors, share)
    scale = weigh_candidates(meets.sizes, meets.there, meets.total, meets.stands)
    return gradient(weighed(slope, share), where, scale), refreshed


def weigh_refresh(objective: Objective, anchors: Any, batch: Batch, memory: Remembered) -> tuple[Weights, Array]:
    """Return what fresh candidates stand for to remembered anchors, and their part in all that there is."""
    fresh = objective.there(anchors, batch.x, batch.pool)
    pool = fresh + objective.there(anchors, memory.x, memory.pool)
    sizes, relation = objective.population(anchors, pool), objective.self_relation
    w = weigh_fresh(sizes, fresh, pool, relation, objective.self_term, objective.fills)
    there = pool if relation is None else less(pool, relation, 1.0)
    if memory.anchors is None:  # an empty place is not itself in the pool
        there = namespace(there).maximum(there, fresh)
    if objective.dim > 1:
        rate = w.known * fresh / at_least(there, 1)
        return w, (0 * rate + namespace(rate).amin(rate, 0) if objective.refreshes_alike else rate).T
    rate = fresh.sum(0) / at_least(there.sum(0), 1)
    return w, rate if objective.fills else w.known.all(0) * rate

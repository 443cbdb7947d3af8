"""What an objective is: who is an anchor, in what relation a candidate is to it, the sums over candidates, and f."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar, Self

import numpy as np
import torch

from fcco.core.arrays import (
    Array,
    as_numbers,
    at_least,
    can_read,
    counted,
    is_positive,
    moved,
    namespace,
    ones,
    where_true,
)
from fcco.core.kernels import Backward, Pairs, Same, Side
from fcco.core.outers import Outer
from fcco.core.spaces import LOG, PLAIN
from fcco.core.weights import TINY, Pool, SelfTerm, Weights, less, weigh

LEAST = -1e30
"""Below logarithms of all sums that are not empty, so that e^(-inf - LEAST) is 0."""


class Objective:
    r"""An objective of your own: the mean of f(g_i), where g_i is a mean over all other examples of the training set.

    .. math:: F = \frac 1 n \sum_i f(g_i), \qquad g_i = \frac 1 {n - 1} \sum_{j \ne i} \ell(z_i, z_j)

    A subclass has ``Columns``, ``outer`` and ``estimate``, and goes into an :class:`fcco.ObjectiveLoss`:

    - Columns: a named tuple of what a call takes, of which the first ``outputs`` (1 by default) have a gradient.
    - outer: f, a method or any function or module, as that of :class:`fcco.CoupledLoss`.
    - dim, log: how many values g has, and whether ``estimate`` returns log g.
    - estimate: g of the anchors, given the columns of both sides and the weights of the candidates.
    - is_anchor: which examples have a term f(g_i); by default, all of them.

    The candidates are the batch, those of other processes, and what the memory holds. Autograd differentiates ``outer``
    and ``estimate``, also in tensors with a gradient that are attributes.

    Examples
    --------
    Examples that are spread out, as in contrastive learning: the mean log density of the others at each.

    >>> import fcco
    >>> from typing import NamedTuple
    >>> class Points(NamedTuple):
    ...     z: torch.Tensor
    >>> class Spread(fcco.Objective):
    ...     Columns, log = Points, True
    ...
    ...     def outer(self, log_u):
    ...         return log_u
    ...
    ...     def estimate(self, anchors, candidates, weights):
    ...         return fcco.functional.logsumexp(weights.log() - torch.cdist(anchors.z, candidates.z) ** 2)
    >>> loss_fn = fcco.ObjectiveLoss(Spread(), n=100, rule=fcco.SOAP(gamma=0.5), memory=32)
    >>> z = torch.randn(8, 2, requires_grad=True)
    >>> loss_fn(z, index=torch.arange(8)).backward()
    """

    Columns: ClassVar[type[Any]]
    outer: Any
    outputs = 1
    dim = 1
    """How many values g has."""
    log = False
    """Whether inner values are logarithms."""
    arrays = False
    """Whether it works on NumPy's arrays too."""
    has_pool = True
    """Whether the examples of a batch are candidates; if not, an anchor brings its own, and nothing is remembered."""
    kinds = 1
    """How many kinds of examples there are, between which relations tell."""
    strata = 1
    """How many strata there are, of which a sampler may draw more or less than there are."""
    rings = 1
    """How many parts a memory has, each with the newest outputs of its own."""
    relations = 1
    anchor_relations = 1
    """In how many relations anchors can be with a candidate."""
    self_relation: int | None = 0
    """In which relation an anchor is to itself, if to any."""
    self_term: SelfTerm = None
    self_value = 1.0
    fills = False
    """Whether the others stand for a relation of which nobody is there; otherwise nothing is known without it."""
    is_mean = True
    """Whether g is the mean over the candidates, rather than their sum."""
    refreshes = True
    """Whether fresh candidates refresh what is remembered of g, which adds noise where f is a power."""
    refreshes_alike = False
    """Whether all relations are refreshed at the least of their rates, so that one does not lag behind another."""
    repels = False
    """Whether candidates that are remembered only push outputs away. In the gradient, a deep model would flee from them
    with all outputs together, and collapse while its loss falls; so they only estimate g."""
    sizes: Array | None = None
    """[kinds], how many examples of each kind the population has; None: as the pool has them."""
    stratum_sizes: Array | None = None
    """[strata], or [S', strata] by relation, how many can meet an anchor; None: as the pool has them."""
    stratum_parts: Array | None = None
    """[strata], the part of the population's shares that each has; None: its part in the batches."""
    anchor_sizes: Array | None = None
    """[kinds], how many anchors the population has of each kind; None: as the pool has them."""
    total: float | None = None
    """What the shares of the population are divided by, if ``anchor_sizes`` is known."""

    @property
    def leaves_itself_out(self) -> bool:
        """Whether g_i is of the others alone."""
        return self.self_relation is not None and self.self_term is None

    def describe(self, x: Any) -> Any:
        """Return the columns of a batch, with those that describe the population as the batch if they are not given."""
        return x

    @property
    def parameters(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors of the objective itself that have a gradient, such as a temperature that is learnt."""
        return tuple(v for v in vars(self).values() if isinstance(v, torch.Tensor) and v.requires_grad)

    def is_anchor(self, x: Any) -> Array:
        """Return which examples have a term f(g_i), [B] of bool."""
        return ones(x[0]) > 0

    def kind(self, x: Any) -> Array:
        """Return the kind of each example, [B] of int, in 0 ... kinds - 1."""
        kind = as_numbers(self.is_anchor(x))
        return kind if self.kinds == 2 else kind * (self.kinds - 1)

    def stratum(self, x: Any, kind: Array) -> Array:
        """Return the stratum of each example, [B] of int."""
        return kind

    def ring(self, x: Any, kind: Array) -> Array:
        """Return the part of a memory that each example belongs to, [B] of int."""
        return self.stratum(x, kind)

    def group(self, x: Any) -> Array | None:
        """Return the group within which examples are compared, [B] of int; None: there is one."""
        return None

    def relation(self, anchors: Any, candidates: Any) -> tuple[Array | None, ...]:
        """Return for each relation which candidates are in it, [R] or [m, R] of bool; None: all."""
        return (None,)

    def by_relation(self, x: Any, counts: Array) -> Array:
        """Return how many of the counts, [kinds], are in each relation with examples as anchors, [S, 1] or [S, m]."""
        return counts[:, None]

    def by_anchors(self, x: Any, counts: Array) -> Array:
        """Return how many anchors, of which there are counts, are in each relation with examples as candidates."""
        return counts.sum()[None, None]

    def there(self, x: Any, candidates: Any, pool: Pool) -> Array:
        """Return how many candidates of a pool are in each relation with examples as anchors, [S, 1] or [S, m]."""
        return self.by_relation(x, pool.there)

    def anchors_there(self, x: Any, *pools: tuple[Any, Pool]) -> Array:
        """Return how many anchors of pools are in each relation with examples as candidates, [S', 1] or [S', R]."""
        return self.by_anchors(x, sum(pool.there for _, pool in pools))

    def population(self, x: Any, there: Array) -> Array:
        """Return how many of the population are in each relation with examples as anchors."""
        if self.is_mean:  # of the others, one less
            return 1.0 + self.leaves_itself_out + 0 * there
        return there if self.sizes is None else self.by_relation(x, self.sizes)

    def anchor_population(self, x: Any, there: Array) -> Array:
        """Return how many anchors of the population are in each relation with examples as candidates."""
        return there if self.anchor_sizes is None else self.by_anchors(x, self.anchor_sizes)

    def shares(self, x: Any, w: Weights, fresh: Pool) -> tuple[Array, Array]:
        """Return how much f of each anchor of a batch counts, and what adds up to what the sum is divided by."""
        share = w.known * ones(x[0])
        return share, share

    def like(self, x: Array) -> Objective:
        """Return this objective with its arrays in the library, the dtype and the place of another one.

        What is learnt stays as it is.
        """
        objective = copy.copy(self)
        for name, value in vars(self).items():
            is_array = isinstance(value, torch.Tensor | np.ndarray)
            if is_array and not (isinstance(value, torch.nn.Parameter) or getattr(value, "requires_grad", False)):
                setattr(objective, name, moved(value, x))
        return objective

    def worth(self, x: Any, share: Array) -> Array:
        """Return how much anchors of a pool count in the population, given their shares in the batches they came in."""
        return share

    def outer_of(self, inner: Array, share: Array) -> Outer:
        """Return f for a step, given the estimates of all anchors of a batch and their shares."""
        return self.outer

    def with_parameters(self, parameters: Any) -> Self:
        """Set parameters by their names; return this objective."""
        for name in vars(self).keys() & parameters.keys():
            setattr(self, name, parameters[name])
        return self

    def learning(self, parameters: Any) -> Any:
        """Return this objective with other tensors in the place of its parameters."""
        objective = copy.copy(self)
        for name, value in vars(self).items():
            for old, new in zip(self.parameters, parameters, strict=True):
                if value is old:
                    setattr(objective, name, new)
        return objective

    def of_population(self, n: int) -> Objective:
        """Return the objective of a training set of n examples, if that is all there is to know of it."""
        if self.kinds > 1 or self.sizes is not None or not self.is_mean:
            return self
        objective = copy.copy(self)
        objective.sizes = np.array([n], dtype=float)
        return objective

    def alone(self) -> Self:
        """Return the objective of a batch that is the whole population."""
        objective = copy.copy(self)
        objective.sizes = objective.anchor_sizes = objective.stratum_sizes = objective.stratum_parts = None
        return objective

    @property
    def unknown(self) -> float:
        """What stands for an inner value without a term: g = 1, where f has a derivative."""
        return 0.0 if self.log else 1.0

    def pairs(self, anchors: Any, candidates: Any, weight: Array | None, same: Same | None) -> Pairs:
        """Return which candidates an anchor is compared with."""
        group = self.group(anchors), self.group(candidates)
        same = None if self.self_relation is None else same
        return Pairs(self.relation(anchors, candidates), weight, same, None if group[0] is None else group)

    def pool(self, x: Any, weight: Array) -> Pool:
        """Return examples as candidates."""
        kind = self.kind(x)
        return Pool(kind, weight, counted(kind, self.kinds, weight))

    def weigh(self, x: Any, candidates: Any, pool: Pool, copies: Array | float) -> Weights:
        """Return what each candidate of a pool stands for."""
        there = self.there(x, candidates, pool)
        sizes, relation = self.population(x, there), self.self_relation
        leaves_out = self.self_term in (None, "exact")
        if relation is not None and sizes is there and leaves_out and not isinstance(copies, float):
            sizes = less(sizes, relation, copies - 1)  # the copies of an anchor are one example
        return weigh(sizes, there, copies, relation, self.self_term, self.fills)

    def estimate(self, anchors: Any, candidates: Any, weights: Array) -> Array:
        """Return g (log g in log space) of anchors, which must be linear in the weights.

        Parameters
        ----------
        anchors, candidates : named tuple of Tensor of shape (m, ...) and (R, ...)
            The columns of both sides.
        weights : Tensor of shape (m, R)
            The weight of each candidate in the mean over all others: 0 for the anchor itself, and for empty places.

        Returns
        -------
        Tensor of shape (m,) or (m, dim)
            The inner values.
        """
        raise NotImplementedError

    def inner(self, anchors: Any, candidates: Any, pairs: Pairs, w: Weights) -> tuple[Array, Backward]:
        """Return g and its ``backward``, by autograd."""
        k, m = self.outputs, len(anchors[0])
        columns = [column.expand(m, -1) for column in pairs.columns(ones(candidates[0]), dense=True)]
        if pairs.same is not None:
            columns = [pairs.same.without(column.clone()) for column in columns]
        weights = torch.stack(columns) * (w.each if w.each.ndim == 3 else w.each[:, :, None])
        weights = weights[0] if self.relations == 1 else weights
        own = () if w.own is None else (w.own * ones(anchors[0]),)

        def estimate(*leaves: Any) -> Array:
            one, two = type(anchors)(*leaves[:k], *anchors[k:]), type(candidates)(*leaves[k : 2 * k], *candidates[k:])
            inner = self.learning(leaves[2 * k :]).estimate(one, two, weights, *own)
            if inner.shape != (m, self.dim)[: 1 + (self.dim > 1)]:
                expected = f"[{m}]" if self.dim == 1 else f"[{m}, {self.dim}]"
                raise ValueError(
                    f"estimate must return the inner values of {m} anchors, {expected}; got {list(inner.shape)}"
                )
            return inner

        inner, pull = differentiated(estimate, (*anchors[:k], *candidates[:k], *self.parameters))

        def backward(grad: Array, side: Side = "both") -> Any:
            made = pull(grad)
            return made[:k], made[k : 2 * k], *made[2 * k :]

        return inner, backward

    def against(self, anchors: Any, candidates: Any, pairs: Pairs, w: Weights, first: int) -> tuple[Array, Any]:
        """Return the inner values of remembered anchors, and what the candidates get."""
        old = type(anchors)(*(x[first:] for x in anchors))

        def gradient(slope: Array, at: Array, scale: Array) -> Any:
            space = LOG if self.log else PLAIN
            inner, back = self.inner(anchors, candidates, pairs, Weights(scale[:, None], None, ones(scale) > 0))
            return back(space.slope(slope, inner, at))[1]

        return self.inner(old, candidates, self.pairs(old, candidates, pairs.weight, None), w)[0], gradient

    def without_net_force(self, gradient: Array, x: Any) -> Array:
        """Return the gradient of fresh outputs without what, on average over batches, all outputs have in common.

        If F does not change when all outputs move together, the gradients of all outputs add up to 0, and those of a
        batch with a memory do so on average: the rest is noise, which grows with the mean of the features.
        """
        return gradient

    def floor(self, anchors: Any, candidates: Any, inner: Array, at: Array) -> Array:
        """Return the rows of remembered anchors that f is differentiated at; a fresh estimate may be far above them."""
        return at


class OneKernel(Objective):
    """An objective of sums of one kernel, whose backward is written down, on NumPy's arrays and torch's."""

    self_relation: int | None = None
    is_mean = False
    parameters: tuple[torch.Tensor, ...] = ()

    def sums(self, anchors: Any, candidates: Any, pairs: Pairs) -> tuple[Array, Backward]:
        """Return the bare sums over the candidates in each relation, [S, m], and their ``backward``: a kernel does."""
        raise NotImplementedError

    def inner(self, anchors: Any, candidates: Any, pairs: Pairs, w: Weights) -> tuple[Array, Backward]:
        """Return g, [m] or [m, dim], and its ``backward``: to the outputs of both sides, then to the parameters."""
        folded = self.folded(pairs, w, candidates)
        if folded is not None:
            pairs, w, _ = folded
        bare, back = self.sums(anchors, candidates, pairs)
        inner, of_bare = self.weighted(bare, w)

        def backward(grad: Array, side: Side = "both") -> Any:
            return back(of_bare * (grad.T if self.dim > 1 else grad), side)

        return inner, backward

    def folded(self, pairs: Pairs, w: Weights, candidates: Any) -> tuple[Pairs, Weights, Array] | None:
        """Return one relation in place of several, if all anchors weigh a candidate alike and g is one sum.

        The weights of the candidates, without those that pairs had, are the third result.
        """
        if self.dim > 1 or w.each.shape[1] != 1 or len(w.each) == 1 or pairs.relations[0].ndim > 1:
            return None
        weight = pairs.relations[0] * w.each[0]
        for mask, one in zip(pairs.relations[1:], w.each[1:], strict=True):
            weight = weight + mask * one
        total = weight if pairs.weight is None else weight * pairs.weight
        return Pairs((None,), total, pairs.same, pairs.group), Weights(None, w.own, w.known, w.there), weight

    def weighted(self, bare: Array, w: Weights) -> tuple[Array, Array]:
        """Return g, given the bare sums, and its derivative in them, [S, 1] or [S, m]."""
        xp, one, place = namespace(bare), len(bare) == 1, self.self_relation
        if not self.log:
            each = w.each if w.each is not None else xp.ones_like(bare[:, :1])
            parts = bare * each
            if w.own is not None:
                parts[0 if one else place] += w.own * self.self_value
            return parts.T if self.dim > 1 else parts[0] if one else parts.sum(0), each
        logs = parts = bare if w.each is None else bare + xp.log(w.each)
        if w.own is not None:
            own = xp.zeros_like(bare[0]) + math.log(w.own) if isinstance(w.own, float) else xp.log(w.own)
            mine = xp.logaddexp(parts[0 if one else place], own)
            parts = mine[None] if one else xp.stack([mine if k == place else part for k, part in enumerate(parts)])
        total = parts if self.dim > 1 else parts[0]
        if self.dim == 1 and not one:
            for part in parts[1:]:
                total = xp.logaddexp(total, part)
        of_bare = xp.exp(logs - at_least(total, LEAST))
        return total.T if self.dim > 1 else total, of_bare

    def against(self, anchors: Any, candidates: Any, pairs: Pairs, w: Weights, first: int) -> tuple[Array, Any]:
        """Compare the anchors of a pool, of which those from ``first`` on are remembered, with fresh candidates.

        Returns the inner values of these, given their weights, and what the candidates get, as a function of the slopes
        of f, the rows that it is differentiated at, and the scale of each candidate.
        """
        folded, weight = self.folded(pairs, w, candidates), None
        if folded is not None:
            pairs, w, weight = folded
        bare, back = self.sums(anchors, candidates, pairs)

        def gradient(slope: Array, at: Array, scale: Array) -> Any:
            xp, grad = namespace(bare), slope.T if self.dim > 1 else slope[None]
            if self.log:
                away = bare - (at.T if self.dim > 1 else at)  # inf from a row that has nobody: f is flat there
                grad = where_true(away < math.inf, grad * xp.exp(away))
            elif len(bare) > len(grad):
                grad = grad + 0 * bare
            if weight is not None:
                scale = scale / weight if is_positive(weight) else scale * (weight > 0) / at_least(weight, TINY)
            return back(grad, "candidates", scale)[1]

        return self.weighted(bare[:, first:], w)[0], gradient


def differentiated(function: Any, leaves: Any) -> tuple[torch.Tensor, Any]:
    """Return a function's value, and its ``backward``: by autograd, but in transforms and compilers by torch.func."""
    if not can_read(leaves[0]):
        made: Any = torch.func.vjp(function, *leaves)
        return made
    if torch.is_inference_mode_enabled():  # where nothing has a gradient
        return function(*leaves), lambda grad: tuple(0 * leaf for leaf in leaves)
    with torch.enable_grad():
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        inner = function(*leaves)
    return inner.detach(), lambda grad: gradients(inner, leaves, grad)


def gradients(of: torch.Tensor, leaves: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the gradients in the leaves; 0 for those that have no part."""
    return torch.autograd.grad(of, leaves, grad, allow_unused=True, materialize_grads=True)

"""Losses that compare positives with negatives: average precision and p-norm push."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from fcco._checks import is_plain, reads_are_free, shape_of, whole_number
from fcco._pool import Estimate, Pool
from fcco.core.rules import SOAP, Rule
from fcco.functional._checks import check_number
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.functional._inner_bipartite import average_precision_inner, p_norm_push_inner
from fcco.functional._surrogates import SurrogateLike, resolve_surrogate
from fcco.losses._array_memory import can_remember
from fcco.losses._array_outer import LogPower, MinusRatio, Power
from fcco.losses._base import Default, Loss, choose, count_both_classes, minus_share
from fcco.losses._by_hand import step_by_hand
from fcco.losses._classes import PerClass, check_n_pos, count_known, count_per_class, known_labels, refuse_memory
from fcco.losses._hand_bipartite import average_precision_by_hand, can_fuse, p_norm_push_by_hand
from fcco.losses._hand_memory import remembering_average_precision, remembering_p_norm_push
from fcco.losses._options import AveragePrecisionOptions, PNormPushOptions
from fcco.losses._population import check_members, outer_only, split
from fcco.losses._temperature import AutoTemperature, ScoreDeviation, TemperedLoss
from fcco.losses.memory import Memory

# What measured best; see docs/defaults.md.
AVERAGE_PRECISION = Default(SOAP(gamma=0.7), Memory(256), beside=SOAP(gamma=0.7))
P_NORM_PUSH = Default(SOAP(gamma=0.5), Memory(4096), remembers=False)


_PROBABLE_STEPS = 100  # with all scores in [0, 1], before a warning
_WIDE_TEMPERATURE = 0.25  # of probabilities, which differ by at most 1


def _check_counts(n: Any, n_pos: Any) -> tuple[int, int | tuple[int, ...]]:
    """Return n and the number of positives, or one for each class; raise if they are labels."""
    if n is None or n_pos is None:
        raise TypeError(
            "AveragePrecisionLoss needs n and n_pos, the numbers of training examples and of positives: "
            "AveragePrecisionLoss.from_targets(target) counts them"
        )
    n, length = whole_number("n", n), getattr(n_pos, "__len__", lambda: 0)
    if getattr(n_pos, "ndim", 1) > 1 or (getattr(n_pos, "ndim", 1) and length() == n > 2):
        raise ValueError(
            "n_pos must be an integer, or one for each class; got what looks like the labels of n examples. "
            "Use AveragePrecisionLoss.from_targets(target)"
        )
    return n, check_n_pos(n, n_pos)


def _ratio(u: Tensor) -> Tensor:
    """Return f = -u_1 / u_2."""
    return -u[:, 0] / u[:, 1]


@dataclass(frozen=True)
class _Power:
    """The outer function f(u) = u^p, given u or log u."""

    p: float
    log: bool

    def __call__(self, u: Tensor) -> Tensor:
        return torch.exp(self.p * u) if self.log else u.pow(self.p)


class AveragePrecisionLoss(TemperedLoss):
    r"""Negative of a surrogate of average precision over the whole training set, estimated from small batches.

    .. math:: F = -\frac{1}{n_+} \sum_{i \in S_+}
        \frac{\sum_{j \in S_+} \ell((h_j - h_i) / \tau)}{\sum_{j \in S} \ell((h_j - h_i) / \tau)}

    Both sums include the own term j = i, which is 1 if ℓ is bounded ("ramp" or "sigmoid") and ℓ(0) otherwise.

    Parameters
    ----------
    n : int
        The number of training examples.
    n_pos : int or sequence of C ints
        The number of positives among them, or that of each class; see also :meth:`from_targets`.
    margin : float, default 1.0
        The margin of the hinges. Other surrogates ignore it.
    surrogate : str or callable, default "ramp"
        The surrogate ℓ: "ramp", "sigmoid", "squared_hinge", "hinge", "logistic", "exp", or an elementwise function with
        ℓ(0) > 0. Only a bounded one follows average precision; see :func:`fcco.functional.average_precision_loss`.
    temperature : float, callable or "auto", default 1.0
        The temperature τ in units of the scores, or a function of the number of steps taken so far. It has to follow
        the spread of the scores: with a τ far above their standard deviation the loss is nearly linear in them, and its
        minimum may rank worse than cross entropy. With "auto", τ is .0625 times the standard deviation of the scores of
        about the last 100 batches, each label weighted by its share in the training set; see the notes.
    rule : Rule or None, default None
        How rows are updated; see :class:`fcco.SOX`. ``fcco.BSGD()`` has no table. It is the in-batch loss, weighed by
        the population's share of positives instead of the batch's. A rule without ``memory`` has none. If neither is
        given, they are ``fcco.SOAP(gamma=0.7)`` and a memory of 256 outputs per class. With ``memory`` alone, there is
        no table.
    own_term : {"exact", "sampled"}, default "sampled"
        "exact" counts the own term once, which is unbiased. "sampled" weighs it like the other terms of the batch, as
        in-batch losses do.
    memory : Memory, int or None, default None
        Which outputs of recent batches to compare with; a number is that of outputs per class, and 0 stands for
        none. See :class:`fcco.Memory`.

    Raises
    ------
    ValueError
        If ℓ(0) is not positive, or if ``n_pos`` exceeds ``n``.

    See Also
    --------
    fcco.functional.average_precision_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(scores, target, index)`` takes three tensors of shape (B,): scores, targets (0 and 1, or bool), and
    rows in [0, n). It returns a scalar.

    The batch may hold any share of positives, because ``n`` and ``n_pos`` describe the population, whose objective is
    estimated. A positive has no term if the batch has no negative or, with an exact own term, no other positive. With
    "exp" the loss works in log space.

    **Several classes.** If ``n_pos`` has a number for each class, scores have the shape (B, C), and targets the same
    shape, with -1 or NaN for missing labels, or they are classes of shape (B,). Missing labels need a loss made by
    :meth:`from_targets`, which counts them. The table has a row for each example and class, and there is no memory. The
    loss is the mean over the classes that have a term in the batch. A class that many batches lack therefore weighs
    less than in the exact objective.

    The gradient of AP hardly reaches positives far down the list, so this loss alone does not train a network from
    scratch. Use it with ``temperature="auto"`` on the logits of a network that cross entropy has trained.

    **temperature="auto".** Each class has a τ of its own, without a gradient. Constant scores count as if their
    deviation were 1. The moments of the scores are a buffer, the same on all ranks. ``eval()`` uses it as it is; a loss
    that has not taken a step uses the deviation of the batch instead.

    The default rule, memory and own term were chosen by measurement; see docs/defaults.md and docs/memory.md.

    References
    ----------
    .. [1] Qi et al., *Stochastic Optimization of Areas Under Precision-Recall Curves*, NeurIPS 2021.

    Examples
    --------
    >>> loss_fn = AveragePrecisionLoss.from_targets([1, 0, 0, 1, 0])
    >>> scores = torch.tensor([0.2, 0.4, 0.1, 0.9], requires_grad=True)
    >>> loss_fn(scores, torch.tensor([1, 0, 0, 1]), index=torch.tensor([0, 1, 2, 3])).backward()
    """

    deviation: ScoreDeviation | None
    """What ``temperature="auto"`` follows; None for other temperatures."""
    _in_range = 0
    """For how many steps all scores have been in [0, 1], or all the steps that are looked at."""
    _outside: Tensor | None = None

    def __init__(
        self,
        n: int | None = None,
        n_pos: int | Sequence[int] | None = None,
        margin: float = 1.0,
        surrogate: SurrogateLike = "ramp",
        temperature: AutoTemperature = 1.0,
        rule: Rule | None = None,
        own_term: OwnTerm = "sampled",
        memory: Memory | int | None = None,
    ) -> None:
        ell = resolve_surrogate(surrogate, margin)
        n, counts = _check_counts(n, n_pos)
        per_class = None if isinstance(counts, int) else PerClass(n, len(counts), counts, takes_missing=False)
        if per_class is not None:
            refuse_memory(memory)
            n, memory = n * per_class.count, 0
        rule, memory = choose(rule, memory, AVERAGE_PRECISION, strata=2)
        super().__init__(minus_share if ell.is_exp else _ratio, n, dim=2, rule=rule, log=ell.is_exp, memory=memory)
        self.n_pos = counts if isinstance(counts, int) else sum(counts)
        self._per_class = per_class
        self._with_outer(self.n_pos)._identify(n_pos=torch.tensor(counts) if per_class else self.n_pos)
        if not (at_zero := ell.at_zero(torch.zeros((), dtype=torch.float64))) > 0:
            raise ValueError(
                f"surrogate must be positive at 0 for average precision; got {ell.name}, which is {at_zero} there"
            )
        check_own_term(own_term)
        self.surrogate = ell
        self.own_term: OwnTerm = own_term
        if isinstance(temperature, str) and temperature != "auto":
            raise TypeError(f"temperature must be a number, a function or 'auto'; got {temperature!r}")
        self._set_temperature(1.0 if temperature == "auto" else temperature)
        self.deviation = ScoreDeviation(self._sizes()) if temperature == "auto" else None
        if temperature == "auto":
            self.temperature = "auto"

    @classmethod
    def from_targets(cls, target: Any, **options: Unpack[AveragePrecisionOptions]) -> AveragePrecisionLoss:
        """Create the loss with n and n_pos counted in the training targets.

        Parameters
        ----------
        target : array-like of shape (n,) or (n, C)
            The labels of the training data: 0 and 1, or bool. With a column for each class, -1 and NaN stand for
            missing labels.
        **options
            Further arguments of the constructor.

        Returns
        -------
        AveragePrecisionLoss
            The loss.
        """
        n, n_pos = count_per_class(target)
        loss = cls(n, n_pos, **options)
        if loss._per_class is not None:
            n_known = count_known(target)
            loss._per_class = replace(loss._per_class, n_known=n_known, takes_missing=True)
            loss._identify(n_known=torch.tensor(n_known))
            if loss.deviation is not None:
                loss.deviation = ScoreDeviation(loss._sizes())
        return loss._know_labels(*known_labels(target))

    def forward(self, scores: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        scores : Tensor of shape (B,) or (B, C)
            The scores, with a column for each class if there are several.
        target : Tensor of shape (B,) or (B, C)
            The labels: 0 and 1, or bool. With a column for each class, -1 and NaN stand for missing labels. For several
            classes, they may also be the classes, integers of shape (B,).
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()``.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        self._watch_range(scores)
        if self.temperature != "auto":
            return self._loss_at(None, scores, target, index)
        if self.deviation is None:
            raise ValueError("temperature must be a number or a function; pass temperature='auto' to the constructor")
        temperature, moments = self.deviation.temperature(self.coupled, scores, target)
        loss = self._loss_at(temperature, scores, target, index)
        if moments is not None and not self.coupled.is_frozen:
            self.deviation.moments.copy_(moments)
        return loss

    if TYPE_CHECKING:  # forward, but with an index, which the defaults need in training; it may be None

        def __call__(self, scores: Tensor, target: Tensor, index: Tensor | None) -> Tensor: ...

    def _loss_at(self, temperature: Any, scores: Tensor, target: Tensor, index: Any) -> Tensor:
        """Return the loss of a batch; ``temperature`` has one τ for each class, or is None for the option."""
        estimate = partial(self._estimate, temperature=temperature)
        if self._per_class is not None:
            return self._per_class.loss(self, estimate, scores, target, index)
        by_hand = can_fuse(self.coupled, self.surrogate, scores, target) and not self.surrogate.is_exp
        if by_hand and self._agrees(target, index):
            loss = self._by_hand(temperature, scores, target, index)
            if loss is not None:
                return loss
        return self._loss(estimate, scores, target, index=index, stratum=target, check=self._check)

    def _by_hand(self, temperature: Any, scores: Tensor, target: Tensor, index: Any) -> Tensor | None:
        """Return the loss of a batch, or None if the engine has to take the step."""
        options: dict[str, Any] = {
            "surrogate": self.surrogate,
            "temperature": float(self._temperature_now() if temperature is None else temperature[0]),
            "n_pos": self.n_pos,
            "exact": self.own_term == "exact",
        }
        estimate = partial(average_precision_by_hand, n=self.n, **options)
        by_itself = partial(step_by_hand, self.coupled, (scores,), index, MinusRatio(), estimate, target)
        if self.memory is None:
            return by_itself()
        if not can_remember(self.memory, scores):
            return None
        return remembering_average_precision(self.coupled, scores, target, index, by_itself=by_itself, **options)

    def _estimate(self, pool: Pool, k: int = 0, temperature: Any = None) -> Estimate:
        """Estimate the inner values of the positives of class k in a pool."""
        if self._per_class is None:
            self._check_one_class(*pool.own)
        n, n_pos = (self.n, self.n_pos) if self._per_class is None else self._per_class.sizes(k)
        return average_precision_inner(
            *pool.own,
            rivals=pool.rivals,
            rows=pool.repeated_rows,
            surrogate=self.surrogate,
            temperature=self._temperature_now() if temperature is None else temperature[k],
            n=self._of_population(n),
            n_pos=n_pos,
            own_term=self.own_term,
            recall=pool.recall,
        )

    def _sizes(self) -> list[tuple[int, int]]:
        """Return how many negatives and positives of each class the population has."""
        per_class = self._per_class
        sizes = [(self.n, self.n_pos)] if per_class is None else map(per_class.sizes, range(per_class.count))
        return [(max(n - n_pos, 0), n_pos) for n, n_pos in sizes]

    def _check_one_class(self, scores: Any, target: Any) -> None:
        """Raise if a batch has a column for each class."""
        for name, values in (("scores", scores), ("target", target)):
            if isinstance(values, Tensor) and values.dim() == 2 and values.shape[1] > 1:
                raise ValueError(
                    f"{name} must have the shape [B], because this loss is that of one class; got {shape_of(values)}. "
                    "For a column for each class, make it by from_targets(target) with target of the shape [n, C]"
                )

    def _watch_range(self, scores: Any) -> None:
        """Warn once if scores look like probabilities, whose differences are small beside the temperature."""
        learning = self._in_range < _PROBABLE_STEPS and self.training and torch.is_grad_enabled() and is_plain()
        if not (learning and self.surrogate.bounded and isinstance(scores, Tensor)):
            return
        if isinstance(self.temperature, float) and self.temperature < _WIDE_TEMPERATURE:
            return
        self._in_range += 1
        values = scores.detach()
        outside = ((values < 0) | (values > 1)).any()
        self._outside = outside if self._outside is None else self._outside | outside
        is_last = self._in_range == _PROBABLE_STEPS  # a device is waited for once
        if (is_last or reads_are_free(outside)) and bool(self._outside):
            self._in_range = _PROBABLE_STEPS
        elif is_last:
            reason = f"whose differences are small beside the temperature ({self.temperature!r})"
            warnings.warn(
                f"all scores of {_PROBABLE_STEPS} steps were in [0, 1]: pass logits rather than probabilities, "
                + ("whose gradients vanish near 0 and 1" if self.temperature == "auto" else reason),
                stacklevel=6,
            )

    def _check(self, pool: Pool) -> None:
        """Refuse a batch that contradicts the training data."""
        check_members(pool, 1, split(self.n, self.n_pos, "n_pos", "positive", "negative"))
        self._check_labels(pool)


class PNormPushLoss(Loss):
    r"""How far negatives rise above positives, where the highest negatives weigh most.

    .. math:: F = \frac{1}{n_-} \sum_{i \in S_-} \Bigl( \frac{1}{n_+} \sum_{j \in S_+} \ell(h_i - h_j) \Bigr)^p

    Parameters
    ----------
    n : int
        The number of training examples.
    p : float, default 4
        The exponent, at least 1. The larger it is, the more the top of the list counts.
    surrogate : str or callable, default "exp"
        The surrogate ℓ: "exp", "squared_hinge", "hinge", "logistic", "sigmoid", or an elementwise function.
    margin : float, default 1.0
        The margin of the hinges.
    rule : Rule or None, default None
        How rows are updated; see :class:`fcco.SOX`. ``fcco.BSGD()`` gives the in-batch loss. If neither a rule nor a
        memory is given, the rule is ``fcco.SOAP(gamma=0.5)``.
    memory : Memory, int or None, default None
        Which outputs of recent batches to compare with; a number is that of outputs per class, and None and 0 stand
        for none. A memory without a rule has no table. See :class:`fcco.Memory`.

    Raises
    ------
    ValueError
        If ``p`` is below 1.

    See Also
    --------
    fcco.functional.p_norm_push_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(scores, target, index)`` takes three tensors of shape (B,): scores, targets (0 and 1, or bool), and
    rows in [0, n). It returns a scalar.

    With "exp" the loss works in log space and overflows only if its value or its gradient does. The value is the p-th
    power of an exponential: with p = 4 it overflows in single precision if a negative is 22 above the positives. A step
    that would overflow raises :class:`fcco.NotFiniteError` and changes nothing. Start from small scores: from large
    ones, the value is so large that no step size works.

    The default rule and memory were chosen by measurement; see docs/defaults.md and docs/memory.md.

    References
    ----------
    .. [1] Rudin, *The P-Norm Push*, JMLR 2009.

    Examples
    --------
    >>> loss_fn = PNormPushLoss(n=5)
    >>> scores = torch.tensor([0.2, 0.4, 0.1, 0.9], requires_grad=True)
    >>> loss_fn(scores, torch.tensor([1, 0, 0, 1]), index=torch.tensor([0, 1, 2, 3])).backward()
    """

    def __init__(
        self,
        n: int,
        p: float = 4,
        surrogate: SurrogateLike = "exp",
        margin: float = 1.0,
        rule: Rule | None = None,
        memory: Memory | int | None = None,
    ) -> None:
        check_number(p, "p", at_least=1)
        ell = resolve_surrogate(surrogate, margin)
        rule, memory = choose(rule, memory, P_NORM_PUSH, strata=2, refresh=False)
        super().__init__(_Power(p, ell.is_exp), n, rule=rule, log=ell.is_exp, memory=memory)
        self.p, self.surrogate = p, ell
        self.coupled.outer_may_fail = True
        self.coupled.if_too_large = "start from small scores, standardise the features, or use a smaller p"

    @classmethod
    def from_targets(cls, target: Any, **options: Unpack[PNormPushOptions]) -> PNormPushLoss:
        """Create the loss with n and the number of negatives counted in the training targets.

        Parameters
        ----------
        target : array-like of shape (n,)
            The labels of the training data: 0 and 1, or bool.
        **options
            Further arguments of the constructor.

        Returns
        -------
        PNormPushLoss
            The loss.
        """
        n, n_pos = count_both_classes(target)
        loss = cls(n, **options)._with_outer(n - n_pos)._identify(n_pos=n_pos)
        return loss._know_labels(*known_labels(target))

    def forward(self, scores: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        scores : Tensor of shape (B,)
            The scores.
        target : Tensor of shape (B,)
            The labels: 0 and 1, or bool.
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()``.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        if can_fuse(self.coupled, self.surrogate, scores, target) and self._agrees(target, index):
            loss = self._by_hand(scores, target, index)
            if loss is not None:
                return loss
        return self._loss(self._estimate, scores, target, index=index, stratum=target, check=self._check)

    if TYPE_CHECKING:  # forward, but with an index, which the defaults need in training; it may be None

        def __call__(self, scores: Tensor, target: Tensor, index: Tensor | None) -> Tensor: ...

    def _by_hand(self, scores: Tensor, target: Tensor, index: Any) -> Tensor | None:
        """Return the loss of a batch, or None if the engine has to take the step."""
        f = LogPower(self.p) if self.coupled.log else Power(self.p)
        estimate = partial(p_norm_push_by_hand, surrogate=self.surrogate, n_outer=self.coupled.n_outer)
        by_itself = partial(step_by_hand, self.coupled, (scores,), index, f, estimate, target)
        if self.memory is None:
            return by_itself()
        if not can_remember(self.memory, scores):
            return None
        options: dict[str, Any] = {"surrogate": self.surrogate, "f": f, "by_itself": by_itself}
        return remembering_p_norm_push(self.coupled, scores, target, index, **options)

    def _estimate(self, pool: Pool) -> Estimate:
        """Estimate the inner values of the negatives in a pool."""
        return p_norm_push_inner(*pool.own, rivals=pool.rivals, surrogate=self.surrogate, recall=pool.recall)

    def _check(self, pool: Pool) -> None:
        """Refuse a batch that contradicts the training data."""
        check_members(pool, 0, outer_only(self.coupled.n_outer, "negative", "positive"))
        self._check_labels(pool)

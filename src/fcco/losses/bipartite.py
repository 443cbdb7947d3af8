"""Losses that compare positives with negatives: average precision and p-norm push."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco._checks import is_plain, reads_are_free, shape_of, whole_number
from fcco.core.rules import SOAP, Rule
from fcco.core.surrogates import as_surrogate
from fcco.functional._checks import check_number
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.functional._surrogates import SurrogateLike
from fcco.losses.classes import Classes, count_per_class
from fcco.losses.memory import Default, Memory
from fcco.losses.population import Kinds, Labels, Population, as_values, count_both_classes
from fcco.losses.scored import ScoredLoss
from fcco.losses.temperature import AutoTemperature, ScoreDeviation, TemperedLoss
from fcco.objectives.bipartite import AveragePrecision, PNormPush

# What measured best; see docs/defaults.md.
AVERAGE_PRECISION = Default(SOAP(gamma=0.7), Memory(256), beside=SOAP(gamma=0.7))
P_NORM_PUSH = Default(SOAP(gamma=0.5), Memory(4096), remembers=False)

_PROBABLE_STEPS = 100  # with all scores in [0, 1], before a warning
_WIDE_TEMPERATURE = 0.25  # of probabilities, which differ by at most 1


class AveragePrecisionLoss(ScoredLoss, TemperedLoss):
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
    :meth:`from_targets`, which counts them. The table has a row for each example and class. There is no memory unless
    one is given, which then keeps outputs of each class and label. The loss is the mean over the classes that have a
    term in the batch. A class that many batches lack therefore weighs less than in the exact objective.

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

    takes_missing = False
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
        n, counts = _check_counts(n, n_pos)
        check_own_term(own_term)
        ell = as_surrogate(surrogate, margin)
        if not ell.self_value > 0:
            reason = f"got {ell.name}, which is {ell.self_value} there"
            raise ValueError(f"surrogate must be positive at 0 for average precision; {reason}")
        if isinstance(temperature, str) and temperature != "auto":
            raise TypeError(f"temperature must be a number, a function or 'auto'; got {temperature!r}")
        classes = counts if isinstance(counts, Classes) else None
        if isinstance(counts, Classes):
            sizes, count, memory = counts.sizes, counts.count, memory or 0
        else:
            sizes, count = torch.tensor([n - counts, counts], dtype=torch.float64), None
        rule, memory = AVERAGE_PRECISION.choose(rule, memory)
        objective = AveragePrecision(ell, sizes=sizes, term=own_term, classes=count)
        tau = 1.0 if isinstance(temperature, str) else temperature
        super().__init__(objective, n * (count or 1), tau, rule=rule, memory=memory)
        if temperature == "auto":
            self.temperature, self.deviation = "auto", ScoreDeviation(count)
        self.surrogate, self.own_term, self.classes = ell, own_term, classes
        if isinstance(counts, Classes):
            self.n_pos = sum(counts.n_pos or ())
            self.knows(None, self.n_pos, sizes=sizes)
        else:
            self.n_pos = counts
            kinds = Kinds.of_two(n, counts, "n_pos", ("negative", "positive"))
            self.knows(Population(1, kinds), counts, n_pos=counts)

    @classmethod
    def from_targets(cls, target: Any, **options: Any) -> AveragePrecisionLoss:
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
        n, counts, labels = count_per_class(target)
        n_pos: Any = counts
        return cls(n, n_pos, **options).knows(Population(1, labels=labels))

    def given(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns of the objective, and their rows; raise if they are not legal.

        Parameters
        ----------
        columns : sequence
            The columns of the call.
        index : Tensor of shape (B,) or None
            The rows.

        Returns
        -------
        tuple
            The columns, and the index.
        """
        for name, values in zip(self.columns, columns, strict=True):
            if isinstance(values, Tensor) and values.dim() == 2 and values.shape[1] > 1 and self.classes is None:
                raise ValueError(
                    f"{name} must have the shape [B], because this loss is that of one class; got {shape_of(values)}. "
                    "For a column for each class, make it by from_targets(target) with target of the shape [n, C]"
                )
        self._watch_range(columns[0])
        return super().given(columns, index)

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
                stacklevel=9,
            )


def _check_counts(n: Any, n_pos: Any) -> tuple[int, Any]:
    """Return n, and the number of positives or the classes; raise if they are labels."""
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
    return n, Classes.of_counts(n, n_pos)


class PNormPushLoss(ScoredLoss):
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
        rule, memory = P_NORM_PUSH.choose(rule, memory)
        ell = as_surrogate(surrogate, margin)
        super().__init__(PNormPush(ell, p), n, rule=rule, memory=memory)
        self.p, self.surrogate = p, ell
        self.knows(Population(1, Kinds.of_two(n, None, "n_pos", ("negative", "positive"))))

    @classmethod
    def from_targets(cls, target: Any, **options: Any) -> PNormPushLoss:
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
        labels = Labels.of(as_values(target) == 1, "target")
        return cls(n, **options).knows(Population(1, labels=labels), n - n_pos, n_pos=n_pos)

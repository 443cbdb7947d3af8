"""Losses of partial AUC: by soft maxima, over the highest negatives alone, and by soft maxima on both sides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fcco._checks import whole_number
from fcco._table import InnerTable
from fcco.core.arrays import cast, namespace, numbered
from fcco.core.outers import Logarithm
from fcco.core.rules import BSGD, SOAP, Rule, is_per_row
from fcco.core.step import Batch, Step, take_step
from fcco.core.surrogates import as_surrogate
from fcco.core.weights import TINY
from fcco.functional._auc import check_fpr
from fcco.functional._checks import check_number
from fcco.functional._surrogates import SurrogateLike
from fcco.losses.classes import Classes, count_per_class
from fcco.losses.memory import Default, Memory
from fcco.losses.population import Kinds, Labels, Population, as_values, count_both_classes
from fcco.losses.scored import ScoredLoss
from fcco.losses.table import FirstRows, TableRows
from fcco.objectives.given import Given, GivenInner
from fcco.objectives.partial_auc import CVaRPartialAUC, PartialAUC, TwoWayPartialAUC
from fcco.schedules import RunningMean

# What measured best; see docs/defaults.md.
PARTIAL_AUC = Default(SOAP(gamma=0.7), Memory(64), remembers=False)


class PartialAUCLoss(ScoredLoss):
    r"""One-way partial AUC: for every positive, a soft maximum over the negatives above it.

    .. math:: F = \frac{1}{n_+} \sum_{i \in S_+} \tau \log \frac{1}{n_-} \sum_{j \in S_-} e^{\ell(h_j - h_i) / \tau}

    Parameters
    ----------
    n : int
        The number of training examples.
    temperature : float, default 1.0
        The temperature τ, positive. The smaller it is, the fewer negatives count.
    surrogate : str or callable, default "squared_hinge"
        The surrogate ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", or an elementwise function. With "exp",
        ℓ itself may overflow.
    margin : float, default 1.0
        The margin of the hinges.
    rule : Rule or None, default None
        How rows are updated; see :class:`fcco.SOX`. ``fcco.BSGD()`` gives the in-batch loss. The default is
        ``fcco.SOAP(gamma=0.7)`` and no memory. With ``memory`` alone, there is no table.
    memory : Memory, int or None, default None
        Which outputs of recent batches to compare with; a number is that of outputs per class, and 0 stands for
        none. See :class:`fcco.Memory`.
    n_classes : int or None, default None
        The number of classes C, if there are several.

    Raises
    ------
    ValueError
        If ``temperature`` is not positive.

    See Also
    --------
    fcco.functional.partial_auc_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(scores, target, index)`` takes three tensors of shape (B,): scores, targets (0 and 1, or bool), and
    rows in [0, n). It returns a scalar. The loss works in log space.

    With ``n_classes``, scores have the shape (B, C), as in :class:`AveragePrecisionLoss` with several classes.

    The default rule and memory were chosen by measurement; see docs/defaults.md and docs/memory.md.

    References
    ----------
    .. [1] Zhu et al., *When AUC Meets DRO*, ICML 2022 (SOPA-s).

    Examples
    --------
    >>> loss_fn = PartialAUCLoss(n=5)
    >>> scores = torch.tensor([0.2, 0.4, 0.1, 0.9], requires_grad=True)
    >>> loss_fn(scores, torch.tensor([1, 0, 0, 1]), index=torch.tensor([0, 1, 2, 3])).backward()
    """

    def __init__(
        self,
        n: int,
        temperature: float = 1.0,
        surrogate: SurrogateLike = "squared_hinge",
        margin: float = 1.0,
        rule: Rule | None = None,
        memory: Memory | int | None = None,
        n_classes: int | Classes | None = None,
    ) -> None:
        check_number(temperature, "temperature", above=0)
        n = whole_number("n", n)
        classes: Any = n_classes
        if not isinstance(n_classes, Classes | None):
            classes = Classes(n, whole_number("n_classes", n_classes))
        rule, memory = PARTIAL_AUC.choose(rule, memory)
        if memory is not None and classes is not None and classes.n_pos is None:
            raise ValueError(
                "memory must be 0 or None with n_classes, as the numbers of positives are not known; use "
                "from_targets(...), which counts them"
            )
        sizes, count = (None, None) if classes is None else (classes.sizes, classes.count)
        objective = PartialAUC(as_surrogate(surrogate, margin), temperature, sizes, count)
        super().__init__(objective, n * (count or 1), rule=rule, memory=memory)
        self.temperature, self.surrogate, self.classes = temperature, objective.surrogate, classes
        if classes is None:
            self.knows(Population(1, Kinds.of_two(n, None, "n_pos", ("negative", "positive"))))

    @classmethod
    def from_targets(cls, target: Any, **options: Any) -> PartialAUCLoss:
        """Create the loss with n and the number of positives counted in the training targets.

        Parameters
        ----------
        target : array-like of shape (n,) or (n, C)
            The labels of the training data: 0 and 1, or bool. With a column for each class, -1 and NaN stand for
            missing labels.
        **options
            Further arguments of the constructor.

        Returns
        -------
        PartialAUCLoss
            The loss.
        """
        n, counts, labels = count_per_class(target)
        if isinstance(counts, Classes):
            loss, n_pos = cls(n, **options, n_classes=counts), torch.tensor(counts.n_pos)
            return loss.knows(Population(1, labels=labels), int(n_pos.sum()), n_pos=n_pos)
        return cls(n, **options).knows(Population(1, labels=labels), counts, n_pos=counts)


class CVaRPartialAUCLoss(ScoredLoss):
    r"""One-way partial AUC: the loss of AUC over the negatives with the highest scores alone.

    .. math:: F = \frac{1}{n_+ k} \sum_{i \in S_+} \sum_{j \in S_-^{\uparrow k}} \ell(h_j - h_i)

    If ℓ does not decrease, this is the mean over the positives of the conditional value at risk (CVaR) of ℓ.

    Parameters
    ----------
    n : int
        The number of training examples.
    n_pos : int
        The number of positives among them; see also :meth:`from_targets`.
    max_fpr : float, default 0.1
        The largest false positive rate, in (0, 1]; k = max_fpr · n₋ need not be a whole number.
    top_k : int or None, default None
        The number k of negatives, instead of ``max_fpr``.
    surrogate : str or callable, default "squared_hinge"
        The surrogate ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", "ramp", or an elementwise function.
    margin : float, default 1.0
        The margin of the hinges.
    rule : Rule, default ``fcco.SOAP(fcco.schedules.RunningMean(floor=0.1))``
        How rows are updated; see :class:`fcco.SOX`. ``fcco.BSGD()`` gives the in-batch loss, over the highest negatives
        of each batch.
    memory : Memory or int, default 0
        Which outputs of recent batches to compare with; a number is that of outputs per class. See
        :class:`fcco.Memory`.

    Raises
    ------
    ValueError
        If an option is invalid, if ``n_pos`` is not below ``n``, or if ``top_k`` exceeds the number of negatives.

    See Also
    --------
    fcco.functional.cvar_partial_auc_loss : The exact objective.
    PartialAUCLoss : A smooth form, in which all negatives count.

    Notes
    -----
    **Call.** ``loss(scores, target, index)`` takes three tensors of shape (B,): scores, targets (0 and 1, or bool), and
    rows in [0, n). It returns a scalar.

    The usual form of this objective has a threshold for every positive, which is trained with a step size of its own.
    Here the anchors are the negatives. The row of a negative tracks which share of the negatives is above it,
    and whether the negative counts follows from that. There is no threshold. The three estimates of a row are unbiased.
    The loss is not, because it is not linear in the first two: near the edge, a negative counts in part while its row
    is uncertain. In ``eval()`` mode, the share of the negatives that count is that of the training set.

    References
    ----------
    .. [1] Zhu et al., *When AUC Meets DRO*, ICML 2022 (SOPA).

    Examples
    --------
    >>> loss_fn = CVaRPartialAUCLoss.from_targets([1, 0, 0, 1, 0], max_fpr=0.5)
    >>> scores = torch.tensor([0.2, 0.4, 0.1, 0.9], requires_grad=True)
    >>> loss_fn(scores, torch.tensor([1, 0, 0, 1]), index=torch.tensor([0, 1, 2, 3])).backward()
    """

    def __init__(
        self,
        n: int,
        n_pos: int,
        max_fpr: float = 0.1,
        top_k: int | None = None,
        surrogate: SurrogateLike = "squared_hinge",
        margin: float = 1.0,
        rule: Rule = SOAP(RunningMean(floor=0.1)),  # noqa: B008 (frozen)
        memory: Memory | int = 0,
    ) -> None:
        n_neg = whole_number("n", n) - whole_number("n_pos", n_pos)
        if n_neg < 1:
            raise ValueError(f"n_pos must be below n = {n}, because the anchors are the negatives; got {n_pos}")
        check_fpr(max_fpr, top_k)
        if top_k is not None and top_k > n_neg:
            raise ValueError(f"top_k must be at most n - n_pos = {n_neg}; got {top_k}")
        share, sizes = float(max_fpr) if top_k is None else top_k / n_neg, [n_neg, n_pos]
        objective = CVaRPartialAUC(as_surrogate(surrogate, margin), share, torch.tensor(sizes, dtype=torch.float64))
        super().__init__(objective, n, rule=rule, memory=memory)
        self.n_pos, self.share, self.surrogate = n_pos, share, objective.surrogate
        kinds = Kinds.of_two(n, n_pos, "n_pos", ("negative", "positive"))
        self.knows(Population(1, kinds), n_neg, n_pos=n_pos)

    @classmethod
    def from_targets(cls, target: Any, **options: Any) -> CVaRPartialAUCLoss:
        """Create the loss with n and n_pos counted in the training targets.

        Parameters
        ----------
        target : array-like of shape (n,)
            The labels of the training data: 0 and 1, or bool.
        **options
            Further arguments of the constructor.

        Returns
        -------
        CVaRPartialAUCLoss
            The loss.
        """
        loss = cls(*count_both_classes(target), **options)
        return loss.knows(Population(1, labels=Labels.of(as_values(target) == 1, "target")))


class TwoWayPartialAUCLoss(ScoredLoss):
    r"""Two-way partial AUC: a soft maximum over the positives of soft maxima over the negatives.

    .. math:: F = \tau_+ \log \frac{1}{n_+} \sum_{i \in S_+} g_i^{\tau / \tau_+}, \qquad
        g_i = \frac{1}{n_-} \sum_{j \in S_-} e^{\ell(h_j - h_i) / \tau}

    Parameters
    ----------
    n : int
        The number of training examples.
    temperature : float, default 1.0
        The temperature τ of the negatives, positive. The smaller it is, the more the highest negatives count.
    positive_temperature : float, default 1.0
        The temperature τ₊ of the positives, positive. The smaller it is, the more the lowest positives count.
    surrogate : str or callable, default "squared_hinge"
        The surrogate ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", "ramp", or an elementwise function.
    margin : float, default 1.0
        The margin of the hinges.
    rule : Rule, default ``fcco.SOAP(gamma=0.7)``
        How rows are updated, on both levels; see :class:`fcco.SOX`. ``fcco.BSGD()`` gives the in-batch loss.

    Raises
    ------
    ValueError
        If a temperature is not positive.

    See Also
    --------
    fcco.functional.two_way_partial_auc_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(scores, target, index)`` takes three tensors of shape (B,): scores, targets (0 and 1, or bool), and
    rows in [0, n). It returns a scalar. The loss works in log space.

    The objective has three levels: a logarithm of a mean of powers of means. Two tables track them: one has a row for
    every g_i, and the other, ``over_positives``, has one row for the mean of the powers. The estimates
    of g are unbiased, and so is that of the mean of powers, given the rows of g. With ``fcco.SOX`` and rows that are
    right, the gradient is therefore unbiased.

    References
    ----------
    .. [1] Zhu et al., *When AUC Meets DRO*, ICML 2022 (SOTA-s).

    Examples
    --------
    >>> loss_fn = TwoWayPartialAUCLoss(n=5)
    >>> scores = torch.tensor([0.2, 0.4, 0.1, 0.9], requires_grad=True)
    >>> loss_fn(scores, torch.tensor([1, 0, 0, 1]), index=torch.tensor([0, 1, 2, 3])).backward()
    """

    def __init__(
        self,
        n: int,
        temperature: float = 1.0,
        positive_temperature: float = 1.0,
        surrogate: SurrogateLike = "squared_hinge",
        margin: float = 1.0,
        rule: Rule = SOAP(gamma=0.7),  # noqa: B008 (frozen)
    ) -> None:
        check_number(temperature, "temperature", above=0)
        check_number(positive_temperature, "positive_temperature", above=0)
        objective = TwoWayPartialAUC(as_surrogate(surrogate, margin), temperature, positive_temperature)
        super().__init__(objective, n, rule=rule)
        self.temperature, self.positive_temperature = temperature, positive_temperature
        self.surrogate = objective.surrogate
        self.over_positives = InnerTable(1, log=True, visits=is_per_row(rule.rate), decays=rule.decays)
        self.knows(Population(1, Kinds.of_two(n, None, "n_pos", ("negative", "positive"))))

    @classmethod
    def from_targets(cls, target: Any, **options: Any) -> TwoWayPartialAUCLoss:
        """Create the loss with n and the number of positives counted in the training targets.

        Parameters
        ----------
        target : array-like of shape (n,)
            The labels of the training data: 0 and 1, or bool.
        **options
            Further arguments of the constructor.

        Returns
        -------
        TwoWayPartialAUCLoss
            The loss.
        """
        n, n_pos = count_both_classes(target)
        loss = cls(n, **options)
        loss.knows(Population(1, labels=Labels.of(as_values(target) == 1, "target")), n_pos, n_pos=n_pos)
        loss.over_positives.identity = loss.table.identity  # so that a state is refused by both tables or by none
        return loss

    def completed(self, step: Step, rule: Rule | None) -> tuple[Step, Callable[[], None] | None]:
        """Return a step with the logarithm of the mean of powers, whose running estimate is a row of its own.

        Parameters
        ----------
        step : Step
            The step with the mean of the powers.
        rule : Rule or None
            The rule of the step. None: the batch is the whole population.

        Returns
        -------
        tuple
            The step, and a function that writes the row.
        """
        f: Any = step.outer
        xp, powers = namespace(step.new), step.value.clip(TINY, None)
        x, row = Given((xp.log(powers) + f.peak)[None]), numbered(1, step.rows)
        objective = GivenInner(Logarithm(self.positive_temperature), log=True)
        share = cast((step.share > 0).any()[None], x.inner)
        batch = Batch(x, row, objective.pool(x, share), None, None, None, slice(0, 1), repeats=False, share=share)
        view: Any = TableRows(self.over_positives, rule, self.init, 1, numpy=xp is not torch) if rule else FirstRows()
        outer = take_step(objective, rule or BSGD(), view, batch)
        scale = outer.gradients[0] / powers
        step = step._replace(value=outer.value, gradients=tuple(gradient * scale for gradient in step.gradients))
        return step, partial(view.write, outer) if rule else None

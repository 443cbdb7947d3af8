"""Losses on embeddings: neighbourhood components analysis and contrastive learning."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from torch import Tensor, is_grad_enabled, nn

from fcco._checks import missing_index, reads_are_free
from fcco._pool import Estimate, Pool
from fcco.core.rules import BSGD, SOAP, Rule
from fcco.functional._checks import check_choice
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.functional._inner_similarity import contrastive_inner, directions, nca_inner
from fcco.functional._similarity import check_temperature_of_all
from fcco.losses._array_outer import MeanLogarithm, Share
from fcco.losses._base import Default, Loss, as_values, choose, count_members, minus_share
from fcco.losses._by_hand import can_work_by_hand, step_by_hand
from fcco.losses._hand_memory_nca import can_remember_nca, remembering_nca
from fcco.losses._hand_similarity import contrastive_by_hand, nca_by_hand
from fcco.losses._likelihood import minus_log_share
from fcco.losses._options import NCAOptions
from fcco.losses._population import check_class_sizes
from fcco.losses.memory import Memory
from fcco.schedules import Power

# What measured best; see docs/defaults.md.
NCA = Default(SOAP(gamma=0.9), Memory(1024))
NCA_LOG = Default(SOAP(gamma=Power(0.1)), Memory(1024))
CONTRASTIVE = Default(BSGD(), Memory(256, "estimate"), remembers=False)


def _mean_of_both(log_u: Tensor) -> Tensor:
    """Return the mean over both anchors."""
    return log_u.mean(1)


class NCALoss(Loss):
    r"""Negative of the expected accuracy of a stochastic nearest neighbour, among all training data.

    .. math:: F = -\frac 1 n \sum_i p_i, \qquad
        p_i = \frac{\sum_{j \ne i, y_j = y_i} e^{-|z_i - z_j|^2}}{\sum_{j \ne i} e^{-|z_i - z_j|^2}}

    With ``log_likelihood``, F is the negative mean of log p_i over the examples that have a *mate*, which is another
    example of the same class. This objective also attracts examples that are far from their mates, where p_i and its
    slope are nearly 0.

    Parameters
    ----------
    n : int
        The number of training examples.
    class_sizes : array-like of shape (C,) or None, default None
        The number of members of each class 0 ... C - 1; see also :meth:`from_targets`. If given, the own class is
        weighed separately, and the batch may hold any share of it. If the batch has all classes, it may hold any share
        of the others as well. If it lacks some, its examples of other classes are taken as a random sample of all of
        them. This holds for random batches and for :class:`fcco.data.ClassSampler`, which visits classes in proportion
        to their sizes. Batches that draw some of the classes with equal probabilities give too much weight to small
        classes. If None, the batch is taken as a random sample of the training set.
    rule : Rule or None, default None
        How rows are updated; see :class:`fcco.SOX`. ``fcco.BSGD()`` gives the in-batch loss. A rule without ``memory``
        has none. If neither is given, there is a memory of 1024 outputs and no table. With ``memory=0``, the rule is
        ``fcco.SOAP(gamma=0.9)`` or, with ``log_likelihood``, SOAP with γ = 1 / visits^0.1, which is 0.8 after 10 visits
        of a row and 0.6 after 200.
    log_likelihood : bool, default False
        Whether to average log p_i instead of p_i. An example without a mate in the batch then has no term.
    memory : Memory, int or None, default None
        Which outputs of recent batches to compare with; a number is that of outputs, of all classes together, and 0
        stands for none. See :class:`fcco.Memory`.

    Raises
    ------
    ValueError
        If ``class_sizes`` are not nonnegative integers that add up to n.

    See Also
    --------
    fcco.functional.nca_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(embeddings, labels, index)`` takes embeddings of shape (B, d), labels (integers) of shape (B,), and
    rows in [0, n) of shape (B,). It returns a scalar. The loss works in log space.

    The default rule and memory were chosen by measurement; see docs/defaults.md and docs/memory.md.

    References
    ----------
    .. [1] Goldberger et al., *Neighbourhood Components Analysis*, NIPS 2004.

    Examples
    --------
    >>> import torch
    >>> loss_fn = NCALoss(n=5)
    >>> embeddings = torch.tensor([[0.0], [1.0], [2.0]], requires_grad=True)
    >>> loss_fn(embeddings, torch.tensor([0, 0, 1]), index=torch.tensor([4, 0, 2])).backward()
    """

    class_sizes: Tensor | None
    estimated_from = "embeddings"
    _has_warned = False

    def __init__(
        self,
        n: int,
        class_sizes: Any = None,
        rule: Rule | None = None,
        log_likelihood: bool = False,
        memory: Memory | int | None = None,
    ) -> None:
        class_sizes = None if class_sizes is None else as_values(class_sizes)
        strata = 1 if class_sizes is None else max(class_sizes.numel(), 1)
        rule, memory = choose(
            rule, memory, NCA_LOG if log_likelihood else NCA, strata=strata, per_stratum=False, waits=False
        )
        outer = minus_log_share if log_likelihood else minus_share
        super().__init__(outer, n, dim=2, rule=rule, log=True, memory=memory)
        self.log_likelihood = log_likelihood
        if class_sizes is not None:
            counts = class_sizes.dim() == 1 and not class_sizes.is_floating_point()
            if not counts or (class_sizes < 0).any() or int(class_sizes.sum()) != self.n:
                raise ValueError(
                    f"class_sizes must be integers >= 0 that add up to n = {self.n}; got {class_sizes.tolist()}"
                )
        self.register_buffer("class_sizes", class_sizes, persistent=False)
        self._identify(class_sizes=class_sizes)

    @classmethod
    def from_targets(cls, labels: Any, **options: Unpack[NCAOptions]) -> NCALoss:
        """Create the loss with n and the class sizes counted in the training labels.

        Parameters
        ----------
        labels : array-like of shape (n,)
            The class of each training example, an integer in 0 ... C - 1.
        **options
            Further arguments of the constructor.

        Returns
        -------
        NCALoss
            The loss.
        """
        class_sizes = count_members(labels, "labels")
        return cls(int(class_sizes.sum()), class_sizes, **options)._know_labels(as_values(labels), "labels")

    def forward(self, embeddings: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        embeddings : Tensor of shape (B, d)
            The embeddings z.
        labels : Tensor of shape (B,)
            The class of each example, an integer.
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training if the loss has a table or
            a memory.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        if index is None and self.memory is not None and self.training and is_grad_enabled():
            raise missing_index("an example must not be compared with its own output in the memory")
        stratum = None if self.class_sizes is None else labels
        if self.class_sizes is None:
            loss = self._by_hand(embeddings, labels, index)
            if loss is not None:
                return loss
        return self._loss(self._estimate, embeddings, labels, index=index, stratum=stratum, check=self._check)

    if TYPE_CHECKING:  # forward, but with an index, which the defaults need in training; it may be None

        def __call__(self, embeddings: Tensor, labels: Tensor, index: Tensor | None) -> Tensor: ...

    def _by_hand(self, embeddings: Tensor, labels: Tensor, index: Any) -> Tensor | None:
        """Return the loss of a batch, or None if the engine has to take the step."""
        f, estimate = Share(self.log_likelihood), partial(nca_by_hand, n=self.n, log_likelihood=self.log_likelihood)
        by_itself = partial(step_by_hand, self.coupled, (embeddings,), index, f, estimate, labels)
        if self.memory is None:
            return by_itself() if can_work_by_hand(self.coupled, (embeddings,), (labels,)) else None
        if not can_remember_nca(self.coupled, embeddings, labels):
            return None
        options: dict[str, Any] = {"log_likelihood": self.log_likelihood, "by_itself": by_itself}
        return remembering_nca(self.coupled, embeddings, labels, index, **options)

    def _estimate(self, pool: Pool) -> Estimate:
        """Estimate the inner values of the own examples of a pool."""
        return nca_inner(
            *pool.own,
            rivals=pool.rivals,
            rows=pool.rows,
            n=self._of_population(self.n),
            class_sizes=self._of_population(self.class_sizes),
            needs_mate=self.log_likelihood,
            recall=pool.recall,
        )

    def _check(self, pool: Pool) -> None:
        """Refuse a batch that contradicts the training data."""
        check_class_sizes(pool.rows, pool.joined()[1], self.class_sizes)
        self._check_labels(pool)
        if pool.rows is not None and reads_are_free(pool.rows) and is_grad_enabled() and not self._has_warned:
            self._warn_of_views(pool.rows, pool.joined()[0].detach())

    def _warn_of_views(self, rows: Tensor, embeddings: Tensor) -> None:
        """Warn if two examples of one row have different embeddings: they are no neighbours of each other."""
        ordered, order = rows.sort(stable=True)
        again = ordered[1:] == ordered[:-1]
        if not again.any():
            return
        first, second = order[:-1][again], order[1:][again]
        apart = (embeddings[first] - embeddings[second]).norm(dim=1)
        different = (apart > 0.01 * embeddings[first].norm(dim=1)).nonzero()  # more than by rounding, in bfloat16 too
        if len(different):
            one, other = int(first[different[0]]), int(second[different[0]])
            warnings.warn(
                f"index must be different for two views of an example; got {int(rows[one])} at positions {one} and "
                f"{other}, whose embeddings differ. Examples with the same index are not compared with each other: "
                f"create the loss with 2 n examples, and give the second view the index i + n",
                stacklevel=2,
            )
            self._has_warned = True


class ContrastiveLoss(Loss):
    r"""Global contrastive loss: every example against all others of the training set, not only those of its batch.

    .. math:: F = \frac{1}{2n} \sum_i \sum_{a \in \{first, second\}}
        \log \operatorname{mean}_c\, e^{(s(a_i, c) - s(first_i, second_i)) / \tau}

    Parameters
    ----------
    n : int
        The number of training examples.
    temperature : float or Parameter, default 0.1
        The temperature τ, positive. A ``torch.nn.Parameter`` of one number is one of the loss's parameters, and is
        learnt if the optimizer has them. A tensor that is a function of other parameters goes into each call, as
        ``loss(first, second, index, temperature=...)``. Both have the gradient of the objective.
    mode : {"two_views", "cross_modal"}, default "two_views"
        With "two_views", the candidates c are both views of all other examples. With "cross_modal", for image and text
        for example, they are those of the other modality. Both directions weigh the same, and the table has a column
        for each.
    include_positive : bool, default False
        Whether the positive pair is also a candidate.
    rule : Rule or None, default None
        How rows are updated; see :class:`fcco.SOX`. The default is ``fcco.BSGD()``, which has no table, and no memory.
        ``fcco.SOAP(gamma=0.7)`` is worth a try with a linear model, or with many passes.
    own_term : {"exact", "sampled"}, default "exact"
        How to weigh the positive pair, if it is included. With "exact" it is one candidate next to all n - 1 others.
        With "sampled" it is one next to those of the batch.
    memory : Memory, int or None, default None
        How many pairs of recent batches to remember, with the strength "estimate", or a :class:`fcco.Memory`. With the
        strength "virtual" and no guard, a deep encoder collapses.

    Raises
    ------
    ValueError
        If ``temperature`` is not positive, or if ``mode`` or ``own_term`` is invalid.

    See Also
    --------
    fcco.functional.contrastive_loss : The exact objective.
    RobustContrastiveLoss : A temperature for every example.
    SupervisedContrastiveLoss : Several positives, by their labels.

    Notes
    -----
    **Call.** ``loss(first, second, index)`` takes two tensors of shape (B, d), which the loss normalises, and rows in
    [0, n) of shape (B,). It returns a scalar. The loss works in log space.

    ``ContrastiveLoss(n, include_positive=True, own_term="sampled", rule=fcco.BSGD())`` has the gradient of InfoNCE:
    with two views that of SimCLR's NT-Xent, and across modalities that of CLIP's cross entropy in both directions.

    A temperature that is learnt has no minimum above 0 if all candidates are less similar than the positive. With
    ``include_positive=True``, as in CLIP, F is bounded below; keep τ in an interval, for example as the exponential of
    a clamped parameter.

    The default rule, memory and own term were chosen by measurement; see docs/defaults.md and docs/memory.md.

    References
    ----------
    .. [1] Yuan et al., *Provable Stochastic Optimization for Global Contrastive Learning*, ICML 2022.

    Examples
    --------
    >>> import torch
    >>> loss_fn = ContrastiveLoss(n=5)
    >>> first, second = torch.eye(3).requires_grad_(), torch.eye(3)
    >>> loss_fn(first, second, index=torch.tensor([4, 0, 2])).backward()
    """

    estimated_from = "first"

    def __init__(
        self,
        n: int,
        temperature: float | nn.Parameter = 0.1,
        mode: Literal["two_views", "cross_modal"] = "two_views",
        include_positive: bool = False,
        rule: Rule | None = None,
        own_term: OwnTerm = "exact",
        memory: Memory | int | None = None,
    ) -> None:
        rule, memory = choose(rule, memory, CONTRASTIVE)
        super().__init__(_mean_of_both, n, dim=2, rule=rule, log=True, memory=memory)
        if isinstance(temperature, Tensor) and not isinstance(temperature, nn.Parameter):
            raise TypeError("temperature must be a number or a torch.nn.Parameter; give other tensors with each call")
        check_temperature_of_all(temperature)
        check_choice(mode, "mode", ("two_views", "cross_modal"))
        check_own_term(own_term)
        self.temperature, self.mode, self.include_positive = temperature, mode, include_positive
        self.own_term: OwnTerm = own_term

    def forward(
        self, first: Tensor, second: Tensor, index: Tensor | None = None, *, temperature: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        first : Tensor of shape (B, d)
            The embeddings of the first view or modality, which the loss normalises.
        second : Tensor of shape (B, d)
            Those of the second one.
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()``.
        temperature : Tensor of one number or None, default None
            The temperature τ of this call, instead of the loss's own.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        tau: Any = self.temperature if temperature is None else temperature
        check_temperature_of_all(tau)
        if self.memory is not None:
            # What is remembered are directions, so that the guard can compare them. The engine refuses what has none.
            with suppress(TypeError, ValueError):
                first, second = directions(first, second)
        tau = tau.reshape(()) if isinstance(tau, Tensor) else tau
        if self.memory is None and isinstance(tau, float) and can_work_by_hand(self.coupled, (first, second)):
            options: dict[str, Any] = {"mode": self.mode, "n": self.n, "exact": self.own_term == "exact"}
            options |= {"temperature": tau, "include_positive": self.include_positive}
            estimate = partial(contrastive_by_hand, **options)
            loss = step_by_hand(self.coupled, (first, second), index, MeanLogarithm(), estimate)
            if loss is not None:
                return loss
        return self._loss(lambda pool: self._estimate(pool, tau), first, second, index=index)

    if TYPE_CHECKING:  # otherwise a call of a module takes anything
        __call__ = forward

    def _estimate(self, pool: Pool, temperature: float | Tensor) -> Estimate:
        """Estimate the inner values of the own examples of a pool, with either view as the anchor."""
        return contrastive_inner(
            *pool.own,
            rivals=pool.rivals,
            rows=pool.rows,
            temperature=temperature,
            mode=self.mode,
            include_positive=self.include_positive,
            n=self._of_population(self.n),
            own_term=self.own_term,
            recall=pool.recall,
        )

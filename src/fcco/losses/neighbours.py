"""Losses over neighbours in an embedding: neighbourhood components analysis and supervised contrastive learning."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, is_grad_enabled, nn

from fcco._checks import missing_index, reads_are_free, whole_number
from fcco.core.rules import SOAP, Rule
from fcco.core.step import Batch
from fcco.functional._checks import check_floats, check_integers, check_squares, refuse_where
from fcco.functional._contrastive_variants import on_sphere
from fcco.functional._similarity import check_temperature_of_all
from fcco.functional._tensors import at_least_float32
from fcco.losses.loss import ObjectiveLoss
from fcco.losses.memory import Default, Memory
from fcco.losses.population import Kinds, Labels, Population, as_values, count_members
from fcco.objectives.neighbours import NCA
from fcco.schedules import Power

# What measured best; see docs/defaults.md.
OF_SHARES = Default(SOAP(gamma=0.9), Memory(1024))
OF_LIKELIHOOD = Default(SOAP(gamma=Power(0.1)), Memory(1024))


class NCALoss(ObjectiveLoss):
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

    columns = ("embeddings", "labels")
    class_sizes: Tensor | None
    _has_warned = False

    def __init__(
        self,
        n: int,
        class_sizes: Any = None,
        rule: Rule | None = None,
        log_likelihood: bool = False,
        memory: Memory | int | None = None,
    ) -> None:
        n = whole_number("n", n)
        rule, memory = (OF_LIKELIHOOD if log_likelihood else OF_SHARES).choose(rule, memory)
        sizes = torch.tensor([n]) if class_sizes is None else as_values(class_sizes)
        counts = sizes.dim() == 1 and not sizes.is_floating_point()
        if not counts or (sizes < 0).any() or int(sizes.sum()) != n:
            raise ValueError(f"class_sizes must be integers >= 0 that add up to n = {n}; got {sizes.tolist()}")
        super().__init__(NCA(sizes.double(), likelihood=log_likelihood), n, rule=rule, memory=memory)
        self.log_likelihood = log_likelihood
        self.register_buffer("class_sizes", None if class_sizes is None else sizes, persistent=False)
        if class_sizes is not None:
            self.knows(Population(1, Kinds.of_classes(sizes)), class_sizes=sizes)

    @classmethod
    def from_targets(cls, labels: Any, **options: Any) -> Self:
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
        loss = cls(int(class_sizes.sum()), class_sizes, **options)
        return loss.knows(Population(1, labels=Labels.of(as_values(labels), "labels")))

    def forward(  # type: ignore[override]
        self, embeddings: Tensor, labels: Tensor, index: Tensor | None = None
    ) -> Tensor:
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
        return super().forward(embeddings, labels, index=index)

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
        embeddings, labels = columns
        check_floats(embeddings, "embeddings", "[B, d]")
        check_integers(labels, "labels", embeddings, "embeddings")
        z = at_least_float32(embeddings.detach()).reshape(-1)
        if not (reads_are_free(z) and torch.dot(z, z).item() < torch.finfo(z.dtype).max / 16):  # which usually decides
            check_squares(z.reshape(embeddings.shape).square().sum(1), room=16)  # a batch and a memory may be far apart
        if self.training and is_grad_enabled():
            if index is None and self.memory is not None:
                raise missing_index("an example must not be compared with its own output in the memory")
            if self.class_sizes is not None:
                labels = self._within(labels.long(), len(self.class_sizes))
        return (embeddings, labels.long()), index

    @staticmethod
    def _within(labels: Tensor, classes: int) -> Tensor:
        """Return the labels, checked to be classes."""
        if reads_are_free(labels) and labels.numpy().min() >= 0 and labels.numpy().max() < classes:
            return labels
        refuse_where("labels", labels, (labels < 0) | (labels >= classes), f"in [0, {classes})")
        return labels.clamp(0, classes - 1)  # an asynchronous check may fail after these are used as an index

    def check_known(self, batch: Batch) -> None:
        """Raise if a batch contradicts what is known; warn if two examples of one row have different embeddings.

        Parameters
        ----------
        batch : Batch
            The examples of all ranks, and their rows.
        """
        super().check_known(batch)
        if not batch.repeats or self._has_warned or not reads_are_free(torch.as_tensor(batch.rows)):
            return
        embeddings, (rows, order) = torch.as_tensor(batch.x.embedding), torch.as_tensor(batch.rows).sort(stable=True)
        again = rows[1:] == rows[:-1]
        first, second = order[:-1][again], order[1:][again]
        apart = (embeddings[first] - embeddings[second]).norm(dim=1)
        different = (apart > 0.01 * embeddings[first].norm(dim=1)).nonzero()  # more than by rounding, in bfloat16 too
        if len(different):
            one, other = int(first[different[0]]), int(second[different[0]])
            warnings.warn(
                f"index must be different for two views of an example; got {int(batch.rows[one])} at positions {one} "
                f"and {other}, whose embeddings differ. Examples with the same index are not compared with each other: "
                f"create the loss with 2 n examples, and give the second view the index i + n",
                stacklevel=2,
            )
            self._has_warned = True


class SupervisedContrastiveLoss(NCALoss):
    r"""Contrastive loss with several positives: all other training examples of the same class.

    .. math:: F = -\frac{1}{n'} \sum_i \log \frac{\sum_{j \ne i, y_j = y_i} e^{s_{ij} / \tau}}
        {\sum_{j \ne i} e^{s_{ij} / \tau}}

    Here s is the cosine similarity, and the mean is over the n' examples that are not alone in their class. This is
    L_in of [1]_; see :func:`fcco.functional.supervised_contrastive_loss`.

    Parameters
    ----------
    n : int
        The number of training examples. If a batch has two views of each, give 2n here, both views with the same label,
        and the index of a second view plus n.
    temperature : float or Parameter, default 0.1
        The temperature τ, positive. A ``torch.nn.Parameter`` of one number is one of the loss's parameters.
    class_sizes, rule, memory
        As in :class:`NCALoss`, of which this is the log-likelihood on unit vectors divided by sqrt(2 τ). The defaults
        are those of that loss, too, and have not been measured again.

    See Also
    --------
    fcco.functional.supervised_contrastive_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(embeddings, labels, index)``, as :class:`NCALoss`. With ``class_sizes``, or by
    :meth:`from_targets`, batches may have more examples of the same class than random ones.

    References
    ----------
    .. [1] Khosla et al., *Supervised Contrastive Learning*, NeurIPS 2020.

    Examples
    --------
    >>> loss_fn = SupervisedContrastiveLoss(n=5)
    >>> embeddings = torch.eye(3).requires_grad_()
    >>> loss_fn(embeddings, torch.tensor([0, 0, 1]), index=torch.tensor([4, 0, 2])).backward()
    """

    def __init__(
        self,
        n: int,
        class_sizes: Any = None,
        temperature: float | nn.Parameter = 0.1,
        rule: Rule | None = None,
        memory: Memory | int | None = None,
    ) -> None:
        super().__init__(n, class_sizes, rule=rule, log_likelihood=True, memory=memory)
        check_temperature_of_all(temperature)
        self.temperature = temperature

    def forward(  # type: ignore[override]
        self, embeddings: Tensor, labels: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        embeddings : Tensor of shape (B, d)
            The embeddings, which the loss normalises.
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
        return super().forward(on_sphere(embeddings, self.temperature, "[B, d]"), labels, index)

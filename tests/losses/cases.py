"""What the contract tests run over: every loss, with every option that changes its formula."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch

import fcco
from fcco import functional, losses


def binary(rng, n):
    return [rng.normal(size=n)], [rng.permutation(np.arange(n) % 3 == 0).astype(int)]


def labelled(rng, n):
    """Three classes, of which some labels are missing."""
    target = np.stack([rng.permutation(np.arange(n) % 3 == 0).astype(int) for _ in range(3)], 1)
    target[rng.random((n, 3)) < 0.1] = -1
    return [rng.normal(size=(n, 3))], [target]


def ranking(rng, n):
    """Queries of 1, 3, 4, ... items; the second has no relevant one, and the lone item is relevant."""
    query = np.repeat([40, -7, 3, 9, 10**12], [1, 3, 4, 5, n])[:n]
    relevance = np.tile([0, 2, 1, 0, 3], n)[:n]
    relevance[query == -7], relevance[0] = 0, 1
    order = rng.permutation(n)
    return [rng.normal(size=n)], [relevance[order], query[order]]


def survival(rng, n):
    return [rng.normal(size=n)], [rng.integers(1, 5, size=n).astype(float), rng.permutation(np.arange(n) % 3 > 0)]


def strata(rng, n):
    floats, others = survival(rng, n)
    return floats, [*others, rng.permutation(np.arange(n) % 2) - 7]


class StratifiedCox(losses.CoxLoss):
    """CoxLoss with the strata before the index."""

    def forward(self, risk, time, event, strata, index):
        return super().forward(risk, time, event, index, strata)


class StratifiedBaselineCox(losses.BaselineCoxLoss):
    """BaselineCoxLoss with strata and without an index."""

    @classmethod
    def from_targets(cls, time, event, strata, **options):
        return super().from_targets(time, event, strata=strata, **options)

    def forward(self, risk, time, event, strata):
        return super().forward(risk, time, event, strata=strata)


def classes(rng, n):
    """One class has a single member."""
    return [0.5 * rng.normal(size=(n, 3))], [rng.permutation(np.append(np.arange(n - 1) % 3, 3))]


def latent(rng, n):
    return [-rng.exponential(size=(n, 5)), rng.normal(size=(n, 5))], []


def logits(rng, n):
    return [rng.normal(size=n), rng.normal(size=(n, 4))], []


def views(rng, n):
    return [rng.normal(size=(n, 3)), rng.normal(size=(n, 3))], []


def observations(rng, n):
    return [rng.normal(size=(n, 4))], [rng.integers(0, 2, size=n)]


def grouped(rng, n):
    return [rng.exponential(size=n)], [np.arange(n) % 3]


def all_logits(target_logit, sampled_logits):
    return functional.softmax_loss(target_logit, torch.cat([target_logit.unsqueeze(1), sampled_logits], 1))


@dataclass(frozen=True)
class Case:
    """A loss with options.

    ``data`` gives its differentiable arguments and the others, in that order; ``known`` the arguments of
    ``from_targets`` by their place among the others, or None where there is no such constructor.
    """

    loss: type
    data: object
    exact: object
    known: tuple[int, ...] | None = None
    options: dict = field(default_factory=dict)
    exact_options: tuple[str, ...] = ()
    indexed: bool = True

    def __str__(self):
        # A function has its address in its text, which differs from process to process.
        named = {key: getattr(value, "__name__", value) for key, value in self.options.items()}
        if self.memory_mode is not None:
            named["memory"] = self.memory_mode
        return "-".join([self.loss.__name__, *(f"{key}={value}" for key, value in named.items())])

    @property
    def memory_mode(self):
        """What the loss uses its memory for; None where it has none."""
        memory = self.options.get("memory")
        return memory.mode if isinstance(memory, fcco.Memory) else None

    def population(self, n=13, seed=0, dtype=torch.float64, scale=1.0):
        """(differentiable tensors, others), all of n rows."""
        floats, others = self.data(np.random.default_rng(seed), n)
        floats = [torch.tensor(scale * x).to(dtype).requires_grad_() for x in floats]
        return floats, [torch.as_tensor(x) for x in others]

    def make(self, population, rule=None, **options):
        """The loss for this population."""
        floats, others = population
        options = {**self.options, **options, **({} if rule is None else {"rule": rule})}
        if not self.indexed and self.known is None:
            return self.loss(int(others[0].max()) + 1, **options)
        if self.loss is losses.SoftmaxLoss:
            options["n_classes"] = floats[1].shape[1] + 1
        if self.known is None:
            return self.loss(len(floats[0]), **options)
        return self.loss.from_targets(*(others[place] for place in self.known), **options)

    def call(self, loss_fn, population, rows=None, index=None):
        """The loss of some rows of the population (None: all)."""
        floats, others = population
        rows = torch.arange(len(floats[0])) if rows is None else torch.as_tensor(rows)
        arguments = [x[rows] for x in (*floats, *others)]
        return loss_fn(*arguments, *([rows if index is None else index] if self.indexed else []))

    def objective(self, population, rows=None):
        """The exact objective of some rows of the population (None: all)."""
        floats, others = population
        arguments = [x if rows is None else x[rows] for x in (*floats, *others)]
        return self.exact(*arguments, **{key: self.options[key] for key in self.exact_options if key in self.options})

    def with_room_for_all(self):
        """The same, with a memory from which nothing is dropped for want of room."""
        return self if self.memory_mode is None else self.with_options(memory=fcco.Memory(32, self.memory_mode))

    def with_options(self, **options):
        return replace(self, options={**self.options, **options})


TABLE = {"memory": 0}  # these losses have the table and its rule; REMEMBERING has those with a memory
AP = Case(
    losses.AveragePrecisionLoss,
    binary,
    functional.average_precision_loss,
    (0,),
    TABLE,
    exact_options=("surrogate", "margin", "temperature"),
)
PUSH = Case(
    losses.PNormPushLoss,
    binary,
    functional.p_norm_push_loss,
    (0,),
    TABLE,
    exact_options=("surrogate", "margin", "p"),
)
PARTIAL_AUC = Case(
    losses.PartialAUCLoss,
    binary,
    functional.partial_auc_loss,
    (0,),
    TABLE,
    exact_options=("surrogate", "margin", "temperature"),
)
AUC = Case(
    losses.AUCLoss,
    binary,
    functional.auc_loss,
    (0,),
    exact_options=("surrogate", "margin", "form"),
    indexed=False,
)
CVAR = Case(
    losses.CVaRPartialAUCLoss,
    binary,
    functional.cvar_partial_auc_loss,
    (0,),
    {"max_fpr": 0.4},
    exact_options=("surrogate", "margin", "max_fpr"),
)
TWO_WAY = Case(
    losses.TwoWayPartialAUCLoss,
    binary,
    functional.two_way_partial_auc_loss,
    (0,),
    exact_options=("surrogate", "margin", "temperature", "positive_temperature"),
)
NCA = Case(losses.NCALoss, classes, functional.nca_loss, (0,), TABLE, exact_options=("log_likelihood",))
NCA_LIKELIHOOD = NCA.with_options(log_likelihood=True)
LIST_NET = Case(losses.ListNetLoss, ranking, functional.list_net_loss, (0, 1), exact_options=("target",))
LIST_MLE = Case(losses.ListMLELoss, ranking, functional.list_mle_loss, (0, 1))
NDCG = Case(
    losses.NDCGLoss,
    ranking,
    functional.ndcg_loss,
    (0, 1),
    exact_options=("surrogate", "margin", "temperature", "k", "sharpness"),
)
COX = Case(losses.CoxLoss, survival, functional.cox_loss, (1,), TABLE)
BASELINE_COX = Case(losses.BaselineCoxLoss, survival, functional.cox_loss, (0, 1), indexed=False)
STRATIFIED_COX = Case(StratifiedCox, strata, functional.cox_loss, (1,), TABLE)
STRATIFIED_BASELINE_COX = Case(StratifiedBaselineCox, strata, functional.cox_loss, (0, 1, 2), indexed=False)
LATENT = Case(losses.LatentVariableLoss, latent, functional.latent_variable_loss)
SOFTMAX = Case(losses.SoftmaxLoss, logits, all_logits)
CONTRASTIVE = Case(
    losses.ContrastiveLoss,
    views,
    functional.contrastive_loss,
    options=TABLE,
    exact_options=("mode", "include_positive", "temperature"),
)
ROBUST_CONTRASTIVE = Case(
    losses.RobustContrastiveLoss,
    views,
    functional.robust_contrastive_loss,
    options={"rho": 0.3, "temperature": 0.5, "lr": 0.0, "rule": fcco.SOAP(0.5)},  # temperatures that stay
    exact_options=("mode", "include_positive", "temperature", "rho"),
)
SUPERVISED_CONTRASTIVE = Case(
    losses.SupervisedContrastiveLoss,
    classes,
    functional.supervised_contrastive_loss,
    (0,),
    {**TABLE, "temperature": 0.5},
    exact_options=("temperature",),
)
INVARIANT = Case(losses.InvariantLogisticLoss, observations, functional.invariant_logistic_loss)
GROUP_DRO = Case(losses.GroupDROLoss, grouped, functional.group_dro_loss, indexed=False, exact_options=("temperature",))
GROUP_DRO_AT_RANDOM = replace(GROUP_DRO, known=(0,))

DEFAULTS = [
    AP,
    PUSH,
    PARTIAL_AUC,
    AUC,
    CVAR,
    TWO_WAY,
    NCA,
    LIST_NET,
    LIST_MLE,
    NDCG,
    COX,
    BASELINE_COX,
    LATENT,
    SOFTMAX,
    CONTRASTIVE,
    INVARIANT,
    GROUP_DRO,
    GROUP_DRO_AT_RANDOM,
]
OWN_TERMS = [
    case.with_options(own_term=own_term)
    for own_term in ("exact", "sampled")
    for case in (
        AP,
        AP.with_options(temperature=0.3),
        AP.with_options(surrogate="sigmoid", temperature=2.0),
        AP.with_options(surrogate="squared_hinge"),
        AP.with_options(surrogate="exp"),
        AP.with_options(surrogate="exp", temperature=0.5),
        LIST_NET,
        LIST_NET.with_options(target="softmax"),
        LIST_MLE,
        NDCG,
        NDCG.with_options(temperature=0.3),
        NDCG.with_options(surrogate="squared_hinge"),
        NDCG.with_options(surrogate="exp", k=2),
        COX,
        SOFTMAX,
        CONTRASTIVE.with_options(include_positive=True, temperature=0.5),
        CONTRASTIVE.with_options(include_positive=True, mode="cross_modal"),
    )
]
REMEMBERING = [
    case.with_options(memory=fcco.Memory(4, mode))
    for mode in ("gradient", "estimate")
    for case in (
        AP,
        AP.with_options(surrogate="exp", own_term="exact"),
        PUSH,
        PARTIAL_AUC,
        CVAR,
        NCA,
        NCA_LIKELIHOOD,
        COX,
        COX.with_options(own_term="exact"),
        CONTRASTIVE,
        CONTRASTIVE.with_options(include_positive=True, mode="cross_modal"),
    )
]
CASES = [
    *OWN_TERMS,
    PUSH,
    PUSH.with_options(surrogate="logistic", p=2.5),
    PUSH.with_options(surrogate="ramp", p=2.5),
    PARTIAL_AUC.with_options(margin=0.6, temperature=0.5),
    PARTIAL_AUC.with_options(surrogate="exp"),
    AUC,
    AUC.with_options(form="min_max"),
    replace(AUC.with_options(surrogate="logistic"), data=labelled),
    CVAR,
    TWO_WAY.with_options(surrogate="logistic", temperature=0.5, positive_temperature=0.8),
    NDCG.with_options(surrogate="sigmoid", k=2, sharpness=3.0),
    NCA,
    NCA_LIKELIHOOD,
    BASELINE_COX,
    STRATIFIED_COX.with_options(own_term="exact"),
    STRATIFIED_BASELINE_COX,
    LATENT,
    CONTRASTIVE,
    CONTRASTIVE.with_options(mode="cross_modal"),
    ROBUST_CONTRASTIVE,
    ROBUST_CONTRASTIVE.with_options(mode="cross_modal", include_positive=True),
    SUPERVISED_CONTRASTIVE,
    INVARIANT,
    GROUP_DRO.with_options(temperature=0.3),
    *REMEMBERING,
    STRATIFIED_COX.with_options(memory=fcco.Memory(4)),
]
# With a row for each example and class, the table is not what the other tests take it for.
SEVERAL_CLASSES = [
    replace(AP.with_options(temperature=0.7), data=labelled),
    replace(PARTIAL_AUC.with_options(temperature=0.7), data=labelled),
]
INDEXED = [case for case in CASES if case.indexed]
RULES = [fcco.SOAP(1.0), fcco.BSGD(), fcco.SOX(0.3)]


def gradients(loss, population):
    return torch.autograd.grad(loss, population[0])


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


BATCHES = [[0, 1, 2, 3, 4, 5], [12, 3, 7, 8, 1, 6], [9, 10, 11, 4, 2, 5], [2, 0, 7, 3, 12, 1], [5, 6, 4, 8, 9, 0]]


def run(case, loss_fn, population, batches=BATCHES):
    """Values and gradients of some steps."""
    history = []
    for rows in batches:
        loss = case.call(loss_fn, population, rows)
        history += [loss.detach(), *gradients(loss, population)]
    return history

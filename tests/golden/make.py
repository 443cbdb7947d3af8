"""Golden runs: what losses and functions computed at some commit, for tests/test_golden.py to compare with.

``python tests/golden/make.py`` writes runs.npz and says which cases differ from the file before. It takes a minute.

Inputs come from NumPy's RandomState, whose numbers never change. The outputs of a batch are a function of its features
and of some weights, which SGD with limited steps updates by the gradient of the loss, so that differences propagate.
What depends on how a loss is made and on how it keeps its state stands at the top.
"""

import functools
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import fcco
from fcco import functional, losses, schedules

FILE = Path(__file__).with_name("runs.npz")
N, WIDTH, STEPS, CLASSES = 72, 5, 30, 4
FIELDS = ("values", "projections", "gradient", "table", "memory", "others")


# --- What depends on how a loss is made and keeps its state.

RENAMED = {"self_term": "own_term"}
"""Options whose names in the table of cases are not those of the library."""


def build(case):
    """The loss of a case."""
    spec = SPECS[case.loss]
    options = {**evaluate(spec.base, POPULATION), **evaluate(case.options, POPULATION)}
    options = {RENAMED.get(name, name): value for name, value in options.items()}
    name = case.loss.split()[0].split(".")[0]
    made = fcco.CoupledLoss if name == "CoupledLoss" else getattr(losses, name)
    known = spec.known if case.known is None else case.known
    if known:
        loss = made.from_targets(*(POPULATION[name] for name in known.split()), **options)
    else:
        loss = made(**({} if "n_groups" in options else {"n": N}), **options)
    return loss.double() if case.dtype == "float64" else loss


def table_of(loss):
    """The running estimates [rows, ...], NaN where a row was never updated; empty if the rule keeps none."""
    if isinstance(loss.rule, fcco.BSGD):
        return loss.table.u[:0]
    return loss.table.read(None, cold=torch.nan)


def memory_of(loss):
    """What is remembered, or None: the rows [m], and columns as matrices [m, d], outputs before others."""
    memory = getattr(loss, "memory", None)
    if memory is None:
        return None
    held = memory.born >= 0
    return memory.row[held], [column[held].reshape(int(held.sum()), -1) for column in memory.columns]


def others_of(loss):
    """Further state: temperatures, moments of scores, rows of a second level."""
    state = loss.state_dict()
    names = sorted(name for name in state if name.endswith(("tau", "moments", "temperature", "over_positives.u")))
    return [state[name] for name in names]


# --- The cases.


class Spec(NamedTuple):
    """How a loss is called: the kind of its outputs, and the columns of a batch that follow them."""

    outputs: str
    columns: str = ""
    known: str = ""
    """The columns that ``from_targets`` takes; if there are none, the loss is made with n."""
    stratum: str = ""
    """The column that batches may have uneven numbers of."""
    lr: float = 0.1
    base: str = ""
    index: bool = True


class Case(NamedTuple):
    """A run. ``options`` and ``call`` are keyword arguments of the constructor and of each call, as text."""

    loss: str
    options: str = ""
    draw: str = "random"
    """random, uneven (numbers of the stratum), lacking (it, in some batches), lists (whole), wild (some outputs)."""
    copies: str = ""
    """Whether rows repeat within a batch: alike or noisy, that is, with the same or with different outputs."""
    call: str = ""
    known: str | None = None
    columns: str | None = None
    dtype: str = "float64"

    def __str__(self):
        others = {name: value for name, value in self._asdict().items() if value != self._field_defaults.get(name)}
        named = [f"{name}={value or 'none'}" for name, value in others.items() if name not in ("loss", "options")]
        return " ".join([f"{self.loss}({self.options})", *named])


SPECS = {
    "AveragePrecisionLoss": Spec("score", "target", "target", "target", 0.5),
    "AveragePrecisionLoss of classes": Spec("scores", "targets", "targets", "target", 0.5),
    "PNormPushLoss": Spec("score", "target", "target", "target"),
    "PartialAUCLoss": Spec("score", "target", "target", "target"),
    "PartialAUCLoss of classes": Spec("scores", "targets", "targets", "target"),
    "CVaRPartialAUCLoss": Spec("score", "target", "target", "target"),
    "TwoWayPartialAUCLoss": Spec("score", "target", "target", "target"),
    "AUCLoss": Spec("score", "target", "target", "target"),
    "AUCLoss of classes": Spec("scores", "targets", "targets", "target"),
    "CoxLoss": Spec("score", "time event", "event", "event"),
    "BaselineCoxLoss": Spec("score", "time event", "time event", "event"),
    "NCALoss": Spec("vector", "label", "", "label", 0.5),
    "SupervisedContrastiveLoss": Spec("vector", "label", "", "label"),
    "ContrastiveLoss": Spec("views"),
    "RobustContrastiveLoss": Spec("views", base="rho=0.3, temperature=0.3"),
    "ListNetLoss": Spec("score", "relevance query", "relevance query", "relevant"),
    "ListMLELoss": Spec("score", "relevance query", "relevance query", "relevant"),
    "NDCGLoss": Spec("score", "relevance query", "relevance query", "relevant", 0.5),
    "SoftmaxLoss": Spec("sampled"),
    "SoftmaxLoss.in_batch": Spec("in_batch", "item"),
    "LatentVariableLoss": Spec("latent"),
    "InvariantLogisticLoss": Spec("draws", "target", "", "target"),
    "GroupDROLoss": Spec("score", "group", "group", "group", index=False),
    "MAMLLoss": Spec("tasks", base="n_parameters=3, lr=0.1"),
    "CoupledLoss": Spec("inner"),
}
LISTWISE = ("ListNetLoss", "ListMLELoss", "NDCGLoss")

CASES = []


def vary(loss, *options, **fields):
    """A case for each of these texts, which may hold several options, separated by semicolons."""
    CASES.extend(Case(loss, option, **fields) for text in options for option in text.split("; "))


def vary_batches(loss, *options):
    """The same with uneven batches, with some that lack a stratum, and with repeated rows."""
    spec = SPECS[loss]
    for draw in ("uneven", "lacking") if spec.stratum else ():
        vary(loss, *options, draw=draw)
    for copies in ("noisy",) if spec.outputs in ("sampled", "latent", "draws", "tasks") else ("alike", "noisy"):
        vary(loss, *options, copies=copies)


def each(options, rest):
    """Each of some options together with others."""
    return "; ".join(f"{rest}, {option}" for option in options.split("; "))


MOVING = "rule=SOX(0.3); rule=SOX(0.3, safeguard=False); rule=SOAP(0.3)"
NO_MOAP = f"{MOVING}; rule=BSGD(); rule=SOX(Cosine(final=0.2, steps=10)); rule=SOAP(RunningMean(floor=0.3))"
RULES = f"{NO_MOAP}; rule=MOAP(0.3)"
HINGES = "surrogate='squared_hinge'; surrogate='hinge'; surrogate='logistic'"
SURROGATES = f"surrogate='ramp'; surrogate='sigmoid'; {HINGES}; surrogate='exp'; surrogate=custom"
EXACT, SAMPLED, BOUNDED = (f"self_term='{weight}'" for weight in ("exact", "sampled", "bounded"))

for loss in SPECS:
    if loss != "CoupledLoss":
        vary(loss, "", NO_MOAP if loss.split()[0] in ("AUCLoss", "BaselineCoxLoss", "GroupDROLoss") else RULES)
        vary_batches(loss, "; rule=SOX(0.3)")
        vary(loss, "", dtype="float32" if loss == "MAMLLoss" else "bfloat16")
for loss in ("AveragePrecisionLoss", "CoxLoss", "NCALoss"):
    vary(loss, "; memory=0", dtype="float32")
    vary(loss, "rule=BSGD()", call="index=None")
for loss in ("PNormPushLoss", "PartialAUCLoss", "TwoWayPartialAUCLoss", "CoxLoss", *LISTWISE):
    vary(loss, "", known="")

AP, PUSH, PARTIAL, CVAR = "AveragePrecisionLoss", "PNormPushLoss", "PartialAUCLoss", "CVaRPartialAUCLoss"
REMEMBERING = "memory=12; memory=Memory(12, 'estimate'); rule=SOX(0.3), memory=12"
for loss in (AP, PUSH, PARTIAL, CVAR, "CoxLoss"):
    vary(loss, REMEMBERING)
    vary_batches(loss, "memory=12")
for loss in (AP, "CoxLoss"):
    vary(loss, EXACT, each("memory=0; memory=12; rule=SOX(0.3)", EXACT), "memory=0")
    vary_batches(loss, EXACT, f"memory=0; {EXACT}, rule=SOX(0.3); rule=SOX(0.3), memory=12")
vary(AP, SURROGATES, each(SURROGATES, "rule=SOX(0.3)"), "surrogate='squared_hinge', margin=0.5")
vary(AP, TEMPERATURES := "temperature=0.3; temperature=falling; temperature='auto'", each(TEMPERATURES, "memory=0"))
vary(AP, "rule=SOX(Power(0.5)); rule=MOAP(Cosine(final=0.2, steps=10)); rule=SOX(Power(0.5)), surrogate='exp'")
vary(AP, "n_pos=N_POS; n_pos=N_POS, memory=0", known="")
vary(AP, "surrogate='sigmoid', temperature='auto'", draw="lacking")
AP_CLASSES = f"{AP} of classes"
vary(AP_CLASSES, SURROGATES, EXACT, TEMPERATURES)
vary(AP_CLASSES, "n_pos=SIZES; n_pos=SIZES, temperature='auto'", known="", columns="label")
vary_batches(AP_CLASSES, EXACT)

vary(PUSH, SURROGATES, "p=2; p=1.5, surrogate='squared_hinge', margin=0.5; memory=12, surrogate='squared_hinge'")
vary(PARTIAL, SURROGATES, "temperature=0.5; margin=0.5; temperature=2.0, surrogate=custom")
vary(f"{PARTIAL} of classes", "temperature=0.5; surrogate='logistic'; surrogate='hinge', margin=0.5")
vary(f"{PARTIAL} of classes", "n_classes=4", known="", columns="label")
vary(CVAR, SURROGATES, "max_fpr=0.4; top_k=9; max_fpr=0.4, margin=0.5")
vary(CVAR, "n_pos=N_POS, max_fpr=0.3", known="")
vary("TwoWayPartialAUCLoss", SURROGATES, "temperature=0.5; positive_temperature=0.5; margin=0.5, temperature=2.0")
AUC, MIN_MAX = "AUCLoss", "form='min_max'"
vary(AUC, SURROGATES, "margin=0.5", MIN_MAX, each(f"margin=0.5; {NO_MOAP}", MIN_MAX))
vary(f"{AUC} of classes", "surrogate='logistic'", MIN_MAX, each("rule=SOX(0.3); margin=0.5", MIN_MAX))
vary(f"{AUC} of classes", "n_pos=SIZES", known="", columns="label")
for loss in (AUC, f"{AUC} of classes"):
    vary_batches(loss, MIN_MAX)

COX, BASELINE = "CoxLoss", "BaselineCoxLoss"
vary(COX, "memory=0; memory=24", EXACT, known="")
vary(COX, "; memory=0; rule=SOX(0.3); memory=12", EXACT, call="strata=strata")
vary(BASELINE, "rule=SOX(Power(0.5)); stratified=True; centred=True; max_times=8; centred=True, rule=SOX(0.3)")
vary(BASELINE, "strata=strata; strata=strata, max_times=9, rule=SOX(0.3)", call="strata=strata")
vary(BASELINE, "times=EVENT_TIMES, events=EVENT_COUNTS", known="")
vary_batches(BASELINE, "stratified=True")

NCA, SUPCON, LIKELIHOOD = "NCALoss", "SupervisedContrastiveLoss", "log_likelihood=True"
NEAR = "memory=0; memory=30; memory=Memory(30, 'estimate')"
LEARNT = "; ".join(f"temperature=learnt{rest}" for rest in ("", ", memory=0", ", memory=20", ", rule=SOX(0.3)"))
vary(NCA, NEAR, LIKELIHOOD, each(f"{MOVING}; rule=MOAP(0.3); {NEAR}", LIKELIHOOD), "rule=SOX(0.3), memory=30")
vary(NCA, each("memory=0; memory=30", "class_sizes=SIZES"))
vary(NCA, "; rule=SOX(0.3); rule=SOX(0.3), memory=30", LIKELIHOOD, known="label")
vary_batches(NCA, "memory=0; memory=30; rule=SOX(0.3), memory=30", LIKELIHOOD)
vary(SUPCON, NEAR, LEARNT, "temperature=0.3; class_sizes=SIZES, memory=0")
vary(SUPCON, "; memory=30; rule=SOX(0.3)", known="label")
vary_batches(SUPCON, "memory=0")
CONTRASTIVE, ROBUST = "ContrastiveLoss", "RobustContrastiveLoss"
INCLUDED = "include_positive=True; include_positive=True, mode='cross_modal'"
VIEWS = f"mode='cross_modal'; {INCLUDED}"
vary(CONTRASTIVE, VIEWS, each(INCLUDED, SAMPLED), "temperature=0.3", each(VIEWS, "rule=SOX(0.3)"), LEARNT)
vary(CONTRASTIVE, "memory=30", each(VIEWS, "memory=30"), "rule=SOX(0.3), memory=30")
vary(CONTRASTIVE, "; rule=SOX(0.3); memory=20", call="temperature=temperature")
vary(CONTRASTIVE, "; include_positive=True", call="index=None")
vary_batches(CONTRASTIVE, "mode='cross_modal'; memory=30", each(INCLUDED, SAMPLED))
vary(ROBUST, VIEWS, "rho=1.0; temperature=0.1; lr=0.05; lr=0.05, bounds=(0.25, 0.31); lr=0.05, rule=SOX(0.3)")
vary_batches(ROBUST, "lr=0.05, rule=SOX(0.3)")

WEIGHTS = f"{EXACT}; {SAMPLED}; {BOUNDED}"
for loss in LISTWISE:
    vary(loss, WEIGHTS, each(WEIGHTS, "rule=SOX(0.3)"), "memory=20; rule=SOX(0.3), memory=20", each(EXACT, "memory=20"))
    vary(loss, "; rule=SOX(0.3)", known="", draw="lists")
    vary(loss, "; rule=SOX(0.3), memory=20", draw="lists")
    vary_batches(loss, EXACT, "memory=20")
vary("ListNetLoss", "target='softmax'", each(f"rule=SOX(0.3); {EXACT}; memory=20", "target='softmax'"))
vary("NDCGLoss", "surrogate='sigmoid'; surrogate=custom", HINGES, "surrogate='hinge', margin=0.5")
vary("NDCGLoss", "k=3; k=3, sharpness=5.0; k=3, rule=BSGD(); temperature=0.3; temperature=falling")
vary_batches("NDCGLoss", SAMPLED)

SOFTMAX, HITS = "SoftmaxLoss", "target=item, candidates=candidates"
vary(SOFTMAX, EXACT, SAMPLED, "n_classes=20; n_classes=20, rule=SOX(0.3)", each(EXACT, "n_classes=20"))
for call in ("log_q=log_q", HITS, f"{HITS}, log_q=log_q", f"{HITS}[0], log_q=log_q[0]"):
    vary(SOFTMAX, "; rule=SOX(0.3)", each(f"{EXACT}; {SAMPLED}", "n_classes=20"), call=call)
vary(f"{SOFTMAX}.in_batch", EXACT, "n_classes=20", each(EXACT, "n_classes=20, rule=SOX(0.3)"))
vary(f"{SOFTMAX}.in_batch", EXACT, "n_classes=20; n_classes=20, rule=SOX(0.3)", call="log_q=log_shares")
vary_batches(f"{SOFTMAX}.in_batch", each(EXACT, "n_classes=20, rule=SOX(0.3)"))
vary("LatentVariableLoss", "; rule=SOX(0.3)", call="log_q=log_q")
vary("MAMLLoss", "loss=l1_loss; lr=0.3")
vary("GroupDROLoss", "temperature=0.3; temperature=0.3, rule=SOX(0.3)")
vary("GroupDROLoss", "n_groups=4; n_groups=4, temperature=0.3, rule=SOX(0.3)", known="")

COUPLED = "CoupledLoss"
for outer in ("outer=square", "outer=ratio, dim=2", "outer=square, log=True", "outer=ratio, dim=2, log=True"):
    vary(COUPLED, each(f"{RULES}; rule=SCGD(0.3)", outer))
    vary_batches(COUPLED, each("rule=SOX(0.3); rule=MOAP(0.3); rule=SCGD(0.3)", outer))
vary(COUPLED, each("rule=SOX(0.3); rule=SOAP(0.3); rule=NASA(0.3)", "outer=square, init=0.0"))
vary(COUPLED, "outer=square, rule=NASA(0.3); outer=square, n_outer=30, rule=MOAP(0.3)")
vary(COUPLED, "outer=square, log=True, init=0.5, rule=SOX(0.3)")
vary(COUPLED, each("rule=SOX(0.3); rule=SCGD(0.3)", "outer=indexed"), "outer=PReLU(), log=True, rule=SOX(0.3)")
vary(COUPLED, each("rule=SOX(0.3); rule=SOAP(0.3)", "outer=sampled"), call="sample=weight")
for call in ("weight=weight", "weight=weight > 1"):
    vary(COUPLED, each("rule=SOX(0.3); rule=MOAP(0.3); rule=BSGD(); rule=SCGD(0.3)", "outer=square"), call=call)
vary(COUPLED, "outer=square, log=True, rule=SOX(0.3)", dtype="bfloat16")
for loss in (AP, COX, NCA, "ListNetLoss"):
    vary(loss, "; rule=SOX(0.3); memory=30", draw="wild")
vary(COX, each("memory=30; rule=SOX(0.3)", EXACT), draw="wild")
vary(BASELINE, "; rule=SOX(0.3)", draw="wild")
CASES = list(dict.fromkeys(CASES))


# --- Functions of all data: outputs, columns, and keyword arguments.

STRATA = "strata=strata; entry=entry; strata=strata, entry=entry"
FUNCTIONS = {
    "average_precision_loss": ("score", "target", f"; weight=weight; temperature=0.3; {SURROGATES}"),
    "p_norm_push_loss": ("score", "target", f"; p=2; margin=0.5, surrogate='squared_hinge'; {SURROGATES}"),
    "partial_auc_loss": ("score", "target", f"; temperature=0.3; margin=0.5; {SURROGATES}"),
    "cvar_partial_auc_loss": ("score", "target", f"; max_fpr=0.35; top_k=7; margin=0.5; {SURROGATES}"),
    "two_way_partial_auc_loss": ("score", "target", f"temperature=0.3; positive_temperature=0.3; {SURROGATES}"),
    "auc_loss": ("score", "target", f"; margin=0.5; {MIN_MAX}; {MIN_MAX}, margin=0.5; {SURROGATES}"),
    "cox_loss": ("score", "time event", f"; ties='efron'; {STRATA}; strata=strata, entry=entry, ties='efron'"),
    "nca_loss": ("vector", "label", f"; {LIKELIHOOD}"),
    "supervised_contrastive_loss": ("vector", "label", "; temperature=0.3; temperature=weight[0]"),
    "contrastive_loss": ("views", "", f"; {VIEWS}; temperature=0.3; temperature=weight[0]; normalize=False"),
    "robust_contrastive_loss": ("views", "", f"; {VIEWS}; rho=0.3; temperature=0.3"),
    "list_net_loss": ("score", "relevance query", "; target='softmax'"),
    "list_mle_loss": ("score", "relevance query", ""),
    "ndcg_loss": ("score", "relevance query", f"k=3; k=3, sharpness=5.0; temperature=0.3; {HINGES}; surrogate='ramp'"),
    "softmax_loss": ("sampled", "", ""),
    "latent_variable_loss": ("latent", "", ""),
    "invariant_logistic_loss": ("draws", "target", ""),
    "group_dro_loss": ("score", "group", "; temperature=0.3"),
    "maml_loss": ("tasks", "", "lr=0.1; lr=0.1, loss=l1_loss"),
    "average_precision": ("tied", "target", "; weight=weight"),
    "roc_auc": ("tied", "target", "; weight=weight"),
    "precision_at_k": ("score", "target", "k=5; k=3, query=query"),
    "recall_at_k": ("score", "target", "k=5; k=3, query=query"),
    "ndcg": ("score", "relevance", "; k=5; query=query; k=3, query=query"),
    "concordance_index": ("tied", "time event", "; weight=weight"),
    "baseline_hazard": ("score", "time event", f"; {STRATA}"),
    "survival_function": ("score", "", "baseline=BASELINE; baseline=BASELINE, times=TIMES"),
    "brier_score": ("survival", "time event TIMES", "; train_time=2 * entry, train_event=target"),
    "integrated_brier_score": ("survival", "time event TIMES", "; train_time=2 * entry, train_event=target"),
}
CALLS = [f"{name}({options})" for name, (_, _, text) in FUNCTIONS.items() for options in text.split("; ")]


# --- Data.


class Line(nn.Module):
    """A model whose parameters are given."""

    def __init__(self, weights):
        super().__init__()
        self._parameters["weights"] = weights

    def forward(self, x):
        return x @ self.weights[:2] + self.weights[2]


NAMES = {
    **{name: getattr(fcco, name) for name in ("SOX", "SOAP", "MOAP", "BSGD", "SCGD", "NASA")},
    **{name: getattr(schedules, name) for name in ("Cosine", "RunningMean", "Power")},
    "Memory": fcco.Memory,
    "PReLU": nn.PReLU,
    "l1_loss": F.l1_loss,
    "square": torch.square,
    "ratio": lambda u: u[:, 0] / (1 + u[:, 1].square()),
    "indexed": lambda u, index: (POPULATION["weight"][index] * u).square(),
    "sampled": lambda u, index, sample: (sample * u).square(),
    "custom": lambda t: F.softplus(2 * t),
    "falling": lambda step: 1 / (1 + 0.1 * step),
}


def evaluate(text, columns):
    """Keyword arguments from their text."""
    fresh = {"learnt": nn.Parameter(torch.tensor(0.2))} if "learnt" in text else {}
    return eval(f"dict({text})", {**NAMES, **columns, **fresh})


def describe_population():
    random = np.random.RandomState(0)
    p = {"target": (random.rand(N) < 0.3).astype(int)}
    p["label"] = random.choice(CLASSES, N, p=[0.4, 0.3, 0.2, 0.1])
    p["targets"] = (random.rand(N, CLASSES) < [0.5, 0.3, 0.2, 0.1]).astype(int)
    p["targets"][random.rand(N, CLASSES) < 0.15] = -1
    p["time"] = np.ceil(4 * random.exponential(size=N))
    p["event"] = (random.rand(N) < 0.6).astype(int)
    p["entry"] = p["time"] * random.rand(N) * (random.rand(N) < 0.7)
    p["strata"] = random.randint(0, 3, N)
    p["query"] = np.repeat(np.arange(9), [3, 5, 7, 9, 11, 13, 12, 8, 4])
    p["relevance"] = random.randint(0, 4, N) * (random.rand(N) < 0.6).astype(float)
    p["relevant"] = (p["relevance"] > 0).astype(int)
    p["item"] = np.minimum(random.geometric(0.12, N) - 1, 19)
    p["log_shares"] = np.log((np.bincount(p["item"], minlength=20) / N)[p["item"]])
    p["group"] = random.choice(CLASSES, N, p=[0.5, 0.3, 0.1, 0.1])
    p["weight"] = 2 * random.rand(N)
    p["features"] = random.randn(N, WIDTH)
    p["features"][:, :4] += 0.7 * np.stack([p[name] for name in ("target", "label", "event", "relevance")], 1)
    p["views"], p["items"] = 0.5 * random.randn(2, N, WIDTH), random.randn(20, WIDTH)
    p["N_POS"], p["SIZES"], p["TIMES"] = p["target"].sum(), np.bincount(p["label"]), np.array([2.0, 5.0, 9.0])
    p["EVENT_TIMES"], p["EVENT_COUNTS"] = np.unique(p["time"][p["event"] == 1], return_counts=True)
    return {name: torch.as_tensor(values) for name, values in p.items()}


POPULATION = describe_population()


@functools.cache
def draw(kind, copies, stratum, all_rows, step):
    """A batch: its rows, the columns of the population at these rows, and what is drawn for each example."""
    random = np.random.RandomState(1000 + step)
    size, order = 8 + 5 * step % 7, random.permutation(N)
    rows = order[:size]
    inside = POPULATION[stratum].numpy()[order] > 0 if stratum else None
    if kind == "uneven":
        some = 1 + 3 * step % 6
        rows = np.concatenate([order[inside][:some], order[~inside][: size - some]])
    elif kind == "lacking" and step % 3 == 1:
        rows = order[~inside][:size]
    elif kind == "lacking" and step % 7 == 3:
        rows = order[inside][:size]
    elif kind == "lists":
        rows = np.flatnonzero(np.isin(POPULATION["query"].numpy(), random.permutation(9)[:2]))
    if copies:
        rows = np.concatenate([rows, rows[:3], rows[:1]])
    batch = batch_of(rows, np.arange(N) if all_rows else rows, random, copies == "noisy")
    if kind == "wild" and step % 4 == 2:
        batch["features"][:2] *= 8
    return batch


def batch_of(rows, every, random, noisy=False):
    own = {name: x[rows] for name, x in POPULATION.items() if x.shape[:1] == (N,)}
    noise, candidates = 0.5 * random.randn(2, len(every), 6, WIDTH), random.randint(0, 20, (len(rows), 6))
    features = POPULATION["features"][every] + torch.as_tensor(noise[0, :, 0] * noisy)
    tasks = random.randn(2, len(rows), 5, 2)
    drawn = {
        "features": features,
        "pairs": features + POPULATION["views"][:, every],
        "noise": torch.as_tensor(noise[0]),
        "candidates": torch.as_tensor(candidates),
        "log_q": torch.as_tensor(np.log(0.05 + 0.1 * random.rand(len(rows), 6))),
        "tasks": [(torch.as_tensor(x), torch.as_tensor(np.sin(x.sum(2) + rows[:, None]))) for x in tasks],
    }
    return {**POPULATION, **own, **drawn, "rows": torch.as_tensor(rows)}


def start(outputs, dim=1):
    """The weights at first."""
    shape = {"scores": (WIDTH, CLASSES), "vector": (WIDTH, 3), "views": (WIDTH, 3), "tasks": (3,)}
    shape["inner"] = (WIDTH, dim)[:dim]
    random = np.random.RandomState(1)
    return torch.as_tensor(0.5 * random.randn(*shape.get(outputs, (WIDTH,)))).requires_grad_()


def outputs_of(kind, weights, batch, log=False):
    """The outputs of a batch: linear in the weights."""
    x, items = batch["features"], POPULATION["items"]
    if kind in ("score", "scores", "vector"):
        return [x @ weights]
    if kind == "tied":
        return [(x @ weights).round()]
    if kind == "survival":
        return [torch.sigmoid(x @ weights)[:, None] ** torch.tensor([0.3, 1.0, 3.0])]
    if kind == "views":
        return list((batch["pairs"] @ weights).unbind())
    if kind == "sampled":
        target, others = items[batch["item"]], items[batch["candidates"]]
        return [(x * target) @ weights, (x[:, None] * others) @ weights]
    if kind == "in_batch":
        return [(x[:, None] * items[batch["item"]]) @ weights]
    if kind == "latent":
        others = items[batch["candidates"]]
        return [F.logsigmoid((x[:, None] + others) @ weights), (x[:, None] * others) @ weights]
    if kind == "draws":
        return [(x[:, None] + batch["noise"]) @ weights]
    return [weights.clone()] if kind == "tasks" else [x @ weights if log else (0.5 * x @ weights).exp()]


# --- Runs.


def call(function, kind, outputs, batch, columns, **options):
    if kind == "tasks":
        tasks = [[part.to(outputs[0].dtype) for part in task] for task in batch["tasks"]]
        return function(Line(outputs[0]), *tasks, **options)
    return function(*outputs, *(batch[name] for name in columns.split()), **options)


def run(case, resume=False, rank=None):
    """Every field of a case; ``rank``: in one of two processes, which together are one."""
    spec, loss, dtype = SPECS[case.loss], build(case), getattr(torch, case.dtype)
    weights = start(spec.outputs, getattr(loss, "dim", 1))
    temperature = torch.tensor(0.2, dtype=dtype, requires_grad=True)
    all_rows = "SCGD" in case.options or "NASA" in case.options
    values, projections = [], []
    for step in range(STEPS):
        if resume and step == STEPS // 2:
            state, loss = loss.state_dict(), build(case)
            loss.load_state_dict(state)
        batch = {**draw(case.draw, case.copies, spec.stratum, all_rows, step), "temperature": temperature}
        outputs = outputs_of(spec.outputs, weights, batch, getattr(loss, "log", False))
        leaves = [output.detach().to(dtype).requires_grad_() for output in outputs]
        parameters = [*loss.parameters(), *[temperature][: "temperature=t" in case.call]]
        if rank is None:
            value = call_loss(case, loss, leaves, batch)
            gradients = torch.autograd.grad(value, [*leaves, *parameters])
        else:
            value, gradients = step_on_rank(case, loss, leaves, batch, parameters, rank, step)
        flat = torch.cat([gradient.flatten() for gradient in gradients]).double().numpy()
        projections.append(np.random.RandomState(step).randn(3, len(flat)) @ flat)
        values.append(value)
        given = [gradient.to(output.dtype) for gradient, output in zip(gradients, outputs, strict=False)]
        (slope,) = torch.autograd.grad(outputs, weights, given)
        weights = (weights - spec.lr * slope / (1 + slope.norm())).detach().requires_grad_()
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients[len(leaves) :], strict=True):
                parameter -= 0.003 * gradient / (1 + gradient.norm())
    rows, remembered = memory_of(loss) or (torch.zeros(0), [])
    held = torch.cat([rows.double().unsqueeze(1), *remembered[: len(leaves)]], 1).numpy()
    with torch.no_grad():
        others = [*others_of(loss), weights, call_loss(case, loss.eval(), leaves, batch)]
    fields = values, projections, flat, table_of(loss), held[np.lexsort(held.T[::-1])], others
    return {name: as_vector(field) for name, field in zip(FIELDS, fields, strict=True)}


def call_loss(case, loss, leaves, batch):
    spec = SPECS[case.loss]
    options = {**({"index": batch["rows"]} if spec.index else {}), **evaluate(case.call, batch)}
    function = loss.in_batch if case.loss.endswith("in_batch") else loss
    return call(
        function, spec.outputs, leaves, batch, spec.columns if case.columns is None else case.columns, **options
    )


def step_on_rank(case, loss, leaves, batch, parameters, rank, step):
    """The value and the gradients of both ranks' parts, whose sizes differ; sometimes a part is empty."""
    size = len(batch["rows"])
    cut = 3 * step % (size + 1)
    part = slice(cut) if rank == 0 else slice(cut, None)
    own = {name: x[part] if isinstance(x, torch.Tensor) and x.shape[:1] == (size,) else x for name, x in batch.items()}
    value = call_loss(case, loss, [leaf[part] for leaf in leaves], own)
    parts = [None, None]
    dist.all_gather_object(parts, (value.detach(), torch.autograd.grad(value, [*leaves, *parameters])))
    return sum(value for value, _ in parts) / 2, [sum(pair) / 2 for pair in zip(*(g for _, g in parts), strict=True)]


def evaluate_function(text):
    """The value of a function of all data, and its gradient."""
    name, options = text[:-1].split("(", 1)
    kind, columns, _ = FUNCTIONS[name]
    every = np.arange(N)
    batch = batch_of(every, every, np.random.RandomState(2))
    leaves = [output.detach().requires_grad_() for output in outputs_of(kind, start(kind), batch)]
    if "BASELINE" in options:
        batch["BASELINE"] = functional.baseline_hazard(leaves[0].detach(), batch["time"], batch["event"])
    value = call(getattr(functional, name), kind, leaves, batch, columns, **evaluate(options, batch))
    if not name.endswith("_loss"):
        value = value if isinstance(value, torch.Tensor) else [part for part in value if part is not None]
        return {"values": as_vector(value)}
    return {"values": as_vector(value), "gradient": as_vector(torch.autograd.grad(value, leaves))}


def as_vector(field):
    parts = field if isinstance(field, (list, tuple)) else [field]
    parts = [part.detach().double().numpy() if isinstance(part, torch.Tensor) else part for part in parts]
    return np.concatenate([np.asarray(part, dtype=float).ravel() for part in parts] or [np.zeros(0)])


BY_NAME = {str(case): case for case in CASES}
NAMES_OF_CASES = [*BY_NAME, *CALLS]


def compute(name):
    """The fields of a case or of a call, by its name."""
    return run(BY_NAME[name]) if name in BY_NAME else evaluate_function(name)


# --- The file: the vectors of each field one after another, and their sizes.


def save(runs, commit):
    fields = {}
    for field in FIELDS:
        vectors = [run.get(field, np.zeros(0)) for run in runs.values()]
        fields |= {field: np.concatenate(vectors), f"{field}_sizes": [len(vector) for vector in vectors]}
    np.savez_compressed(FILE, names=list(runs), commit=commit, **fields)


def load():
    """What was recorded: the fields of each case by its name, and the commit."""
    with np.load(FILE) as file:
        split = {field: np.split(file[field], np.cumsum(file[f"{field}_sizes"])[:-1]) for field in FIELDS}
        runs = {str(name): {f: split[f][k] for f in FIELDS} for k, name in enumerate(file["names"])}
        return runs, str(file["commit"])


def difference(now, before):
    """The largest difference, relative to the largest finite number; infinite if shapes, NaN or infinities differ."""
    if now.shape != before.shape:
        return np.inf
    known = np.isfinite(before)
    if not np.array_equal(now[~known], before[~known], equal_nan=True) or not np.isfinite(now[known]).all():
        return np.inf
    now, before = now[known], before[known]
    return abs(now - before).max(initial=0) / max(abs(before).max(initial=0), 1e-300)


def main():
    warnings.simplefilter("ignore")
    git, library = functools.partial(subprocess.check_output, text=True), Path(fcco.__file__).parent
    if git(["git", "status", "--porcelain", "."], cwd=library):
        sys.exit(f"commit what changed in {library} first: the file names the commit")
    commit = git(["git", "log", "-1", "--format=%H", "."], cwd=library).strip()
    runs = {name: compute(name) for name in NAMES_OF_CASES}
    before = load()[0] if FILE.exists() else {}
    for name, fields in runs.items():
        assert np.isfinite(fields["values"]).all(), name
        assert fields.get("projections", fields.get("gradient", np.ones(1))).any(), name
        worst = max(difference(fields[f], before[name][f]) for f in fields) if name in before else "new"
        if worst == "new" or worst > 1e-9:
            print(f"{name}: {worst}")
    save(runs, commit)
    print(f"{len(runs)} cases of commit {commit}: {FILE.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

"""The drawings of the site: how to choose, how the algorithms are related, and what a large batch in chunks holds.

    PYTHONPATH=website python website/diagrams.py

writes those that are files, so that they are also seen in the repository.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import drawing

# Questions from the top; "yes" leads to the right, "no" down. Answers that are not fcco have a dashed frame.
QUESTIONS = (
    (
        ["Do you measure accuracy or log loss,", "on classes that are not rare?"],
        ["Cross entropy.", "It optimises what you measure."],
        "elsewhere",
    ),
    (
        ["Are the data a table of numbers", "(no images, text or embeddings)?"],
        ["Boosted trees first: LightGBM, XGBoost.", "Go on if the model must be linear or differentiable."],
        "elsewhere",
    ),
    (
        ["Is the model linear, and do", "all data fit into memory?"],
        ["fcco.estimators: the exact objective,", "fitted like any scikit-learn estimator."],
        "box",
    ),
    (
        ["Does a batch hold the whole set that an", "example is compared with (a whole list)?"],
        ["The loss of your measure with rule=fcco.BSGD().", "The batch is exact, and a table only lags behind."],
        "box",
    ),
    (
        ["Does the usual loss (cross entropy, InfoNCE)", "already fit the training data?"],
        ["Stay with it. Networks that fit their data gained", "nothing from average precision (top of the list)."],
        "elsewhere",
    ),
)
LAST = [
    "The loss of your measure, with its defaults.",
    "Compare it with rule=fcco.BSGD()",
    "on validation data.",
]
# What one measures, the loss for it, and its page.
LOSSES = (
    ("average precision, precision at k", "AveragePrecisionLoss", "average_precision"),
    ("few negatives at the very top", "PNormPushLoss", "push"),
    ("AUC, partial AUC", "AUCLoss, PartialAUCLoss", "auc"),
    ("nearest neighbours", "NCALoss", "nca"),
    ("representations from pairs of views", "ContrastiveLoss", "contrastive"),
    ("NDCG", "NDCGLoss, ListNetLoss", "listwise"),
    ("concordance, survival", "CoxLoss", "cox"),
    ("accuracy over 100,000 classes, retrieval", "SoftmaxLoss", "softmax"),
    ("likelihood with a latent variable", "LatentVariableLoss", "latent"),
    ("the worst group, perturbed inputs", "GroupDROLoss, InvariantLogisticLoss", "robust"),
    ("few-shot error after adaptation", "MAMLLoss", "maml"),
)


def _box(x: float, y: float, width: float, lines: list[str], kind: str) -> list[str]:
    height = 17 * len(lines) + 16
    parts = [drawing.rectangle(x, y, width, height, kind)]
    return parts + [drawing.text(x + width / 2, y + 22 + 17 * k, line, anchor="middle") for k, line in enumerate(lines)]


def choose() -> str:
    """Return the flow chart of the page *Choose*."""
    parts, y, width = [drawing.arrow_head("choose-arrow")], 10.0, 310.0
    for question, answer, kind in QUESTIONS:
        parts += _box(10, y, width, question, "question") + _box(410, y, 400, answer, kind)
        parts += [
            drawing.line(10 + width, y + 25, 408, y + 25, "axis", end="choose-arrow"),
            drawing.text(363, y + 19, "yes", anchor="middle", kind="faint"),
            drawing.line(10 + width / 2, y + 50, 10 + width / 2, y + 78, "axis", end="choose-arrow"),
            drawing.text(18 + width / 2, y + 67, "no", kind="faint"),
        ]
        y += 80
    parts += _box(10, y, width, LAST, "box") + _losses(y)
    parts.append(drawing.line(10 + width, y + 33, 408, y + 33, "axis", end="choose-arrow"))
    alt = " ".join(f"{' '.join(question)} If yes: {' '.join(answer)}" for question, answer, _ in QUESTIONS)
    losses = "; ".join(f"{measure}: {loss}" for measure, loss, _ in LOSSES)
    return drawing.figure(
        parts, 820, y + 40 + 20 * len(LOSSES), alt=f"Flow chart. {alt} Otherwise: {' '.join(LAST)} {losses}."
    )


def _losses(y: float) -> list[str]:
    """Return a box that lists the losses by what they are for, each with a link to its page."""
    parts = [drawing.rectangle(410, y, 400, 20 * len(LOSSES) + 18, "box")]
    for k, (measure, loss, page) in enumerate(LOSSES, 1):
        name = drawing.text(800, y + 8 + 20 * k, loss, anchor="end", size=11)
        parts.append(drawing.text(420, y + 8 + 20 * k, measure, size=11))
        parts.append(drawing.link(f"applications/{page}.html", name))
    return parts


METHODS = {
    "SCGD": (20, 20),
    "NASA": (300, 20),
    "MOAP": (580, 20),
    "BSGD": (20, 150),
    "SOAP": (300, 150),
    "SOX": (580, 150),
}
BY = {
    "SCGD": "all n rows at every step",
    "NASA": "all rows, with momentum",
    "MOAP": "other rows decay",
    "BSGD": "no table",
    "SOAP": "only the rows of the batch",
    "SOX": "their rows, with momentum",
}
# From, to, and what is added.
ARROWS = (
    ("SCGD", "NASA", "+ momentum"),
    ("NASA", "MOAP", "+ SS"),
    ("NASA", "SOX", "+ SS, SU"),
    ("SCGD", "SOAP", "+ SS, SU"),
    ("SOAP", "BSGD", "gamma = 1"),
    ("SOAP", "SOX", "+ momentum"),
)


def relations() -> str:
    """Return the paper's figure of how the six methods are related."""
    parts, width, height = [drawing.arrow_head("relations-arrow")], 190.0, 52.0
    for name, (x, y) in METHODS.items():
        parts += [
            drawing.rectangle(x, y, width, height, "question" if name == "SOX" else "box"),
            drawing.text(x + width / 2, y + 22, name, anchor="middle", size=14),
            drawing.text(x + width / 2, y + 41, BY[name], anchor="middle", size=11, kind="faint"),
        ]
    for start, end, words in ARROWS:
        (x1, y1), (x2, y2) = METHODS[start], METHODS[end]
        if y1 == y2:
            left, right = (x1 + width, x2 - 2) if x1 < x2 else (x1, x2 + width + 2)
            parts.append(drawing.line(left, y1 + 26, right, y2 + 26, "axis", end="relations-arrow"))
            parts.append(drawing.text((left + right) / 2, y1 + 19, words, anchor="middle", size=11))
        else:
            ends = (x1 + width - 30, y1 + height, x2 + 30, y2 - 2)
            parts.append(drawing.line(*ends, "axis", end="relations-arrow"))
            parts.append(drawing.text((ends[0] + ends[2]) / 2 + 14, (ends[1] + ends[3]) / 2, words, size=11))
    alt = "Relations of the methods. " + "; ".join(f"{a} {words} gives {b}" for a, b, words in ARROWS)
    return drawing.figure(
        parts,
        790,
        215,
        alt=alt,
        caption="SS: selective sampling, inner batches only for the rows of the outer batch. "
        "SU: selective update, only those rows of u change.",
    )


# What is drawn, which activations are held at once, whether one loss sees all outputs, and what to say.
BATCHES = (
    ("plain batch", True, True, "one loss, all activations at once"),
    ("gradient accumulation", False, False, "one micro-batch at a time, but four losses"),
    ("in chunks", False, True, "one chunk at a time, and one loss"),
)


def large_batches() -> str:
    """Return what a step holds: of a plain batch, with accumulation, and in chunks."""
    parts, width, height = [drawing.arrow_head("arrow")], 795.0, 222.0
    for panel, (name, holds_all, one_loss, words) in enumerate(BATCHES):
        x = 12 + 265.0 * panel
        parts.append(drawing.text(x, 20, name, size=14))
        parts.append(drawing.text(x, 212, words, kind="faint"))
        for row in range(4):
            y = 34 + 36.0 * row
            held = holds_all or row == 1
            parts += [
                drawing.rectangle(x, y, 36, 26, "box"),
                drawing.rectangle(x + 54, y, 76, 26, "ours" if held else "elsewhere"),
                drawing.rectangle(x + 148, y, 26, 26, "box"),
                *(drawing.line(x + at, y + 13, x + at + 16, y + 13, "axis", end="arrow") for at in (37, 131, 175)),
            ]
            if not one_loss:
                parts.append(drawing.rectangle(x + 192, y, 36, 26, "box"))
        if one_loss:
            parts.append(drawing.rectangle(x + 192, 34, 36, 134, "box"))
        for at, label in ((18, "rows"), (92, "activations"), (161, "outputs"), (210, "loss")):
            parts.append(drawing.text(x + at, 184, label, anchor="middle", size=11))
    alt = "Four parts of a batch, from rows to activations, outputs and loss. Filled activations are held at once. "
    return drawing.file(
        parts, width, height, alt=alt + " ".join(f"{name.capitalize()}: {words}." for name, *_, words in BATCHES)
    )


DIAGRAMS: dict[str, Callable[[], str]] = {"choose": choose, "relations": relations}
FILES: dict[str, Callable[[], str]] = {"docs/large_batches.svg": large_batches}

if __name__ == "__main__":
    for place, draw in FILES.items():
        (Path(__file__).parent.parent / place).write_text(draw(), encoding="utf-8")

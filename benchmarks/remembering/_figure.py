"""The picture of the README: what the defaults leave of the in-batch loss's excess, on data that chose nothing."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from harness.tables import read_csv

# The default of each loss among the settings of the study.
DEFAULTS = {
    "cox": ("CoxLoss", "virtual 256 refreshed limited"),
    "nca": ("NCALoss", "virtual 1024 refreshed"),
    "p_norm_push": ("PNormPushLoss", "table"),
    "average_precision": ("AveragePrecisionLoss", "virtual 256 refreshed table .7"),
    "partial_auc": ("PartialAUCLoss", "table"),
}
COLOURS = {"better": "#00796b", "even": "#9e9e9e", "worse": "#d84315"}
TICKS = (0.0003, 0.001, 0.01, 0.1, 1.0)


def draw(results: Path, path: Path) -> None:
    """Draw a dot for every data set, batch size and number of passes of the reporting half."""
    rows = [row for row in read_csv(results) if row["half"] == "reporting"]
    figure = Figure(figsize=(7.2, 2.7), layout="constrained")
    ax = figure.subplots()
    for k, (objective, (_, setting)) in enumerate(DEFAULTS.items()):
        shown = [row for row in rows if (row["objective"], row["setting"]) == (objective, setting)]
        for place, row in enumerate(sorted(shown, key=lambda row: float(row["ratio"]))):
            height = k + 0.5 * (place / (len(shown) - 1) - 0.5)
            ax.plot(float(row["ratio"]), height, "o", color=COLOURS[row["verdict"]], markersize=5)
    ax.axvline(1, color="black", linewidth=0.8)
    ax.set_xscale("log")
    ax.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    ax.minorticks_off()
    ax.set_yticks(range(len(DEFAULTS)), [name for name, _ in DEFAULTS.values()])
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xlabel("excess over the exact minimum, as a share of the in-batch loss's")
    for name, colour in COLOURS.items():
        ax.plot([], [], "o", color=colour, label=f"{name} than in-batch" if name != "even" else "even", markersize=5)
    ax.legend(loc="lower left", frameon=False, fontsize=8)
    with rc_context({"svg.hashsalt": "remembering", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})

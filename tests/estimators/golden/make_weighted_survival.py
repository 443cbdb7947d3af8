"""Make weighted_survival.json: weighted Cox models with Efron's ties by lifelines, on the data of survival.json.

python -m venv venv && venv/bin/pip install lifelines==0.30.3
venv/bin/python tests/estimators/golden/make_weighted_survival.py
"""

import json
import warnings
from pathlib import Path

import lifelines
import numpy as np
import pandas as pd
from lifelines.exceptions import StatisticalWarning

HERE = Path(__file__).parent
# It advises robust standard errors for weights that are not integers; ours are the plain ones.
warnings.simplefilter("ignore", StatisticalWarning)


def by_lifelines(frame: pd.DataFrame) -> dict[str, object]:
    model = lifelines.CoxPHFitter()
    model.fit(frame, "time", "event", weights_col="weight", fit_options={"precision": 1e-13})
    return {
        "coef": model.params_.tolist(),
        "se": model.standard_errors_.tolist(),
        "log_likelihood": float(model.log_likelihood_),
        # lifelines' baseline is of a row at the plain mean of the features.
        "mean": frame[["a", "b", "c"]].mean().tolist(),
        "baseline_cumulative_hazard": model.baseline_cumulative_hazard_.iloc[:, 0].tolist(),
    }


def main() -> None:
    data = json.loads((HERE / "survival.json").read_text())
    weight = np.round(np.random.default_rng(21).uniform(0.2, 3.0, size=60), 2)
    golden: dict[str, object] = {"lifelines": lifelines.__version__, "weight": weight.tolist()}
    for name in ("tied", "untied"):
        case = data[name]
        frame = pd.DataFrame(case["x"], columns=["a", "b", "c"])
        golden[name] = by_lifelines(frame.assign(time=case["time"], event=case["event"], weight=weight))
    (HERE / "weighted_survival.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()

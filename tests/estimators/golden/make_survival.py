"""Make survival.json: Cox models by lifelines and scikit-survival on small data, tied and untied.

python -m venv venv && venv/bin/pip install lifelines==0.30.3 scikit-survival==0.28.0
venv/bin/python tests/estimators/golden/make_survival.py
"""

import json
from pathlib import Path

import lifelines
import numpy as np
import pandas as pd
import sksurv
from sksurv.linear_model import CoxPHSurvivalAnalysis
from sksurv.linear_model.coxph import CoxPHOptimizer
from sksurv.metrics import concordance_index_censored
from sksurv.util import Surv

ALPHA = 3.0  # of scikit-survival's penalty, alpha / 2 |coef|^2 on the whole log-likelihood
TIMES = [0.0, 1.0, 2.5, 4.0, 7.0]


def make_data(tied: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(20)
    x = np.round(rng.normal(size=(60, 3)) * [1.0, 5.0, 0.2] + [0.0, 40.0, -1.0], 3)
    hazard = np.exp((x - x.mean(axis=0)) @ [0.5, -0.1, 1.5])
    life, watched = rng.exponential(3.0 / hazard), rng.exponential(6.0, size=60)
    time, event = np.minimum(life, watched), life <= watched
    time = np.ceil(time) if tied else np.round(time, 6) + 0.25
    if not tied:
        assert len(np.unique(time)) == 60
    return x, time, event


def by_sksurv(x: np.ndarray, time: np.ndarray, event: np.ndarray, ties: str, alpha: float) -> dict[str, object]:
    model = CoxPHSurvivalAnalysis(alpha=alpha, ties=ties, tol=1e-14).fit(x, Surv.from_arrays(event, time))
    optimizer = CoxPHOptimizer(x, event, time, np.full(3, alpha), ties)
    optimizer.update(model.coef_)
    likelihood = CoxPHOptimizer(x, event, time, np.zeros(3), ties).nlog_likelihood(model.coef_)
    found = concordance_index_censored(event, time, model.predict(x))
    inside = [t for t in TIMES if time.min() <= t <= time.max()]
    return {
        "coef": model.coef_.tolist(),
        "se": np.sqrt(np.diag(np.linalg.inv(len(x) * optimizer.hessian))).tolist(),
        "log_likelihood": -len(x) * float(likelihood),
        "unique_times": model.unique_times_.tolist(),
        "cumulative_hazard_of_zero": model.cum_baseline_hazard_.y.tolist(),
        "times": inside,
        # Not the survival function: it is a power of the survival of a row of zeros, and that underflows.
        "cumulative_hazard": [[float(f(t)) for t in inside] for f in model.predict_cumulative_hazard_function(x[:4])],
        "concordance": [float(found[0]), *map(int, found[1:])],
    }


def by_lifelines(x: np.ndarray, time: np.ndarray, event: np.ndarray) -> dict[str, object]:
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(time=time, event=event)
    model = lifelines.CoxPHFitter()
    model.fit(frame, "time", "event", fit_options={"precision": 1e-13})
    summary = model.summary
    return {
        "summary": {name: summary[name].tolist() for name in summary.columns},
        "log_likelihood": float(model.log_likelihood_),
        "log_risk": model.predict_log_partial_hazard(frame).tolist(),
        "unique_times": model.baseline_cumulative_hazard_.index.tolist(),
        "baseline_cumulative_hazard": model.baseline_cumulative_hazard_.iloc[:, 0].tolist(),
        # At its own times: it interpolates between them.
        "survival": model.predict_survival_function(frame[:4]).T.to_numpy().tolist(),
        "concordance": float(model.concordance_index_),
    }


def main() -> None:
    golden: dict[str, object] = {"lifelines": lifelines.__version__, "scikit-survival": sksurv.__version__}
    for name, tied in (("tied", True), ("untied", False)):
        x, time, event = make_data(tied)
        coarse = np.round(x @ [0.5, -0.1, 1.5], 1)
        found = concordance_index_censored(event, time, coarse)
        golden[name] = {
            "x": x.tolist(),
            "time": time.tolist(),
            "event": event.tolist(),
            "alpha": ALPHA,
            "breslow": by_sksurv(x, time, event, "breslow", 0.0),
            "efron": by_sksurv(x, time, event, "efron", 0.0),
            "breslow_penalised": by_sksurv(x, time, event, "breslow", ALPHA),
            "efron_penalised": by_sksurv(x, time, event, "efron", ALPHA),
            "by_lifelines": by_lifelines(x, time, event),
            "coarse": {"risk": coarse.tolist(), "concordance": [float(found[0]), *map(int, found[1:])]},
        }
    Path(__file__).with_name("survival.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()

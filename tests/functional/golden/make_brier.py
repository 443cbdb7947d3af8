"""Make brier.json: Brier scores, their integral and concordance of survival curves on tied data, by scikit-survival.

pip install scikit-survival==0.28.0 && python make_brier.py
"""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
from sksurv.linear_model import CoxPHSurvivalAnalysis
from sksurv.metrics import brier_score, concordance_index_censored, integrated_brier_score
from sksurv.util import Surv

TIMES = [1.0, 2.0, 3.5, 5.0, 7.0]


def make_data(rng, n):
    x = rng.normal(size=(n, 2)).round(3)
    life, watched = rng.exponential(4 / np.exp(x @ [0.8, -0.5])), rng.exponential(6, size=n)
    return x, np.ceil(np.minimum(life, watched)), life <= watched


def main():
    rng = np.random.default_rng(5)
    (x, time, event), (x_test, time_test, event_test) = make_data(rng, 60), make_data(rng, 40)
    train, test = Surv.from_arrays(event, time), Surv.from_arrays(event_test, time_test)
    model = CoxPHSurvivalAnalysis(tol=1e-14).fit(x, train)
    survival = np.stack([[f(t) for t in TIMES] for f in model.predict_survival_function(x_test)])
    golden = {
        "scikit-survival": version("scikit-survival"),
        "train": {"risk": (x @ model.coef_).tolist(), "time": time.tolist(), "event": event.tolist()},
        "test": {"risk": (x_test @ model.coef_).tolist(), "time": time_test.tolist(), "event": event_test.tolist()},
        "times": TIMES,
        "survival": survival.tolist(),
        "brier_score": brier_score(train, test, survival, TIMES)[1].tolist(),
        "integrated_brier_score": float(integrated_brier_score(train, test, survival, TIMES)),
        "concordance_index": float(concordance_index_censored(event_test, time_test, x_test @ model.coef_)[0]),
    }
    Path(__file__).with_name("brier.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()

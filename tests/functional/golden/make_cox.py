"""Make cox.json: Cox's partial log-likelihood on small data with ties, by lifelines and scikit-survival.

    pip install lifelines==0.30.3 scikit-survival==0.28.0 && python make_cox.py

lifelines breaks ties by Efron only. Values off the optimum come from the packages' own optimisers, which take the
coefficients as an argument; both packages sort by time first, and neither standardises here.
"""

import json
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from lifelines import CoxPHFitter
from lifelines.fitters.coxph_fitter import SemiParametricPHFitter
from sksurv.linear_model import CoxPHSurvivalAnalysis
from sksurv.linear_model.coxph import CoxPHOptimizer
from sksurv.util import Surv

N, D = 40, 3


def make_data(seed, scale, last):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, D)).round(3)
    hazard = np.exp(x @ np.array([0.8, -0.5, 0.2]))
    time = np.ceil(scale * rng.exponential(1 / hazard)).clip(1, last)
    return x, time, rng.random(N) < 0.7


def sksurv_log_likelihood(x, time, event, beta, ties):
    optimizer = CoxPHOptimizer(x, event, time, alpha=np.zeros(D), ties=ties)
    return -float(optimizer.nlog_likelihood(np.asarray(beta))) * len(x)


def lifelines_log_likelihood(x, time, event, beta):
    order = np.argsort(time, kind="stable")
    weights, entries = pd.Series(np.ones(N)), None
    *_, value = SemiParametricPHFitter()._get_efron_values_single(
        pd.DataFrame(x[order]), pd.Series(time[order]), pd.Series(event[order]), weights, entries, np.asarray(beta)
    )
    return float(value)


def optimum_by_lifelines(x, time, event):
    frame = pd.DataFrame(x).assign(time=time, event=event).rename(columns=str)
    options = {"precision": 1e-12, "r_precision": 1e-14}
    fitted = CoxPHFitter().fit(frame, "time", "event", fit_options=options)
    return {"beta": fitted.params_.tolist(), "log_likelihood": float(fitted.log_likelihood_)}


def optimum_by_sksurv(x, time, event, ties):
    fitted = CoxPHSurvivalAnalysis(ties=ties, tol=1e-14).fit(x, Surv.from_arrays(event, time))
    beta = fitted.coef_.tolist()
    return {"beta": beta, "log_likelihood": sksurv_log_likelihood(x, time, event, beta, ties)}


def make_case(seed, scale, last):
    x, time, event = make_data(seed, scale, last)
    values = []
    for beta in ([0.0, 0.0, 0.0], [1.0, -2.0, 0.5], [-0.3, 0.1, 2.0]):
        values.append(
            {
                "beta": beta,
                "sksurv_breslow": sksurv_log_likelihood(x, time, event, beta, "breslow"),
                "sksurv_efron": sksurv_log_likelihood(x, time, event, beta, "efron"),
                "lifelines_efron": lifelines_log_likelihood(x, time, event, beta),
            }
        )
    optima = {
        "sksurv_breslow": optimum_by_sksurv(x, time, event, "breslow"),
        "sksurv_efron": optimum_by_sksurv(x, time, event, "efron"),
        "lifelines_efron": optimum_by_lifelines(x, time, event),
    }
    return {"x": x.tolist(), "time": time.tolist(), "event": event.tolist(), "values": values, "optima": optima}


def main():
    warnings.simplefilter("ignore")
    packages = {name: version(name) for name in ("lifelines", "scikit-survival")}
    cases = {"ties": make_case(0, scale=9, last=9), "no ties": make_case(1, scale=10**6, last=np.inf)}
    Path(__file__).with_name("cox.json").write_text(json.dumps({"packages": packages, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()

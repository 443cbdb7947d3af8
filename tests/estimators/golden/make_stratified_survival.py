"""Make stratified_survival.json: Cox models with strata and late entries, on the data of survival.json.

python -m venv venv && venv/bin/pip install lifelines==0.30.3 statsmodels==0.15.0
venv/bin/python tests/estimators/golden/make_stratified_survival.py

lifelines has Efron's ties, and statsmodels has Breslow's.
"""

import json
import warnings
from pathlib import Path

import lifelines
import numpy as np
import pandas as pd
import statsmodels
from statsmodels.duration.hazard_regression import PHReg

HERE = Path(__file__).parent
# statsmodels has a row at risk at the time of its entry, lifelines and R after it.
AFTER = 1e-7
STRATA = np.array(["north", "south", "east"])


def by_lifelines(frame: pd.DataFrame, options: dict[str, object]) -> dict[str, object]:
    model = lifelines.CoxPHFitter()
    model.fit(frame, "time", "event", fit_options={"precision": 1e-13}, **options)
    hazard = model.baseline_cumulative_hazard_
    return {
        "coef": model.params_.tolist(),
        "se": model.standard_errors_.tolist(),
        "log_likelihood": float(model.log_likelihood_),
        "log_risk": model.predict_log_partial_hazard(frame).tolist(),
        # Without entries only: lifelines' baseline does not take them into account.
        "times": hazard.index.tolist(),
        "strata": [str(name) for name in hazard.columns],
        "baseline_cumulative_hazard": hazard.to_numpy().T.tolist(),
        "concordance": float(model.concordance_index_),
    }


def by_statsmodels(frame: pd.DataFrame, strata: bool, entry: bool) -> dict[str, object]:
    model = PHReg(
        frame["time"],
        frame[["a", "b", "c"]],
        frame["event"].astype(int),
        entry=frame["entry"].to_numpy() + AFTER if entry else None,
        strata=frame["stratum"].to_numpy() if strata else None,
        ties="breslow",
    )
    found = model.fit(disp=False, method="newton", tol=1e-14)
    return {"coef": found.params.tolist(), "se": found.bse.tolist(), "log_likelihood": float(found.llf)}


def main() -> None:
    warnings.simplefilter("ignore")
    data, rng = json.loads((HERE / "survival.json").read_text()), np.random.default_rng(22)
    stratum = STRATA[rng.integers(0, 3, size=60)]
    golden: dict[str, object] = {
        "lifelines": lifelines.__version__,
        "statsmodels": statsmodels.__version__,
        "stratum": stratum.tolist(),
    }
    for name in ("tied", "untied"):
        case = data[name]
        # Some enter at the time of another's event, and do not see it.
        back = rng.integers(1, 4, size=60) if name == "tied" else rng.uniform(0.1, 3.0, size=60).round(6)
        frame = pd.DataFrame(case["x"], columns=["a", "b", "c"])
        entry = (np.array(case["time"]) - back).clip(min=0.0)
        frame = frame.assign(time=case["time"], event=case["event"], stratum=stratum, entry=entry)
        kinds = {"strata": (True, False), "entry": (False, True), "both": (True, True)}
        golden[name] = {"entries": frame["entry"].tolist()}
        for kind, (strata, entry) in kinds.items():
            options = {**({"strata": "stratum"} if strata else {}), **({"entry_col": "entry"} if entry else {})}
            unused = [column for column in ("stratum", "entry") if column not in options.values()]
            golden[name][kind] = {
                "efron": by_lifelines(frame.drop(columns=unused), options),
                "breslow": by_statsmodels(frame, strata, entry),
            }
    (HERE / "stratified_survival.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()

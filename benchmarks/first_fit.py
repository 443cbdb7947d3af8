"""What the first fit of each estimator costs in a new process that finds no compiled code, and what it compiles.

    python benchmarks/first_fit.py [--only PNormPushClassifier ...] [--functions]

Every row is a process of its own with an empty folder of compiled code. Imports are not counted. Seconds of the CPU
hardly depend on what else the machine does; those of the clock do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from typing import Any

import numpy as np

METHODS = ("bsgd", "soap", "moap", "sox")
CASES: list[tuple[str, dict[str, Any]]] = [
    ("PNormPushClassifier", {"method": "exact"}),
    *(("PNormPushClassifier", {"method": method}) for method in METHODS),
    ("PNormPushClassifier", {"method": "sox", "surrogate": "squared_hinge"}),
    ("AveragePrecisionClassifier", {"method": "exact"}),
    *(("AveragePrecisionClassifier", {"method": method}) for method in ("soap", "sox")),
    *(("ListwiseRanker", {"method": "sox", "objective": objective}) for objective in ("ndcg", "listnet", "listmle")),
    ("CoxRegressor", {"method": "exact"}),
    ("CoxRegressor", {"method": "soap"}),
    ("NeighborhoodComponentsAnalysis", {}),
]


def fit(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Fit twice in this process, and return seconds of both and the kernels that the first one compiled."""
    from numba.core import event

    import fcco.estimators

    class Compiled(event.Listener):
        def __init__(self) -> None:
            self.names: Counter[str] = Counter()
            self.depth, self.began, self.seconds = 0, 0.0, 0.0

        def on_start(self, event: Any) -> None:
            self.began = time.process_time() if self.depth == 0 else self.began
            self.depth += 1

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            self.seconds += time.process_time() - self.began if self.depth == 0 else 0.0
            function = event.data["dispatcher"].py_func
            self.names[f"{function.__module__.split('.')[-1]}.{function.__name__}"] += 1

    random = np.random.default_rng(0)
    x = random.normal(size=(200, 5))
    y = (x[:, 0] + random.normal(size=200) > 1.0).astype(int)
    target = np.column_stack([np.exp(x[:, 0]), y]) if name == "CoxRegressor" else y
    extra = {"qid": np.arange(200) // 10} if name == "ListwiseRanker" else {}
    model = getattr(fcco.estimators, name)(max_iter=3, random_state=0, **options)
    times, listener = [], Compiled()
    with event.install_listener("numba:compile", listener):
        for _ in range(2):
            wall, cpu = time.perf_counter(), time.process_time()
            model.fit(x, target, **extra)
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return {"times": times, "compiling": listener.seconds, "names": listener.names}


def in_new_process(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return what :func:`fit` does in a process that finds nothing compiled."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--fit", json.dumps([name, options])]
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description="What the first fit of each estimator compiles, and how long it takes."
    )
    names = sorted({name for name, _ in CASES})
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="which estimators")
    parser.add_argument("--functions", action="store_true", help="name what is compiled, and how many times")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fit:
        warnings.simplefilter("ignore")  # three passes do not converge
        print(json.dumps(fit(*json.loads(given.fit))))
        return
    print(f"{'seconds of':<62}{'compiling':>10}{'first fit':>20}{'second fit':>12}{'functions':>11}")
    print(f"{'':<62}{'CPU':>10}{'CPU':>10}{'clock':>10}{'clock':>12}")
    for name, options in CASES:
        if name in given.only:
            found = in_new_process(name, options)
            (wall, cpu), (again, _) = found["times"]
            label = f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})"
            count = sum(found["names"].values())
            print(
                f"{label:<62}{found['compiling']:>10.1f}{cpu:>10.1f}{wall:>10.1f}{again:>12.2f}{count:>11}", flush=True
            )
            if given.functions:
                print("    " + ", ".join(f"{key} {times}" for key, times in found["names"].items()))


if __name__ == "__main__":
    main()

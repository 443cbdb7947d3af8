"""What starting costs: `import fcco` and the command `fcco`, next to `import torch`.

    python benchmarks/startup.py [--quick]

Every row is a fresh process. Rounds alternate between the rows, each round gives the ratios to its own `import torch`,
and the table has medians. CPU time is what counts: other processes on the machine hardly change it. A first round,
which is not counted, writes the bytecode that an installed package has.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

RUN = "import sys, fcco_command; sys.argv[1:] = {!r}.split(); fcco_command.main()"
ROWS = {
    "python alone": "",
    "import torch": "import torch",
    "import fcco": "import fcco",
    "import fcco.estimators": "import fcco.estimators",
    "fcco --help": RUN.format("--help"),
    "fcco --version": RUN.format("--version"),
    "fcco plan --help": RUN.format("plan --help"),
    "fcco reproduce --help": RUN.format("reproduce --help"),
}


class Seconds(NamedTuple):
    """What a process took."""

    cpu: float
    wall: float


def start(code: str) -> Seconds:
    """Run the code in a new process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, env=environment, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Seconds(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def report(rounds: int) -> None:
    """Print the table."""
    for code in ROWS.values():
        start(code)
    taken = [{name: start(code) for name, code in ROWS.items()} for _ in range(rounds)]
    print(f"median of {rounds} rounds")
    print(f"{'':<24}{'CPU s':>9}{'wall s':>9}{'CPU, to import torch':>24}")
    for name in ROWS:
        cpu, wall = (statistics.median(times) for times in zip(*(one[name] for one in taken), strict=True))
        ratio = statistics.median(one[name].cpu / one["import torch"].cpu for one in taken)
        print(f"{name:<24}{cpu:>9.2f}{wall:>9.2f}{ratio:>24.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What starting costs.")
    parser.add_argument("--quick", action="store_true", help="a single round, to see that it runs")
    report(1 if parser.parse_args().quick else 5)


if __name__ == "__main__":
    main()

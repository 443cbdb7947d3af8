"""Tasks for the tests of the runner, in a module that other processes can import."""

import os
import sys
import time
from pathlib import Path

import torch

from fcco_reproduce import Job, Scale, run_jobs
from fcco_reproduce._command import STUDIES, load


def square(number, log=None, seconds=0.0):
    """number^2; leaves a line in ``log`` for every time it is called."""
    time.sleep(seconds)
    if log is not None:
        with Path(log).open("a") as file:
            file.write(f"{number} {os.getpid()}\n")
    return number**2


def fail_on_two(number):
    if number == 2:
        raise ArithmeticError("two")
    return number


def die(k):
    os.kill(os.getpid(), 9)


def random_walk(seed, steps):
    """Floating point and random numbers, which must survive the way through processes and files."""
    generator = torch.Generator().manual_seed(seed)
    walk = torch.randn(steps, 50, generator=generator, dtype=torch.float64).cumsum(0)
    return {"walk": (walk @ walk.T).exp().tanh()[0].tolist(), "nothing": None}


def threads():
    from threadpoolctl import threadpool_info

    return {"torch": torch.get_num_threads(), "blas": [pool["num_threads"] for pool in threadpool_info()]}


def squares(log, seconds):
    return [Job(square, {"number": k, "log": str(log), "seconds": seconds}) for k in range(6)]


def keys():
    """Of all jobs of all studies, in their quick form."""
    experiments = [one for name in STUDIES for one in load(name).experiments("quick")]
    return [job.key for one in experiments for job in one.jobs(Scale(2, "quick"))]


def main():
    folder = Path(sys.argv[1])
    run_jobs(squares(folder / "log", 0.4), workers=2, cache=folder / "cache.jsonl")

"""k processes and one process come to the same weights, values and tables."""

import pytest
import torch
from ranks import run_ranks
from training import plans


def every_run(rank, world):
    """Of every run, what came of it with a replicated table and with a sharded one."""
    made = {}
    for name, (run, arguments, kinds) in plans(world).items():
        try:
            made[name] = [run(rank, world, *arguments, sharded=sharded) for sharded in kinds]
        except Exception as error:
            raise RuntimeError(name) from error
    return made


@pytest.mark.parametrize("world", [2, 4])
def test_k_processes_equal_one(world):
    ranks = run_ranks(every_run, world)
    for name, (run, arguments, kinds) in plans(world).items():
        single = "float32" in name
        tolerance = 1e-6 if single else 1e-12
        close = {"rtol": tolerance, "atol": tolerance, "msg": lambda text, name=name: f"{name}: {text}"}
        weights, values, state = run(None, world, *arguments)
        for kind, _ in enumerate(kinds):
            runs = [rank[name][kind] for rank in ranks]
            for their_weights, _, their_state in runs:
                torch.testing.assert_close(their_weights, weights, **close)
                # In single precision, log g is a difference over a temperature, and as much less precise.
                if not single:
                    torch.testing.assert_close(their_state, state, **close)
            if not single:
                torch.testing.assert_close([value for _, value, _ in runs], [values] * world, **close)

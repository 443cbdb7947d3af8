"""What is saved under some number of ranks is resumed under another, bit for bit."""

import signal
from pathlib import Path

import elastic
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import preload, run_ranks
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import fcco
from fcco import distributed

N = 11
KINDS = [False, True]
RULES = [fcco.MOAP(0.3), fcco.SOX(fcco.schedules.RunningMean())]


def make_losses(sharded, n=N):
    made = [*(fcco.CoupledLoss(torch.log1p, n, rule=rule) for rule in RULES), fcco.losses.ContrastiveLoss(n)]
    return distributed.configure(torch.nn.ModuleList(made).double(), sharded=sharded)


def take_steps(losses, rank, world, steps):
    for step in steps:
        rows = torch.randint(N, (6,), generator=torch.Generator().manual_seed(step)).tensor_split(world)[rank]
        values = torch.rand(N, 3, generator=torch.Generator().manual_seed(100 + step), dtype=torch.float64)
        first, second, third = losses
        for loss_fn in (first, second):
            loss_fn(values[rows, 0].requires_grad_(), rows)
        third(values[rows].requires_grad_(), values[rows].flip(1), rows)


def save(rank, world, folder, sharded):
    folder = Path(folder, str(sharded))
    losses = make_losses(sharded)
    take_steps(losses, rank, world, range(5))
    dcp.save(losses.state_dict(), checkpoint_id=folder / "dcp")
    saved = distributed.full_state_dict(losses)
    if rank == 0:
        torch.save(saved, folder / "full.pt")
    take_steps(losses, rank, world, range(5, 8))
    return saved, distributed.full_state_dict(losses)


def both_kinds(rank, world, function, *arguments):
    return [function(rank, world, *arguments, sharded) for sharded in KINDS]


def resume(rank, world, folder, sharded):
    folder = Path(folder, str(sharded))
    from_dcp, from_file = make_losses(sharded), make_losses(sharded)
    state = from_dcp.state_dict()
    dcp.load(state, checkpoint_id=folder / "dcp")
    from_dcp.load_state_dict(state)
    from_file.load_state_dict(torch.load(folder / "full.pt", weights_only=True))
    resumed = distributed.full_state_dict(from_dcp), distributed.full_state_dict(from_file)
    take_steps(from_dcp, rank, world, range(5, 8))
    return *resumed, distributed.full_state_dict(from_dcp)


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("world", [1, 3])
def test_saved_on_two_ranks_resumed_on_any_number(ranks, world):
    folder, kinds = ranks[0]["checkpoints"]
    for rank in run_ranks(both_kinds, world, resume, folder):
        for (state, later), (from_dcp, from_file, ended) in zip(kinds, rank, strict=True):
            assert state["0.table.step"] == 5
            assert same(from_dcp, state)
            assert same(from_file, state)
            torch.testing.assert_close(ended, later, rtol=1e-12, atol=1e-12)


def leave_out(rank, world, sharded):
    """Load the states of losses of another n into three new ones, by rank and whole, and take steps with them."""
    trained, fresh = make_losses(sharded, N + 1), make_losses(sharded)
    take_steps(trained, rank, world, range(2))
    ended = []
    for saved in (trained.state_dict(), distributed.full_state_dict(trained)):
        resumed = make_losses(sharded)
        with pytest.warns(UserWarning, match="is left out") as told:
            keys = resumed.load_state_dict(saved, strict=False)
        assert keys == ([], [])
        assert [str(warning.message).split("'")[1] for warning in told] == ["0", "1", "2"]
        take_steps(resumed, rank, world, range(5, 8))
        ended.append(distributed.full_state_dict(resumed))
    take_steps(fresh, rank, world, range(5, 8))
    return distributed.full_state_dict(fresh), ended


def save_and_go_on(rank, world, folder):
    loss_fn = distributed.configure(fcco.CoupledLoss(torch.log, 10**6, rule=fcco.SOX(gamma=0.1)), sharded=True)
    loss_fn.table.u.fill_(1.0)
    own_group = dist.new_group(backend="gloo")
    saving = dcp.async_save(distributed.snapshot(loss_fn), checkpoint_id=folder, process_group=own_group)
    loss_fn.table.u.fill_(2.0)
    saving.result()
    loaded = distributed.configure(fcco.CoupledLoss(torch.log, 10**6, rule=fcco.SOX(gamma=0.1)), sharded=True)
    dcp.load(loaded.state_dict(), checkpoint_id=folder)
    return bool((loaded.table.u == 1.0).all())


def everything(rank, world, folder):
    """Of either kind of table, the state that is saved and the state some steps later; and two runs that save."""
    whole, asynchronous = Path(folder, "whole"), Path(folder, "asynchronous")
    whole.mkdir(exist_ok=True)
    return {
        "checkpoints": (folder, both_kinds(rank, world, save, folder)),
        "left out": both_kinds(rank, world, leave_out),
        "asynchronous": save_and_go_on(rank, world, asynchronous),
        "undisturbed": elastic.train(whole),
    }


def test_what_is_of_another_n_is_left_out_on_every_rank(ranks):
    for rank in ranks:
        for fresh, ended in rank["left out"]:
            assert all(same(fresh, state) for state in ended)


def test_an_asynchronous_save_does_not_tear(ranks):
    assert all(rank["asynchronous"] for rank in ranks)


@pytest.fixture
def _signals():
    """What torchrun handles is afterwards handled as before."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.mark.usefixtures("_signals")
def test_a_killed_rank_comes_back(ranks, tmp_path, monkeypatch):
    """By SIGKILL, between two checkpoints: torchrun starts all ranks again, and they end as if nothing had been.

    What torchrun runs is called here, so that it need not import torch, and its ranks neither.
    """
    # Without it, torchrun gives its workers the store of the first start again, with addresses that are gone.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        max_restarts=1,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        monitor_interval=0.1,
        start_method="forkserver",
    )
    preload()
    elastic_launch(config, elastic.main)(str(tmp_path), 8)
    restarts, weights, state = torch.load(tmp_path / "end.pt", weights_only=True)
    expected_weights, expected_state = ranks[0]["undisturbed"]
    assert restarts == "1"
    assert torch.equal(weights, expected_weights)
    assert same(state, expected_state)

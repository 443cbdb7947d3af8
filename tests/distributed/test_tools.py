"""What is saved, watched and asked under a process group."""

import os
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from test_behaviour import LABELS, N, features, message_of

import fcco
from fcco import diagnostics, distributed
from snippets import run


def saved_by_the_first(rank, folder):
    """What loading says to a plain save of one rank's rows: into a sharded table, and into a whole one."""
    loss_fn = distributed.configure(fcco.CoupledLoss(torch.log, 4, rule=fcco.SOX(gamma=0.1)), sharded=True)
    if rank == 0:
        torch.save(loss_fn.state_dict(), f"{folder}/table.pt")
    dist.barrier()
    state = torch.load(f"{folder}/table.pt", weights_only=not torch.__version__.startswith("2.4."))
    whole = fcco.CoupledLoss(torch.log, 4, rule=fcco.SOX(gamma=0.1))
    return message_of(lambda: loss_fn.load_state_dict(state)), message_of(lambda: whole.load_state_dict(state))


def page(folder):
    """What the page on several ranks leaves behind if there really are two."""
    names, before = {}, Path.cwd()
    with (
        mock.patch.dict(os.environ),
        mock.patch.object(dist, "init_process_group"),
        mock.patch.object(dist, "destroy_process_group"),
    ):
        os.chdir(folder)
        try:
            run(Path(__file__).parents[2] / "docs" / "scale.md", names)
        finally:
            os.chdir(before)
    return type(names["loss_fn"].table).__name__, int(names["loss_fn"].table.step)


def shared_by_two():
    """A loss under two names: both are whole.

    By messages of the table's own. Those of a DTensor need a group that has some on the table's device; here they are
    refused altogether.
    """
    loss_fn = distributed.configure(fcco.CoupledLoss(torch.log, N, rule=fcco.SOX(gamma=0.1)), sharded=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(type(loss_fn.table.state_dict()["u"]), "full_tensor")
        return distributed.full_state_dict(torch.nn.ModuleDict({"first": loss_fn, "second": loss_fn}))


def watched(rank):
    """A monitor on a rank that has no rows, on one that has bad ones, and of a sharded table."""
    loss_fn, engine = fcco.losses.CoxLoss(N, memory=0), fcco.CoupledLoss(torch.log, N, rule=fcco.SOX(gamma=0.1))
    monitor, rows = diagnostics.Monitor(loss_fn), torch.arange(3 * rank)
    diagnostics.Monitor(engine)
    loss_fn(torch.ones(len(rows), requires_grad=True), rows, rows >= 0, rows)
    ones, wrong = torch.ones(2, requires_grad=True), torch.arange(2).float()
    refused = message_of(lambda: engine(ones, wrong if rank == 1 else wrong.long()))
    return (
        monitor.report(),
        refused,
        message_of(lambda: diagnostics.Monitor(distributed.configure(engine, sharded=True))),
    )


def looked_at_alone(rank):
    """What one rank asks while the other does nothing; and a loss that is said to be alone."""
    if rank == 1:
        return None
    w, x, y = torch.ones((), requires_grad=True), torch.linspace(-1, 1, 12), torch.arange(12) % 2
    loss_fn = fcco.losses.AveragePrecisionLoss.from_targets(y, memory=0)
    bias = diagnostics.gradient_bias(
        loss_fn, lambda loss_fn, rows: loss_fn(x[rows] * w, y[rows], rows), [range(12), range(12)], [w]
    )
    own = distributed.configure(fcco.losses.NCALoss(N), alone=True)
    own(features().requires_grad_(), LABELS, torch.arange(N)).backward()
    problem = fcco.solvers.problems.pseudo_huber(n=8)
    solution = fcco.solve(problem, "sox", outer_batch=2, inner_batch=2, steps=3, lr=0.1, beta=0.5, gamma=0.5)
    return bias.table.bias, int(own.table.step), solution.steps


def everything(rank, world, folder):
    return {
        "saved": saved_by_the_first(rank, folder),
        "page": page(folder),
        "shared": shared_by_two(),
        "watched": watched(rank),
        "looked_at": looked_at_alone(rank),
    }


def test_what_one_rank_saved_is_not_taken_for_the_whole(ranks):
    told = "these are the rows of one rank of a sharded table: save fcco.distributed.full_state_dict"
    (own, whole), (anothers, also_whole) = (rank["saved"] for rank in ranks)
    assert own is None
    assert all(told in message for message in (anothers, whole, also_whole))


def test_the_page_runs_on_two_ranks(ranks):
    assert [rank["page"] for rank in ranks] == [("ShardedTable", 2)] * 2


def test_a_loss_under_two_names_is_whole_under_both(ranks):
    for rank in ranks:
        assert all(type(value) is torch.Tensor for value in rank["shared"].values())
        assert len(rank["shared"]["second.table.u"]) == N


def test_monitors_under_a_group(ranks):
    (nothing, told, _), (report, refused, sharded) = (rank["watched"] for rank in ranks)
    assert nothing["never_seen"] == 1
    assert report["never_seen"] == pytest.approx(1 - 3 / N)
    assert told == "RuntimeError: rank 1 has refused its batch, so that no rank takes this step"
    assert refused == "TypeError: index must be of an integer dtype; got torch.float32"
    assert sharded == "ValueError: diagnostics need all rows of a table, and this one is sharded over ranks"


def test_a_rank_may_look_at_its_loss_by_itself(ranks):
    bias, steps, solved = ranks[0]["looked_at"]
    assert bias == pytest.approx(0, abs=1e-6)
    assert (steps, solved) == (1, 3)
    with pytest.raises(ValueError, match="cannot be alone"):
        distributed.configure(fcco.losses.NCALoss(N), sharded=True, alone=True)

"""All that tests ask of two ranks, for which they are started once."""

import test_agreement
import test_behaviour
import test_checkpoint
import test_golden_ranks
import test_large_batches
import test_ranks_of_losses
import test_shared_memory
import test_tools


def everything(rank, world, folder):
    """By name, what came of it on this rank."""
    made = {}
    for module in (
        test_behaviour,
        test_large_batches,
        test_tools,
        test_agreement,
        test_shared_memory,
        test_checkpoint,
        test_ranks_of_losses,
        test_golden_ranks,
    ):
        made |= module.everything(rank, world, folder)
    return made

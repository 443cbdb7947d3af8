"""A small encoder, trained from scratch by a contrastive loss: remembered outputs must not make it collapse."""

import pytest

import fcco
from fcco import _guard
from losses.test_collapse import BATCH, N, train


def info_nce():
    return fcco.losses.ContrastiveLoss(N, include_positive=True, own_term="sampled", rule=fcco.BSGD())


def remembering(**options):
    return fcco.losses.ContrastiveLoss(N, memory=fcco.Memory(4 * BATCH, **options))


@pytest.mark.parametrize("lr", [0.01, 0.1])
class TestEncoder:
    def test_without_a_guard_it_collapses(self, lr):
        assert train(remembering(mode="gradient", guard=False), lr) > -0.3

    def test_with_the_guard_it_does_not(self, lr):
        loss_fn = remembering(mode="gradient")
        assert train(info_nce(), lr) < -2
        assert train(loss_fn, lr) < -2
        assert _guard.alignment(loss_fn.memory.guard) > 0.5

    def test_nor_by_default(self, lr):
        assert train(fcco.losses.ContrastiveLoss(N), lr) < -2

    def test_nor_where_outputs_only_estimate(self, lr):
        assert train(remembering(mode="estimate"), lr) < -2

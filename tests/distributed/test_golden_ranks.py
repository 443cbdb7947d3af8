"""Two processes, with parts of batches that are uneven or empty, compute what one does in the golden runs."""

import pytest

from golden.make import BY_NAME, difference, run

NAMES = [
    "AveragePrecisionLoss()",
    "AveragePrecisionLoss(self_term='exact', rule=SOX(0.3)) copies=noisy",
    "AveragePrecisionLoss of classes(temperature='auto')",
    "PNormPushLoss(memory=12) draw=lacking",
    "AUCLoss(form='min_max') draw=uneven",
    "CoxLoss(rule=SOX(0.3), memory=12) copies=noisy",
    "BaselineCoxLoss()",
    "NCALoss(rule=SOX(0.3), memory=30)",
    "ContrastiveLoss(temperature=learnt, rule=SOX(0.3))",
    "RobustContrastiveLoss(lr=0.05, rule=SOX(0.3))",
    "NDCGLoss(memory=20) copies=noisy",
    "GroupDROLoss(rule=SOX(0.3))",
    "SoftmaxLoss(rule=SOX(0.3)) call=target=item, candidates=candidates",
    "CoupledLoss(outer=ratio, dim=2, log=True, rule=MOAP(0.3)) copies=noisy",
]


def everything(rank, world, folder):
    return {f"golden {name}": run(BY_NAME[name], rank=rank) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_compute_what_one_process_does(ranks, name):
    alone = run(BY_NAME[name])
    for made in ranks:
        fields = made[f"golden {name}"]
        changed = {field: difference(now, alone[field]) for field, now in fields.items()}
        assert max(changed.values()) <= 1e-9, changed

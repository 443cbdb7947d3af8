"""What the authors ran, what they reported, and the same in the terms of this library."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from fcco import METHODS

P = 4.0
DECAY = 1e-3
BATCH = 32
EVERY = 500
QUICK_STEPS = 301
STEPS = 9_501  # iterations are counted from 0, and the last one reported is 9,500


@dataclass(frozen=True)
class Setting:
    """One way to run a method.

    Args:
        rule: of the table: "bsgd", "soap", "moap" or "sox".
        lr: step along the moving average of the gradient.
        gamma: rate of the table.
        beta: rate of the gradient's moving average.
        as_coded: start as the authors' code does, at weights from U(-1, 1) and a table of zeros, and leave out MOAP's
            n/B1 as it does. Otherwise weights start at 0 and rows at their first estimate, and MOAP is the paper's.
        batch: B1 = B2.
        decay: of the weights.
    """

    rule: str
    lr: float
    gamma: float
    beta: float
    as_coded: bool = False
    batch: int = BATCH
    decay: float = DECAY


@dataclass(frozen=True)
class Published:
    """The authors' rates, ``lr`` as in their code, and what the paper's tables say."""

    lr: float
    gamma: float
    beta: float
    loss: float
    std: float
    seconds: float

    def setting(self, method: str) -> Setting:
        """The same run, in the terms of this library: the paper's SOX is in the code SOAP's table with momentum.

        >>> PUBLISHED["covtype"]["SOX"].setting("SOX")
        Setting(rule='soap', lr=0.01, gamma=0.5, beta=0.1, as_coded=True, batch=32, decay=0.001)
        """
        rule = "soap" if method == "SOX" else method.lower()
        return Setting(rule, average_lr(self.lr, self.beta), self.gamma, self.beta, as_coded=True)


PUBLISHED = MappingProxyType(
    {
        "covtype": {
            "BSGD": Published(0.0005, 1.0, 1.0, 0.625, 0.018, 4.20),
            "SOAP": Published(0.005, 0.5, 1.0, 0.523, 0.004, 4.32),
            "MOAP": Published(0.001, 0.5, 0.1, 0.559, 0.011, 4.89),
            "SOX": Published(0.001, 0.5, 0.1, 0.516, 0.003, 4.62),
        },
        "ijcnn1": {
            "BSGD": Published(0.01, 1.0, 1.0, 0.202, 0.001, 4.02),
            "SOAP": Published(0.1, 0.1, 1.0, 0.128, 0.002, 4.04),
            "MOAP": Published(0.005, 0.9, 0.1, 0.147, 0.001, 4.42),
            "SOX": Published(0.1, 0.1, 0.9, 0.128, 0.002, 4.15),
        },
    }
)
# Loss and seconds of the boosting algorithm, which has no rates and no seeds.
BOOSTING = MappingProxyType({"covtype": (0.778, 6043.90), "ijcnn1": (0.268, 648.06)})


def average_lr(lr: float, beta: float) -> float:
    """The step of v = (1-β)v + βG that is ``lr`` of ``torch.optim.SGD(momentum=1-β)``, whose buffer is v/β.

    >>> average_lr(0.001, beta=0.1)
    0.01
    """
    return lr / beta


def tuned_setting(method: str, lr: float, gamma: float) -> Setting:
    """The library's own method, with its default β of 0.1 where it has momentum.

    >>> tuned_setting("BSGD", 0.1, 1.0)
    Setting(rule='bsgd', lr=0.1, gamma=1.0, beta=1.0, as_coded=False, batch=32, decay=0.001)
    """
    return Setting(method.lower(), lr, gamma, METHODS[method].beta())


def same_steps(data: str) -> dict[str, Setting]:
    """BSGD with the steps that the other methods were given: all that is left is the table.

    Without n/B1, MOAP's row has forgotten its last visit by its next one, and u = γ g. MOAP is then BSGD with momentum,
    the gradient of its loss times γ^(p-1): a step that much shorter, and a weight decay that much larger.
    """
    soap = replace(PUBLISHED[data]["SOAP"].setting("SOAP"), rule="bsgd", gamma=1.0, as_coded=False)
    moap = PUBLISHED[data]["MOAP"].setting("MOAP")
    share = moap.gamma ** (P - 1)
    like_moap = replace(moap, rule="bsgd", lr=moap.lr * share, gamma=1.0, decay=moap.decay / share)
    return {"BSGD, w = 0, SOAP's lr": soap, "BSGD, as MOAP comes to": like_moap}

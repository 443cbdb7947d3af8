"""Pre-training, and a run of any method from there; both go on where they were stopped."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fcco.data import PositiveNegativeSampler
from fcco.functional import average_precision_loss
from fcco.losses import AveragePrecisionLoss
from fcco.optim import MovingAverageSGD
from fcco_reproduce._digest import digest
from fcco_reproduce._methods import method_of
from fcco_reproduce.ap._data import Images, Parts, load
from fcco_reproduce.ap._measures import measure
from fcco_reproduce.ap._network import ResNet
from fcco_reproduce.ap._settings import CROSS_ENTROPY, IN_BATCH, THEN_AP, Training, TrainingSettings

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
SAVE_AFTER = 60.0  # seconds between two checkpoints
_code = cache(digest)


@dataclass(frozen=True)
class Place:
    """Where work is done: the results do not depend on it, up to rounding.

    Parameters
    ----------
    device : str
        Of PyTorch.
    folder : Path or None
        Of pre-trained networks and checkpoints; None keeps neither.
    save_after : float
        Seconds between two checkpoints of a run.
    """

    device: str = "cpu"
    folder: Path | None = None
    save_after: float = SAVE_AFTER

    def file(self, kind: str, **what: Any) -> Path | None:
        """Return the path of a file that is named by what its content depends on."""
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]
        return None if self.folder is None else self.folder / f"{kind}-{digest}.pt"


def network(training: Training, place: Place) -> ResNet:
    """Return a new network in the memory format of the images."""
    net = ResNet(training.widths, training.blocks, stride=training.stride)
    return net.to(place.device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def loss_of(setting: TrainingSettings, training: Training, target: Tensor) -> nn.Module:
    """Return a module that is called with logits, targets and rows."""
    if setting.method == CROSS_ENTROPY:
        return _CrossEntropy()
    if setting.method == IN_BATCH:
        return _InBatch(training.margin)
    n, n_pos = len(target), int(target.sum())
    if setting.method == THEN_AP:
        return _EntropyFirst(AveragePrecisionLoss(n, n_pos, temperature="auto"), training.steps // 2)
    gamma = setting.gamma
    if setting.method == "MOAP" and not setting.as_coded:
        gamma *= setting.positives / n_pos
    rule = method_of(setting.method).rule(gamma)
    return _OfSigmoids(AveragePrecisionLoss(n, n_pos, training.margin, "squared_hinge", rule=rule))


class _CrossEntropy(nn.Module):
    def forward(self, logits: Tensor, target: Tensor, index: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype))


class _EntropyFirst(nn.Module):
    """Cross entropy for some steps, and another loss from then on."""

    steps: Tensor

    def __init__(self, loss: nn.Module, switch: int) -> None:
        super().__init__()
        self.loss, self.entropy, self.switch = loss, _CrossEntropy(), switch
        self.register_buffer("steps", torch.tensor(0))  # in the checkpoint

    def forward(self, logits: Tensor, target: Tensor, index: Tensor) -> Tensor:
        self.steps += 1
        result: Tensor = (self.loss if self.steps > self.switch else self.entropy)(logits, target, index)
        return result


class _InBatch(nn.Module):
    """The loss of the batch as if it were all there is."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, logits: Tensor, target: Tensor, index: Tensor) -> Tensor:
        return average_precision_loss(logits.sigmoid(), target, margin=self.margin, surrogate="squared_hinge")


class _OfSigmoids(nn.Module):
    def __init__(self, loss: AveragePrecisionLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, logits: Tensor, target: Tensor, index: Tensor) -> Tensor:
        return self.loss(logits.sigmoid(), target, index)


def _rate(lr: float, step: int, steps: int) -> float:
    """Return the learning rate of a step: a tenth of lr after half of the steps, a hundredth after three quarters."""
    return lr * (0.1 if 2 * step >= steps else 1.0) * (0.1 if 4 * step >= 3 * steps else 1.0)


def _descend(
    net: nn.Module, optimizer: MovingAverageSGD, loss_fn: Loss, images: Images, rows: Tensor, seed: int
) -> bool:
    """Take a step with crops drawn by the seed; return False, without a step, if the scores are not finite."""
    generator = torch.Generator().manual_seed(seed)
    rows = rows.to(images.target.device)
    optimizer.zero_grad()
    logits = net(images.augmented(rows, generator))
    if not logits.isfinite().all():
        return False
    loss_fn(logits, images.target[rows], rows).backward()
    optimizer.step()
    return True


def _crop_seed(seed: int, step: int) -> int:
    """Return a seed for the crops of a step, so that a resumed run draws the same crops."""
    return int(np.random.SeedSequence([seed, step % 2**32]).generate_state(1)[0])


def _set_rate(optimizer: MovingAverageSGD, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def _save(state: dict[str, Any], path: Path | None) -> None:
    """Write a file whole or not at all."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{time.time_ns()}.part")
    torch.save(state, part)
    part.replace(path)


@dataclass
class _TrainingState:
    """Everything that changes during a run."""

    net: ResNet
    optimizer: MovingAverageSGD
    loss: nn.Module
    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"net": self.net, "optimizer": self.optimizer, "loss": self.loss}
        plain = {key: getattr(self, key) for key in ("step", "seconds", "history", "best")}
        return plain | {key: part.state_dict() for key, part in parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for key, value in state.items():
            part = getattr(self, key)
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(value)
            else:
                setattr(self, key, value)


class _Checkpoint:
    """A file from which a run goes on, written now and then.

    Parameters
    ----------
    path : Path or None
        Of the file; None for none.
    place : Place
        How often, and where it is loaded to.
    """

    def __init__(self, path: Path | None, place: Place) -> None:
        self.path, self.place, self.saved = path, place, time.monotonic()

    def resumed(self, run: _TrainingState) -> _TrainingState:
        """Return the run as it was last saved."""
        if self.path is not None and self.path.exists():
            run.load_state_dict(torch.load(self.path, map_location=self.place.device, weights_only=True))
        return run

    def save(self, run: _TrainingState) -> None:
        """Write the file, if it is time to."""
        if self.path is not None and time.monotonic() - self.saved >= self.place.save_after:
            _save(run.state_dict(), self.path)
            self.saved = time.monotonic()

    def remove(self) -> None:
        """Forget the run, which is finished."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _optimizer(net: nn.Module, setting: TrainingSettings, training: Training) -> MovingAverageSGD:
    return MovingAverageSGD(net.parameters(), lr=setting.lr, beta=setting.beta, weight_decay=training.decay)


def _steps(
    run: _TrainingState,
    images: Images,
    setting: TrainingSettings,
    seed: int,
    last: int,
    crops: Callable[[int], int] = lambda step: step,
) -> Iterator[int]:
    """Take the steps that are left, and tell after each how many have been; end before a run that diverged does."""
    for rows in _batches(images.target, setting, seed, first=run.step, last=last):
        _set_rate(run.optimizer, _rate(setting.lr, run.step, last))
        if not _descend(run.net, run.optimizer, run.loss, images, rows, seed=_crop_seed(seed, crops(run.step))):
            return
        run.step += 1
        yield run.step


def pretrained(training: Training, seed: int, place: Place) -> dict[str, Any]:
    """Return the weights after pre-training with cross entropy on balanced batches, cached in a file."""
    later = ("steps", "every", "measured", "margin", "test_curve")
    what = {key: value for key, value in asdict(training).items() if key not in later}
    path = place.file("pretrained", code=_code(pretrained), seed=seed, **what)
    if path is not None and path.exists():
        return torch.load(path, map_location=place.device, weights_only=True)
    torch.manual_seed(seed)
    images, net = load(training.data, training.share, place.device).train, network(training, place)
    setting = TrainingSettings(CROSS_ENTROPY, training.first_lr)
    checkpoint = _Checkpoint(None if path is None else path.with_suffix(".unfinished"), place)
    run = checkpoint.resumed(_TrainingState(net, _optimizer(net, setting, training), _CrossEntropy()))
    # Other crops than those of the run that follows.
    for _ in _steps(run, images, setting, seed, training.first_steps, crops=lambda step: -1 - step):
        checkpoint.save(run)
    _save(net.state_dict(), path)
    checkpoint.remove()
    return net.state_dict()


def train(training: Training, setting: TrainingSettings, seed: int, place: Place) -> dict[str, Any]:
    """Train once and return the measurements; the weights with the least validation loss are tested.

    Returns
    -------
    dict
        ``history``, a list of measures from the start on; ``stopped``, at which step the validation loss was least, and
        ``epochs``, the passes over the negatives until then; ``test AP`` there and ``last test AP`` at the end;
        ``diverged``, whether the scores ceased to be numbers before it; ``seconds`` of processor time.
    """
    parts = load(training.data, training.share, place.device)
    path = place.file("run", code=_code(train), training=asdict(training), setting=asdict(setting), seed=seed)
    checkpoint = _Checkpoint(path, place)
    run = checkpoint.resumed(_begin(training, setting, seed, place, parts))
    _continue(run, parts, training, setting, seed, checkpoint)
    diverged = run.step < training.steps
    last = None if diverged else measure(run.net, parts.test).ap
    stopped = run.best["step"]
    run.net.load_state_dict(run.best["net"])
    epochs = stopped * setting.negatives / int((parts.train.target == 0).sum())
    result = {"history": run.history, "stopped": stopped, "epochs": epochs, "test AP": measure(run.net, parts.test).ap}
    checkpoint.remove()
    return result | {"last test AP": last, "diverged": diverged, "seconds": run.seconds}


def _begin(training: Training, setting: TrainingSettings, seed: int, place: Place, parts: Parts) -> _TrainingState:
    weights = pretrained(training, seed, place)
    torch.manual_seed(seed)
    net = network(training, place)
    weights = {**weights, **{f"head.{key}": value for key, value in net.head.state_dict().items()}}
    net.load_state_dict(weights)
    return _TrainingState(
        net, _optimizer(net, setting, training), loss_of(setting, training, parts.train.target).to(place.device)
    )


def _continue(
    run: _TrainingState, parts: Parts, training: Training, setting: TrainingSettings, seed: int, checkpoint: _Checkpoint
) -> None:
    """The steps that are left, with measurements among them."""
    begun, before = time.process_time(), run.seconds
    if not run.history:
        _look(run, parts, training)
    for step in _steps(run, parts.train, setting, seed, training.steps):
        if step % training.every == 0 or step == training.steps:
            _look(run, parts, training)
            run.seconds = before + time.process_time() - begun
            checkpoint.save(run)


def _batches(target: Tensor, setting: TrainingSettings, seed: int, *, first: int, last: int) -> Iterator[Tensor]:
    """Yield the rows of every step from ``first`` on; an epoch is a pass over the negatives."""
    sampler = PositiveNegativeSampler(
        target.cpu().numpy(), setting.positives, setting.negatives, outer="negative", drop_last=True, seed=seed
    )
    step = 0
    for epoch in range(first // len(sampler), last):
        sampler.set_epoch(epoch)
        step = epoch * len(sampler)
        for rows in sampler:
            if first <= step < last:
                yield torch.tensor(rows)
            step += 1
        if step >= last:
            return


def _look(run: _TrainingState, parts: Parts, training: Training) -> None:
    """Measure, and keep the weights if the validation loss is the least so far."""
    train = measure(run.net, parts.train, training.measured, margin=training.margin)
    validation = measure(run.net, parts.validation, training.measured, margin=training.margin)
    point = {"step": run.step, "train loss": train.loss, "train AP": train.ap}
    point |= {"validation loss": validation.loss, "validation AP": validation.ap}
    run.history.append(point | ({"test AP": measure(run.net, parts.test).ap} if training.test_curve else {}))
    if not run.best or validation.loss < run.best["loss"]:
        weights = {key: value.clone() for key, value in run.net.state_dict().items()}
        run.best = {"step": run.step, "loss": validation.loss, "net": weights}

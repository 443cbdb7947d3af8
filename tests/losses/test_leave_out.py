"""A model is loaded without its loss: ``strict=False`` leaves the state of a loss out if it does not fit."""

import pytest
import torch
from torch import nn

import cases as engine
import fcco
from fcco import losses
from losses.cases import (
    AP,
    AUC,
    BATCHES,
    CASES,
    DEFAULTS,
    GROUP_DRO,
    GROUP_DRO_AT_RANDOM,
    NCA,
    run,
    same,
    state,
)

# The rows of these are groups or sides, not examples. Without sizes to know, a state of another n is one of the same.
FITS_ANY_N = [AUC, AUC.with_options(form="min_max"), GROUP_DRO, GROUP_DRO.with_options(temperature=0.3)]
STRANGERS = [
    case
    for case in dict.fromkeys(map(str, [*CASES, *DEFAULTS, GROUP_DRO_AT_RANDOM]))
    if case not in map(str, FITS_ANY_N)
]
BY_NAME = {str(case): case for case in [*CASES, *DEFAULTS, GROUP_DRO_AT_RANDOM]}
SHORT = [[0, 1, 2, 3, 4, 5], [6, 3, 7, 8, 1, 2]]


def within(loss_fn, weight=0.0):
    """A model with the loss two levels deep, and a weight beside it."""
    model = nn.ModuleDict({"net": nn.Linear(1, 1), "head": nn.ModuleDict({"loss": loss_fn} if loss_fn else {})})
    nn.init.constant_(model["net"].weight, weight)
    return model


def load(model, saved, path=r"head\.loss"):
    """Load leniently, where one warning is to name the loss."""
    message = rf"loss '{path}' \(\w+\) does not fit and is left out.* a new loss starts afresh: "
    with pytest.warns(UserWarning, match=message) as told:
        keys = model.load_state_dict(saved, strict=False)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert "strict=False" not in str(told[0].message)
    assert keys == ([], [])


class TestEveryLoss:
    @pytest.mark.parametrize("name", STRANGERS)
    def test_of_another_n_starts_afresh(self, name):
        case = BY_NAME[name]
        population, other = case.population(), case.population(n=9, seed=1)
        trained = case.make(population)
        run(case, trained, population, BATCHES[:2])
        saved = state(within(trained, weight=7.0))
        model, fresh = within(case.make(other)), case.make(other)
        before = state(model["head"])
        with pytest.raises(
            RuntimeError, match=r"head\.loss\.(coupled\.)?table.*without the state of its loss, pass strict=False"
        ):
            model.load_state_dict(saved)
        assert same(state(model["head"]), before)
        load(model, saved)
        assert model["net"].weight.item() == 7.0
        resumed = model["head"]["loss"]
        assert same(state(resumed), state(fresh))
        assert all(map(torch.equal, run(case, resumed, other, SHORT), run(case, fresh, other, SHORT)))
        assert same(state(resumed), state(fresh))

    @pytest.mark.parametrize("name", BY_NAME)
    def test_that_fits_is_loaded(self, name):
        case = BY_NAME[name]
        population = case.population()
        trained = case.make(population)
        run(case, trained, population, BATCHES[:2])
        model = within(case.make(population))
        assert model.load_state_dict(within(trained).state_dict(), strict=False) == ([], [])
        assert same(state(model["head"]["loss"]), state(trained))


@pytest.mark.parametrize("case", engine.CASES, ids=engine.case_id)
def test_engines_of_another_n_start_afresh(case):
    trained, fresh, other = (engine.make_loss(case, n) for n in (10, 12, 12))
    engine.run(trained, case, steps=2)
    model = within(other)
    load(model, within(trained).state_dict())
    assert same(state(other), state(fresh))
    assert all(map(torch.equal, engine.run(other, case), engine.run(fresh, case)))


def test_maml():
    model = nn.Linear(1, 1)
    trained, other = (losses.MAMLLoss.for_model(model, n=n, lr=0.1) for n in (5, 6))
    x = torch.randn(2, 5, 1)
    trained(model, (x, x), (x, x), torch.tensor([0, 1]))
    load(within(other), within(trained).state_dict())
    assert not other.table.visits.any()


def test_a_state_with_parts_missing_is_left_out():
    trained, other = (losses.AveragePrecisionLoss(5, 2, memory=0, temperature=t) for t in (0.5, 0.25))
    trained(torch.randn(4, requires_grad=True), torch.tensor([1, 0, 0, 1]), torch.arange(4))
    saved = within(trained).state_dict()
    del saved["head.loss.table.u"]
    load(within(other), saved)
    assert not other.table.visits.any()
    assert other.temperature == 0.25


def test_what_a_loss_has_stays_and_its_memory_too():
    """All of it: a table that would fit is not loaded beside a memory that does not."""
    population = NCA.population()
    trained, other = (NCA.make(population, memory=size) for size in (8, 4))
    run(NCA, trained, population, BATCHES[:3])
    run(NCA, other, population, BATCHES[:1])
    before = state(other)
    load(within(other), within(trained).state_dict())
    assert same(state(other), before)
    run(NCA, other, population, BATCHES[1:2])


def test_labels_of_the_next_fold():
    folds = [1, 0, 0, 1, 0], [0, 1, 0, 1, 0]
    trained, other = (losses.NCALoss.from_targets(torch.tensor(labels)) for labels in folds)
    with pytest.warns(UserWarning, match="labels="):
        within(other).load_state_dict(within(trained).state_dict(), strict=False)


def test_a_loss_by_itself_is_named_by_its_class():
    with pytest.warns(UserWarning, match="loss CoxLoss does not fit"):
        losses.CoxLoss(5).load_state_dict(losses.CoxLoss(6).state_dict(), strict=False)


def test_each_loss_that_does_not_fit_is_named():
    def two(n):
        return nn.ModuleDict({"first": losses.CoxLoss(n), "second": losses.CoxLoss(n), "third": losses.CoxLoss(5)})

    with pytest.warns(UserWarning, match="CoxLoss") as told:
        two(4).load_state_dict(two(3).state_dict(), strict=False)
    assert [str(warning.message).split("'")[1] for warning in told] == ["first", "second"]


def test_rows_that_are_not_finite_are_left_out():
    trained, other = losses.CoxLoss(5, memory=0), losses.CoxLoss(5, memory=0)
    trained.table.u[2] = torch.nan
    trained.table.visits[:] = True
    load(within(other), within(trained).state_dict())
    assert not other.table.visits.any()


def test_load_anyway_loads_what_has_the_shape():
    trained, larger = (losses.CoxLoss(n, memory=0) for n in (5, 6))
    other = losses.PartialAUCLoss(5, memory=0)
    trained.table.write(torch.tensor([1]), torch.tensor([0.5]))
    with fcco.load_anyway():
        assert within(other).load_state_dict(within(trained).state_dict(), strict=False) == ([], [])
        load(within(larger), within(trained).state_dict())
    assert torch.equal(other.table.u, trained.table.u)


class Scaled(nn.Module):
    """f with a weight and a buffer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("shift", torch.zeros(()))

    def forward(self, u):
        return self.scale * u + self.shift


def test_weights_of_f_are_weights_of_the_model():
    trained, other = (fcco.CoupledLoss(Scaled(), n, rule=fcco.SOX(gamma=0.1)) for n in (5, 6))
    nn.init.constant_(trained.outer.scale, 3.0)
    trained.outer.shift.fill_(2.0)
    load(within(other), within(trained).state_dict())
    assert other.outer.scale.item() == 3.0
    assert other.outer.shift.item() == 2.0
    assert other.outer.scale.requires_grad


def test_a_state_that_fits_is_loaded_beside_the_weights_of_f():
    trained, other = (fcco.CoupledLoss(Scaled(), 5, rule=fcco.SOX(gamma=0.1)) for _ in range(2))
    nn.init.constant_(trained.outer.scale, 3.0)
    trained.table.write(torch.tensor([1]), torch.tensor([0.5]))
    assert within(other).load_state_dict(within(trained).state_dict(), strict=False) == ([], [])
    assert same(state(other), state(trained))


def test_the_model_that_has_no_loss_any_more():
    saved, model = within(losses.CoxLoss(5), weight=7.0).state_dict(), within(None)
    missing, unexpected = model.load_state_dict(saved, strict=False)
    assert model["net"].weight.item() == 7.0
    assert not missing
    assert unexpected
    assert all(key.startswith("head.loss.") for key in unexpected)


def test_the_model_that_has_a_loss_now():
    loss_fn = losses.CoxLoss(5, memory=0)
    loss_fn.table.write(torch.tensor([1]), torch.tensor([0.5]))
    model, before = within(loss_fn), state(loss_fn)
    missing, unexpected = model.load_state_dict(within(None, weight=7.0).state_dict(), strict=False)
    assert model["net"].weight.item() == 7.0
    assert same(state(loss_fn), before)
    assert missing
    assert not unexpected


@pytest.mark.parametrize("assign", [False, True])
def test_nothing_is_shared_with_the_state_or_a_copy(assign):
    population = AP.population()
    trained, other = AP.make(population), AP.make(population)
    run(AP, trained, population, BATCHES[:2])
    before = state(other)
    saved = within(trained).state_dict()
    saved["head.loss.table.visits"] = torch.ones(3, dtype=torch.bool)
    model = within(other)
    with pytest.warns(UserWarning, match="left out"):
        model.load_state_dict(saved, strict=False, assign=assign)
    trained.table.u.fill_(9.0)
    assert same(state(other), before)
    run(AP, other, population, BATCHES[:1])


def test_a_model_that_overrides_load_state_dict():
    class Lenient(nn.ModuleDict):
        def load_state_dict(self, state_dict, strict=True, assign=False):
            return super().load_state_dict(state_dict, strict=False, assign=assign)

    saved = nn.ModuleDict({"loss": losses.CoxLoss(5)}).state_dict()
    with pytest.warns(UserWarning, match="'loss'"):
        Lenient({"loss": losses.CoxLoss(6)}).load_state_dict(saved)


def test_a_model_that_was_compiled():
    """As a whole, or only its loss."""
    saved = {f"_orig_mod.{key}": value for key, value in within(losses.CoxLoss(5), weight=7.0).state_dict().items()}
    model = torch.compile(within(losses.CoxLoss(6)), backend="eager")
    load(model, saved, path=r"_orig_mod\.head\.loss")
    assert model.state_dict()["_orig_mod.net.weight"].item() == 7.0
    first, second = (within(losses.CoxLoss(n)) for n in (5, 6))
    for part in (first, second):
        part["head"]["loss"] = torch.compile(part["head"]["loss"], backend="eager")
    load(second, first.state_dict(), path=r"head\.loss\._orig_mod")


def test_a_file_of_weights_only(tmp_path):
    torch.save(within(losses.CoxLoss(5), weight=7.0).state_dict(), tmp_path / "model.pt")
    model = within(losses.CoxLoss(n=1))
    load(model, torch.load(tmp_path / "model.pt", weights_only=True))
    assert model["net"].weight.item() == 7.0

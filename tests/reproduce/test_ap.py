"""AP on CIFAR: split, network, measures, crops, runs that are stopped and go on, and the study in its quick form."""

import csv
import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

import fcco
from datasets.published import tar
from fcco.cli import main
from fcco.functional import average_precision_loss
from fcco.losses import AveragePrecisionLoss
from fcco.optim import MovingAverageSGD
from fcco_reproduce import Scale, run_study
from fcco_reproduce._methods import AS_PUBLISHED, CODED, PRINTED, TUNED
from fcco_reproduce.ap import STUDY, _comparison, _data, _runs, _training, _verdict
from fcco_reproduce.ap._data import PADDING, Images, at_hand, load
from fcco_reproduce.ap._measures import average_precision, measure, surrogate
from fcco_reproduce.ap._network import ResNet
from fcco_reproduce.ap._settings import (
    CROSS_ENTROPY,
    IN_BATCH,
    OTHERS,
    TABLES,
    THEN_AP,
    TrainingSettings,
    as_training,
    tuned_setting,
)
from fcco_reproduce.ap._training import Place, loss_of, pretrained, train
from fcco_reproduce.datasets import Classification, split_imbalanced
from fcco_reproduce.datasets._registry import FILES

RESNET_18, RESNET_34 = (2, 2, 2, 2), (3, 4, 6, 3)
WIDTHS = (64, 128, 256, 512)


@pytest.fixture(scope="module")
def training():
    """20 steps after 20, on made images."""
    quick = as_training(STUDY.experiments("quick")[0].settings, "made")
    return replace(quick, first_steps=20, steps=20, every=10)


def test_the_split_has_the_authors_counts():
    labels = np.repeat(np.arange(10), 5_000)
    cifar = Classification(np.zeros((50_000, 1), np.uint8), labels, tuple("abcdefghij"))
    split = split_imbalanced(cifar, cifar, STUDY.experiments()[0].settings["training"]["share"])
    assert np.bincount(split.train.y).tolist() == [20_000, 400]
    assert np.bincount(split.validation.y).tolist() == [5_000, 100]
    assert np.bincount(split.test.y).tolist() == [25_000, 25_000]


@pytest.mark.parametrize(("blocks", "known"), [(RESNET_18, 11_173_962), (RESNET_34, 21_282_122)])
def test_parameters_of_the_papers_networks(blocks, known):
    """The numbers of the usual CIFAR forms with ten classes; one output has 9 rows of 512 + 1 less."""
    ten, one = (
        sum(parameter.numel() for parameter in ResNet(WIDTHS, blocks, outputs=outputs).parameters())
        for outputs in (10, 1)
    )
    assert ten == known
    assert one == known - 9 * (512 + 1)


def test_the_papers_scale_has_the_papers_networks():
    for experiment in STUDY.experiments("paper"):
        for data, blocks in (("cifar10", RESNET_18), ("cifar100", RESNET_34)):
            training = as_training(experiment.settings, data)
            assert (training.widths, training.blocks, training.stride) == (WIDTHS, blocks, 1)
            assert training.steps == 200 * (20_000 // 32)


def test_small_is_the_default_but_for_the_table():
    """Which has ten times the steps."""
    small, default = (STUDY.experiments(name) for name in ("small", None))
    assert [one.settings for one in small[:3]] == [one.settings for one in default[:3]]
    assert [one.settings["training"]["steps"] for one in (small[3], default[3])] == [500, 5000]


def test_shapes_of_scores():
    images = torch.zeros(5, 3, 32, 32)
    assert ResNet((4, 8), (1, 2))(images).shape == (5,)
    assert ResNet((4, 8), (1, 2), outputs=3, stride=2)(images).shape == (5, 3)
    with pytest.raises(ValueError, match="as many"):
        ResNet((4, 8), (1,))


def test_measures_are_those_of_scikit_learn_and_of_the_library():
    generator = torch.Generator().manual_seed(0)
    positives, negatives = torch.randn(2, 30, generator=generator, dtype=torch.float64).round(decimals=1) + 0.5
    target = torch.cat([torch.ones(30), torch.zeros(30)])
    both = torch.cat([positives, negatives])
    assert average_precision(positives, negatives) == pytest.approx(average_precision_score(target, both))
    assert surrogate(positives, negatives, margin=0.6) == pytest.approx(
        average_precision_loss(both, target, margin=0.6, surrogate="squared_hinge").item()
    )


@pytest.mark.parametrize("of", [average_precision, surrogate])
def test_a_weight_stands_for_copies(of):
    generator = torch.Generator().manual_seed(0)
    positives, negatives = torch.randn(2, 20, generator=generator, dtype=torch.float64)
    assert of(positives, negatives, 3.0) == pytest.approx(of(positives, negatives.repeat(3)))


def test_some_negatives_stand_for_all(training):
    """Negatives in pairs of equal images: one of each pair, counted twice, measures what both do."""
    images = load("made", training.share).validation
    positive, negative = torch.nonzero(images.target == 1)[:, 0], torch.nonzero(images.target == 0)[:40, 0]
    rows = torch.cat([positive, negative.repeat_interleave(2)])
    paired = Images(images.padded[rows], images.target[rows])
    net = ResNet((4, 8), (1, 1))
    some, both = measure(net, paired, 40), measure(net, paired)
    assert (some.loss, some.ap) == pytest.approx((both.loss, both.ap))
    assert some.ap != pytest.approx(measure(net, Images(images.padded[rows][::2], images.target[rows][::2])).ap)


def test_measuring_leaves_the_network_as_it_was(training):
    net, images = ResNet((4, 8), (1, 1)), load("made", training.share).validation
    before = {key: value.clone() for key, value in net.state_dict().items()}
    found = measure(net, images)
    assert net.training
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    net.eval()
    scores = net(images.plain(torch.arange(len(images)))).detach()
    assert found.ap == pytest.approx(average_precision_score(images.target, scores))


def test_crops_are_windows_of_the_padded_image_and_half_are_mirrored():
    pixels = torch.randint(256, (1, 6 + 2 * PADDING, 6 + 2 * PADDING, 3), dtype=torch.uint8)
    images = Images(pixels, torch.zeros(1))
    rows = torch.zeros(2_000, dtype=torch.long)
    crops = images.augmented(rows, torch.Generator().manual_seed(0))
    windows = {
        (mirrored, down, across): _data._scaled(window.flip(2) if mirrored else window)[0]
        for mirrored in (False, True)
        for down in range(2 * PADDING + 1)
        for across in range(2 * PADDING + 1)
        for window in [pixels[:, down : down + 6, across : across + 6]]
    }
    known = {tuple(window.flatten().tolist()): place for place, window in windows.items()}
    places = [known[tuple(crop.flatten().tolist())] for crop in crops]
    assert len(set(places)) == 2 * (2 * PADDING + 1) ** 2  # 162 places, each missed with a chance of 4e-6
    assert np.mean([place[0] for place in places]) == pytest.approx(0.5, abs=0.05)  # 4.5 deviations
    torch.testing.assert_close(images.plain(rows[:1])[0], windows[False, PADDING, PADDING])


def test_the_crops_of_the_first_training_are_not_those_of_the_run(training, monkeypatch):
    seen, known = [], _training._crop_seed
    monkeypatch.setattr(_training, "_crop_seed", lambda seed, step: seen.append(known(seed, step)) or seen[-1])
    train(training, TrainingSettings(IN_BATCH, 0.1), 0, Place())
    assert len(seen) == len(set(seen)) == training.first_steps + training.steps


def test_a_run_is_the_librarys_loss_and_optimizer(training):
    """Written out: the same batches, crops, loss, steps and rates give the same weights."""
    setting = TrainingSettings(PRINTED, 0.5, gamma=0.3)
    parts = load("made", training.share)
    run = _training._begin(training, setting, 1, Place(), parts)
    plain = replace(training, every=training.steps)
    _training._continue(run, parts, plain, setting, 1, _training._Checkpoint(None, Place()))

    net = ResNet(training.widths, training.blocks)
    net.load_state_dict(pretrained(training, 1, Place()))
    torch.manual_seed(1)
    net.head = ResNet(training.widths, training.blocks).head
    net.to(memory_format=torch.channels_last)
    target = parts.train.target
    loss_fn = AveragePrecisionLoss(len(target), int(target.sum()), 0.6, "squared_hinge", rule=fcco.SOX(0.3))
    optimizer = MovingAverageSGD(net.parameters(), lr=0.5, beta=0.1, weight_decay=2e-4)
    batches = _training._batches(target, setting, 1, first=0, last=training.steps)
    for step, rows in enumerate(batches):
        assert target[rows].tolist() == [1] * 32 + [0] * 32
        optimizer.param_groups[0]["lr"] = 0.5 * (1.0 if step < 10 else 0.1 if step < 15 else 0.01)
        crops = parts.train.augmented(rows, torch.Generator().manual_seed(_training._crop_seed(1, step)))
        optimizer.zero_grad()
        loss_fn(net(crops).sigmoid(), target[rows], rows).backward()
        optimizer.step()
    for ours, theirs in zip(run.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_all_methods_differ(training):
    """Each with its own rule and objective: none ends with another's loss."""
    settings = [tuned_setting(method, 1.0, 0.3) for method in (*TABLES, *OTHERS)]
    ends = {train(training, setting, 0, Place())["history"][-1]["train loss"] for setting in settings}
    assert len(ends) == len(settings)


def test_moap_forgets_by_visits(training):
    target = load("made", training.share).train.target
    visit, step = (
        loss_of(replace(tuned_setting("MOAP", 1.0, 0.5), as_coded=as_coded), training, target).loss.rule.gamma
        for as_coded in (False, True)
    )
    assert step == 0.5
    assert visit == pytest.approx(0.5 * 32 / int(target.sum()))


@pytest.mark.parametrize("method", [PRINTED, "MOAP", IN_BATCH, CROSS_ENTROPY, THEN_AP])
def test_a_run_that_is_stopped_goes_on_to_the_same_end(training, method, tmp_path, monkeypatch):
    setting = tuned_setting(method, 1.0, 0.3)
    whole = train(training, setting, 0, Place())
    place = Place(folder=tmp_path, save_after=0.0)

    def measure_twice(*arguments, calls=[], **options):  # noqa: B006 (counts)
        calls.append(1)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return measure(*arguments, **options)

    monkeypatch.setattr(_training, "measure", measure_twice)
    with pytest.raises(KeyboardInterrupt):
        train(training, setting, 0, place)
    monkeypatch.setattr(_training, "measure", measure)
    assert len(list(tmp_path.glob("run-*.pt"))) == 1
    resumed = train(training, setting, 0, place)
    assert {**resumed, "seconds": 0} == {**whole, "seconds": 0}
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["pretrained"]


def test_a_pretraining_that_is_stopped_goes_on_to_the_same_weights(training, tmp_path, monkeypatch):
    whole = pretrained(training, 0, Place())
    place = Place(folder=tmp_path, save_after=0.0)
    descend, steps = _training._descend, []

    def descend_seven_times(*arguments, **options):
        steps.append(1)
        if len(steps) > 7:
            raise KeyboardInterrupt
        return descend(*arguments, **options)

    monkeypatch.setattr(_training, "_descend", descend_seven_times)
    with pytest.raises(KeyboardInterrupt):
        pretrained(training, 0, place)
    steps.clear()
    monkeypatch.setattr(
        _training, "_descend", lambda *arguments, **options: steps.append(1) or descend(*arguments, **options)
    )
    resumed = pretrained(training, 0, place)
    assert len(steps) == training.first_steps - 7
    assert all(torch.equal(resumed[key], whole[key]) for key in whole)
    assert [path.suffix for path in tmp_path.iterdir()] == [".pt"]


def test_methods_share_the_pretraining(training, tmp_path, monkeypatch):
    place = Place(folder=tmp_path)
    first = pretrained(training, 0, place)
    monkeypatch.setattr(_training, "_descend", None)  # must not be called again
    again = pretrained(replace(training, steps=7), 0, place)
    assert all(torch.equal(again[key], first[key]) for key in first)


def test_a_run_that_diverges_says_so(training):
    run = train(training, tuned_setting(CROSS_ENTROPY, 1e30, 1.0), 0, Place())
    assert run["diverged"]
    assert run["last test AP"] is None
    assert _runs.summary([run])["mean train loss"] is None


def cifar100_archive(each):
    """Binary files as published, with ``each`` noisy images of every class, coarse labels all 0."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(100, dtype=np.uint8), each)
    head = np.stack([np.zeros_like(labels), labels], axis=1)
    records = np.concatenate([head, generator.integers(0, 256, (len(labels), 3 * 32 * 32), dtype=np.uint8)], axis=1)
    names = "\n".join(f"class{k}" for k in range(100)).encode()
    return tar({"train.bin": records.tobytes(), "test.bin": records[::5].tobytes(), "fine_label_names.txt": names})


@pytest.fixture
def made_cifar100(tmp_path, monkeypatch):
    """A small file in the place of the published one."""
    content, path = cifar100_archive(10), "cifar100/cifar-100-binary.tar.gz"
    facts = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "content": None}
    monkeypatch.setitem(FILES, path, replace(FILES[path], **facts))
    monkeypatch.setenv("FCCO_DATA", str(tmp_path))
    (tmp_path / "cifar100").mkdir()
    (tmp_path / path).write_bytes(content)


def test_cifar100_is_run_where_it_is(training, made_cifar100):
    settings = STUDY.experiments()[0].settings
    assert _runs.data_at_hand(settings) == ["cifar10", "cifar100"]
    small = replace(training, data="cifar100", share=0.5, stride=2, first_steps=2, steps=4, every=2)
    parts = load("cifar100", 0.5)
    assert [np.bincount(part.target).tolist() for part in (parts.train, parts.validation, parts.test)] == [
        [50 * 8, 50 * 4],
        [50 * 2, 50 * 1],
        [50 * 2, 50 * 2],
    ]
    run = train(small, tuned_setting(PRINTED, 0.1, 0.7), 0, Place())
    assert [point["step"] for point in run["history"]] == [0, 2, 4]
    assert 0 < run["test AP"] <= 1


def test_cifar100_is_left_out_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("FCCO_DATA", str(tmp_path))
    assert not at_hand("cifar100")
    settings = STUDY.experiments()[0].settings
    assert _runs.data_at_hand(settings) == ["cifar10"]
    assert "CIFAR-100 is not shown" in _runs.skipped(settings, [{"data": "cifar10"}])
    assert _runs.skipped(settings, [{"data": "cifar10"}, {"data": "cifar100"}]) == ""


def row(method, test, speed, block=TUNED):
    known = {"data": "cifar10", "block": block, "method": method, "test AP": test, "mean train loss": speed}
    return known | {"test AP std": 0.01, "its std": 0.01, "last test AP": test, "last test AP std": 0.01, "paper": None}


def test_agreement_is_about_the_papers_methods():
    others = [row("BSGD", 0.6, -0.1), row("MOAP", 0.65, -0.2), row(CROSS_ENTROPY, 0.9, -0.9)]
    assert _verdict.agrees([row(CODED, 0.7, -0.3), *others])
    assert not _verdict.agrees([row(CODED, 0.64, -0.3), *others])
    assert not _verdict.agrees([row(CODED, 0.7, -0.15), *others])
    assert not _verdict.agrees([row(CODED, 0.7, -0.1), row(PRINTED, 0.6, -0.3), *others])  # one form has to be both
    published = [row(CODED, 0.6, -0.3, AS_PUBLISHED), row("BSGD", 0.7, 0.0, AS_PUBLISHED)]
    assert not _verdict.agrees([row(CODED, 0.7, -0.3), *others, *published])


def made_runs(jobs, best):
    """A result for every job, whose validation AP is highest at the lr that ``best`` has for its method."""
    results = []
    for job in jobs:
        setting, seed = job.settings["setting"], job.settings["seed"]
        off = abs(np.log(setting["lr"] / best.get(setting["method"], 1.0)))
        end = {"step": 10, "validation AP": 1 / (1 + off), "validation loss": -0.1}
        points = [{"step": 0, "validation AP": 2.0, "validation loss": -0.9}, end]
        known = {"data": job.settings["data"], "setting": setting, "seed": seed, "diverged": False}
        results.append({**known, "stopped": 10, "history": points, "seconds": 1.0})
    return results


def test_the_grid_grows_until_the_best_lr_is_inside_and_only_that_one_has_other_seeds():
    settings = STUDY.experiments()[3].settings | {"data": ["cifar10"]}
    best, scale = {"SOAP": 10.0, CROSS_ENTROPY: 0.1}, Scale(seeds=3)
    results = made_runs(_comparison.jobs(scale, settings), best)
    assert {(r["setting"]["lr"], r["seed"]) for r in results} == {(0.3, 0), (1.0, 0), (3.0, 0)}
    added = []
    while more := _comparison.more_jobs(scale, results, settings):
        added.append(
            sorted((j.settings["setting"]["method"], j.settings["setting"]["lr"], j.settings["seed"]) for j in more)
        )
        results += made_runs(more, best)
    assert added[0] == [("SOAP", 10.0, 0), (CROSS_ENTROPY, 0.1, 0)]
    assert added[1] == [("SOAP", 30.0, 0), (CROSS_ENTROPY, 0.03, 0)]
    expected = {method: best.get(method, 1.0) for method in (*TABLES, *OTHERS)}
    assert added[2] == sorted((method, lr, seed) for method, lr in expected.items() for seed in (1, 2))
    assert len(added) == 3
    shown = _comparison.chosen(results, settings, "cifar10")
    assert {method: setting.lr for (_, method), (setting, _) in shown.items()} == expected
    assert all(len(runs) == 3 for _, runs in shown.values())
    assert _comparison.tried(results, "cifar10", "SOAP") == "0.3, 1, 3, 10, 30"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Findings by key, and the folder they were written to."""
    out = tmp_path_factory.mktemp("ap")
    experiments = STUDY.experiments("quick")
    findings = run_study(experiments, Scale(seeds=2, name="quick"), out)
    return {experiment.key: finding for experiment, finding in zip(experiments, findings, strict=True)}, out


def test_every_panel_and_method_is_there(found):
    findings = found[0]
    assert [row["B1"] for row in findings["i"].rows] == [4, 8, 16, 32, 48, 56, 60]
    assert [row["B"] for row in findings["ii"].rows] == [8, 16, 32, 64]
    assert [row["gamma"] for row in findings["iii"].rows] == [0.1, 0.5, 0.9, 1.0, "1, at the updated row"]
    assert [row["method"] for row in findings["iv"].rows] == [*TABLES, *OTHERS]
    assert all(row["runs"] == 2 and not row["diverged"] for finding in findings.values() for row in finding.rows)


def test_files_and_page(found, tmp_path, capsys):
    out, page = found[1], tmp_path / "ap.md"
    main(["reproduce", "ap", "--quick", "--seeds", "2", "--workers", "1", "--out", str(out), "--docs", str(page)])
    assert "has the best test AP" in capsys.readouterr().out
    with (tmp_path / "ap" / "iv-methods.csv").open() as file:
        assert {row["data"] for row in csv.DictReader(file)} == {"made"}
    for stem in ("i-split", "ii-batch", "iii-gamma", "iv-methods"):
        assert f"(ap/{stem}.svg)" in page.read_text()
        assert (tmp_path / "ap" / f"{stem}.svg").stat().st_size > 5_000

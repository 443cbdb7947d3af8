"""Settings in files: what is shipped, what a scale changes, and what a user may."""

import json

import pytest

from fcco.cli import main
from fcco_reproduce import Scale
from fcco_reproduce import _command as command
from fcco_reproduce._config import at_scale
from reproduce.squares import STUDY

SHIPPED = {
    "name": "squares",
    "steps": 10,
    "rate": 0.5,
    "tuning": {"lr": [0.1, 1.0], "seed": 3},
    "scales": {"quick": {"steps": 1, "tuning": {"lr": [0.1]}}},
}


def test_layers():
    assert at_scale(SHIPPED, None)["tuning"] == {"lr": [0.1, 1.0], "seed": 3}
    assert at_scale(SHIPPED, "quick") == {
        "name": "squares",
        "steps": 1,
        "rate": 0.5,
        "tuning": {"lr": [0.1], "seed": 3},
    }
    mine = {"name": "squares", "steps": 7, "scales": {"quick": {"tuning": {"lr": [5.0]}}}}
    assert at_scale(SHIPPED, None, mine)["steps"] == 7
    assert at_scale(SHIPPED, "quick", mine) | {"rate": 1} == {
        "name": "squares",
        "steps": 7,
        "rate": 1,
        "tuning": {"lr": [5.0], "seed": 3},
    }
    assert at_scale(SHIPPED, "quick", SHIPPED) == at_scale(SHIPPED, "quick")  # a copy changes nothing


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 3}, "the settings of squares have no 'step'; choose from name, steps, rate, tuning"),
        ({"tuning": {"lrs": [1.0]}}, "the settings of squares.tuning have no 'lrs'; choose from lr, seed"),
        ({"steps": 1.5}, "steps of squares must have the type of 10; got 1.5"),
        ({"steps": True}, "steps of squares must have the type of 10; got True"),
        ({"rate": "fast"}, "rate of squares must have the type of 0.5; got 'fast'"),
        ({"tuning": {"lr": []}}, r"lr of squares.tuning must have the type of \[0.1, 1.0\]; got \[\]"),
        ({"tuning": {"lr": ["a"]}}, "got \\['a'\\]"),
        ({"tuning": 3}, "tuning of squares must have the type of {.*}; got 3"),
        ({"name": "cubes"}, "name of squares must stay 'squares'; got 'cubes'"),
        ({"scales": {"quick": {"step": 3}}}, "the settings of squares have no 'step'"),
    ],
)
def test_what_is_not_there_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        at_scale(SHIPPED, "quick" if "scales" in changes else None, changes)


def test_a_whole_number_is_a_fraction():
    assert at_scale(SHIPPED, None, {"rate": 1, "tuning": {"lr": [1]}})["rate"] == 1


def test_no_such_scale():
    with pytest.raises(ValueError, match="the settings of squares have no scale 'paper'; choose from quick"):
        at_scale(SHIPPED, "paper")


@pytest.mark.parametrize("name", ["quick", "theory", "push", "nca"])
def test_every_study_has_a_quick_scale_that_is_smaller(name):
    study = command.load(name)
    full, quick = study.experiments(), study.experiments("quick")
    assert [experiment.key for experiment in full] == list(("i", "ii", "iii", "iv", "v", "vi")[: len(full)])
    for whole, part in zip(full, quick, strict=True):
        assert whole.settings != part.settings
        assert len(part.jobs(Scale(2))) <= len(whole.jobs(Scale(2)))
        json.dumps([job.settings for job in whole.jobs(Scale(2))])


@pytest.mark.parametrize("name", ["quick", "theory", "push", "nca"])
def test_seeds_reach_every_task_that_has_chance_in_it(name):
    for experiment in command.load(name).experiments("quick"):
        few, many = ({job.key for job in experiment.jobs(Scale(seeds))} for seeds in (2, 3))
        without_chance = {"minimum", "run_boosting", "run_exact", "descent"}
        jobs = experiment.jobs(Scale(2))
        assert len(few & many) == sum(job.function.__name__ in without_chance for job in jobs)


@pytest.fixture
def squares(monkeypatch):
    monkeypatch.setattr(command, "load", lambda name: STUDY)


def test_a_changed_copy(tmp_path, squares, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('name = "odd"\nfactor = 4.0\n')
    assert main(["reproduce", "quick", "--config", "mine.toml", "--workers", "1"]) == 0
    printed = capsys.readouterr().out
    assert "(ii) Squares are odd" in printed
    assert "(i)" not in printed
    assert "BSGD        1          0.202" in printed  # 2^2 / 4
    record = json.loads((tmp_path / "results" / "quick-mine" / "ii-odd.json").read_text())
    assert record["settings"]["factor"] == 4.0
    assert record["settings"]["numbers"] == [0, 1, 2, 3]
    assert record["run"]["command"] == "fcco reproduce quick --config mine.toml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "mine.toml cannot be read"),
        ("a = ", "mine.toml cannot be read"),
        ("factor = 4.0", 'mine.toml must name the experiment whose settings it changes, as in name = "ijcnn1"'),
        ('name = "even"', "the name in a --config file must be among small, odd; got 'even'"),
        (
            'name = "odd"\nfactors = 4.0',
            "the settings of odd have no 'factors'; choose from kind, key, name, claim, numbers",
        ),
    ],
)
def test_a_bad_file_is_refused_with_a_sentence(tmp_path, squares, capsys, text, message):
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit) as refused:
        main(["reproduce", "quick", "--config", str(path), "--out", str(tmp_path / "out")])
    assert refused.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

"""``fcco doctor`` and ``fcco completion``."""

import json
import subprocess
import sys

import pytest

from fcco_command import _completion, main
from fcco_command._doctor import Finding, _lines, examine


def found(section, name):
    return next(f for f in examine() if (f.section, f.name) == (section, name))


def test_the_report_names_versions_devices_and_data(capsys, monkeypatch, tmp_path):
    (tmp_path / "mnist").mkdir()
    monkeypatch.setenv("FCCO_DATA", str(tmp_path))
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for text in ("fcco", "torch", "threads", "compiled kernels", "downloads", "mnist", "scikit-learn"):
        assert text in printed


def test_json(capsys):
    assert main(["doctor", "--json"]) == 0
    assert {"section", "name", "value", "advice", "fatal"} == {*json.loads(capsys.readouterr().out)[0]}


def test_a_missing_folder_of_data_is_named(monkeypatch):
    monkeypatch.setenv("FCCO_DATA", "/no/such/folder")
    assert found("data", "FCCO_DATA").advice == "is not a folder: set it to one, or unset it to download data sets"


def test_a_torch_that_is_too_old_is_fatal(monkeypatch, capsys):
    monkeypatch.setattr("torch.__version__", "2.3.1")
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code == 1
    assert "fcco needs PyTorch 2.4 or newer: pip install -U torch" in capsys.readouterr().out


def test_a_missing_torch_is_fatal_and_no_traceback():
    code = "import sys; sys.modules['torch'] = None; from fcco_command import main; main(['doctor'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "pip install --force-reinstall torch" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_advice_stands_below_its_line():
    lines = [*_lines([Finding("caches", "kernels", "none", "do this")])]
    assert lines == ["caches", "  kernels  none", "!          do this"]


def test_completion_knows_commands_and_options():
    words = _completion.words()
    assert {"plan", "reproduce", "report", "doctor", "completion"} <= {*words[""]}
    assert "--epsilon" in words["plan"]
    assert {"push", "--docs"} <= {*words["reproduce"]}
    assert {"bash", "zsh", "fish"} <= {*words["completion"]}


@pytest.mark.parametrize(("typed", "offered"), [("re", {"reproduce", "report"}), ("plan --eps", {"--epsilon"})])
def test_bash_completes(typed, offered):
    words = ["fcco", *typed.split()]
    script = _completion.SCRIPTS["bash"](_completion.words())
    line = f"{script}\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _fcco; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} == offered

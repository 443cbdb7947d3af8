import json
import subprocess
import sys
from pathlib import Path

import pytest

import fcco
from fcco.cli import main
from fcco.theory import Constants, boost_constants, complexities, convexifier, projected, sox, sox_boost

SIZES = ["--n", "500", "--b1", "16", "--b2", "8", "--epsilon", "0.05"]
GIVEN = {"n": 500, "outer_batch": 16, "inner_batch": 8, "epsilon": 0.05}
CONSTANTS = Constants(c_f=1.0, l_f=0.25, c_g=1.0, l_g=1.0, sigma2=0.1, zeta2=1.0)


def test_json_holds_what_the_theorems_say(capsys):
    options = ["--l-f", "0.25", "--sigma2", "0.1", "--gap", "2", "--mu", "0.1", "--diameter", "3", "--radius", "4"]
    assert main(["plan", *SIZES, *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sox"] == vars(sox(CONSTANTS, gap=2.0, **GIVEN))
    assert found["sox_boost"]["stages"] == [vars(s) for s in sox_boost(CONSTANTS, gap=2.0, mu=0.1, **GIVEN)]
    assert found["projected"] == vars(projected(CONSTANTS, diameter=3.0, **GIVEN))
    assert found["strongly_convex"][0] == {"t": 0, "lr": 10.0, "gamma": pytest.approx(1 / (1 + 16 / 500))}
    assert found["boost_constants"] == vars(boost_constants(CONSTANTS, inner_batch=8))
    assert found["corollary"]["mu"] == convexifier(0.05, 4.0)
    assert [row["samples"] for row in found["table_1"]] == [e.samples for e in complexities(mu=0.1, **GIVEN)]


def test_without_a_command_the_commands_are_listed(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in ("plan", "reproduce", "report", "doctor", "completion"))


def test_the_table_names_every_method_and_what_is_missing(capsys):
    assert main(["plan", *SIZES]) == 0
    printed = capsys.readouterr().out
    for text in (
        "Theorem 3, SOX",
        "BSGD",
        "SOAP",
        "MOAP",
        "NASA",
        "SOX-boost",
        "give --mu",
        "give --diameter",
        "C_1 = ",
        "C_5 = ",
    ):
        assert text in printed
    assert "Theorem 4, SOX-boost" not in printed
    assert max(map(len, printed.splitlines())) <= 130


def test_a_mu_above_the_smoothness_is_one_of_the_regulariser(capsys):
    """Theorem 4 speaks of F, whose mu is L_F = 2 at most; Theorem 7 of a regulariser."""
    assert main(["plan", *SIZES, "--mu", "5"]) == 0
    printed = capsys.readouterr().out
    assert "Theorem 4 does not apply: mu of F cannot exceed L_F = 2." in printed
    assert "Theorem 7, at step 0" in printed
    assert "Theorem 4, SOX-boost" not in printed


def test_theorems_that_do_not_cover_a_stochastic_f_are_named(capsys):
    assert main(["plan", *SIZES, "--chi2", "1", "--b3", "4", "--mu", "0.1"]) == 0
    printed = capsys.readouterr().out
    assert "Theorems 4, 5 and 7 and the corollary do not cover a stochastic f (chi2 > 0)." in printed
    assert "To include" not in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "0"], "fcco plan: epsilon must be positive and finite; got 0.0\n"),
        (["--b1", "501"], "fcco plan: --b1 must not exceed n = 500; got 501\n"),
        (["--b2", "0"], "fcco plan: --b2 must be at least 1; got 0\n"),
        (["--sigma2", "-1"], "fcco plan: sigma2 must be finite and not negative; got -1.0\n"),
        (["--mu", "-1"], "fcco plan: mu must be positive and finite; got -1.0\n"),
        (["--epsilon", "1e-200"], "epsilon is too small\n"),
        (["--c-f", "1e200"], "epsilon or a constant is too small or too large\n"),
        (["--c-g", "1e200"], "epsilon or a constant is too small or too large\n"),
        (["--epsilon", "1e300"], "epsilon or a constant is too small or too large\n"),
        (["--n", "2.5"], "invalid int value: '2.5'\n"),
        (["--b3", "4"], "stochastic f_i: give its variance too, as --chi2\n"),
        (["--c-r", "1", "--mu", "1"], "Theorem 7: give --mu and --diameter too\n"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(capsys, options, message):
    with pytest.raises(SystemExit) as refused:
        main(["plan", *SIZES, *options])
    assert refused.value.code == 2
    assert capsys.readouterr().err.endswith(message)


@pytest.mark.parametrize("arguments", [["unknown"], ["plan"]])
def test_an_incomplete_command(capsys, arguments):
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert "usage: fcco" in capsys.readouterr().err


def test_help_has_examples_that_run(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    examples = [words[1:] for words in lines if words[:2] == ["fcco", "plan"]]
    assert len(examples) == 3
    for example in examples:
        assert main(example) == 0


# Importing torch takes most of the time of a command. A fork of one process runs each code; it has imported torch, and
# nothing of this library.
FORKING = """
import json, os, sys, torch
for name, code in json.load(sys.stdin).items():
    if os.fork() == 0:
        for number, stream in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}.{stream}", os.O_CREAT | os.O_WRONLY), number)
        exec(code, {"__name__": "__main__"})
        sys.exit()
    print(name, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
WITHOUT_EXTRAS = """
import sys
assert not any(name.startswith("fcco") for name in sys.modules)
for name in {packages}:
    sys.modules[name] = None
from fcco.cli import main
sys.exit(main({arguments}))
"""
EXTRAS = ["h5py", "markdown_it", "matplotlib", "numba", "PIL", "pooch", "scipy", "sklearn", "threadpoolctl", "tqdm"]
CODES = {
    "module": "import runpy, sys; sys.argv[1:] = ['--version']; runpy.run_module('fcco', run_name='__main__')",
    "library": "import sys, fcco, fcco.cli, fcco.estimators; print('fcco_reproduce' in sys.modules)",
    "extras": WITHOUT_EXTRAS.format(packages=EXTRAS, arguments=["plan", *SIZES]),
    "reproduce": WITHOUT_EXTRAS.format(packages=["matplotlib"], arguments=["reproduce", "quick"]),
    "laboratory": WITHOUT_EXTRAS.format(packages=["fcco_reproduce"], arguments=["report"]),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Of every code: its exit code, and what it wrote."""
    folder = tmp_path_factory.mktemp("ran")
    done = subprocess.run(
        [sys.executable, "-c", FORKING], cwd=folder, input=json.dumps(CODES), capture_output=True, text=True, check=True
    )
    codes = dict(line.split() for line in done.stdout.splitlines())
    return {
        name: (int(codes[name]), Path(folder, f"{name}.out").read_text(), Path(folder, f"{name}.err").read_text())
        for name in CODES
    }


def test_it_is_a_module_too(ran):
    assert ran["module"] == (0, f"fcco {fcco.__version__}\n", "")


def test_the_library_does_not_import_the_laboratory(ran):
    assert ran["library"][1] == "False\n"
    sources = sorted(Path(fcco.__file__).parent.rglob("*.py"))
    assert [path.name for path in sources if "import fcco_reproduce" in path.read_text()] == []
    assert [path.name for path in sources if "from fcco_reproduce" in path.read_text()] == []


def test_plan_needs_no_extra(ran):
    code, _, errors = ran["extras"]
    assert (code, errors) == (0, "")


def test_reproduce_names_its_extra_in_one_sentence(ran):
    code, _, errors = ran["reproduce"]
    assert code == 2
    assert errors == "fcco reproduce: experiments need matplotlib: pip install 'fcco[reproduce]'\n"


def test_without_the_laboratory_only_plan_is_left(ran):
    code, _, errors = ran["laboratory"]
    assert code == 2
    assert "invalid choice: 'report'" in errors

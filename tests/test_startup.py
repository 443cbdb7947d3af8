"""What importing the library and asking the command for help import."""

import subprocess
import sys

import pytest


def printed(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_library_adds_nothing_to_importing_torch():
    """Except for its own modules: above all not the compiler, which takes as long as torch itself, and no extra."""
    code = "import sys, torch; before = {*sys.modules}; import fcco; print(*{*sys.modules} - before)"
    added = {name.split(".")[0] for name in printed(code).split()}
    assert added - {"numpy"} == {"fcco"}


def test_what_is_imported_later_is_there():
    code = """
import fcco
assert {*fcco.__all__} <= {*dir(fcco)}
assert fcco.solve is fcco.solvers.solve and fcco.theory.sox and fcco.projections.project_ball
from fcco import *
print(diagnostics.__name__, solve.__name__)
"""
    assert printed(code) == "fcco.diagnostics solve\n"


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_command_answers_without_torch(option):
    code = f"""
import atexit, sys, fcco_command
atexit.register(lambda: print(*({{"fcco", "torch", "numpy"}} & {{*sys.modules}}), "imported"))
fcco_command.main(["{option}"])
"""
    assert printed(code).splitlines()[-1].split() == ["imported"]

"""The commands ``fcco reproduce`` and ``fcco report``, which :mod:`fcco.cli` registers.

Importing this module needs no extra: a command checks for the packages that it needs when it runs.
"""

from fcco_reproduce import _command, _report

COMMANDS = (_command, _report)

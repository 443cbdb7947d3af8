"""The command ``fcco`` as a function. It is in :mod:`fcco_command`, which can be imported without PyTorch."""

from fcco_command import main

__all__ = ["main"]

"""Without the library that it is for, an integration says what to install."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(("module", "parts"), [("lightning", ["pytorch"]), ("skorch", ["dataset"])])
def test_the_extra_is_named(module, parts, monkeypatch):
    for name in (module, *(f"{module}.{part}" for part in parts)):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"fcco.integrations.{module}", raising=False)
    with pytest.raises(ImportError) as refused:
        importlib.import_module(f"fcco.integrations.{module}")
    library = module.replace("lightning", "Lightning")
    assert str(refused.value) == f"fcco.integrations.{module} needs {library}: pip install 'fcco[ecosystem]'"

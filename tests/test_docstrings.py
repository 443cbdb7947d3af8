"""Docstrings of public names follow numpydoc: they name all parameters, and say what is returned."""

import importlib
import inspect
import re

import pytest

from test_site import OUTSIDE, public_names


def documented(module):
    """Yield the public classes and functions of a module, and the methods that this project defines, with names."""
    for full in public_names(module):
        place, _, name = full.rpartition(".")
        member = getattr(importlib.import_module(place), name)
        if inspect.isclass(member) or inspect.isfunction(member):
            yield full, member
        if inspect.isclass(member):
            ours = [vars(base) for base in member.__mro__ if base.__module__.startswith("fcco")]
            for key in sorted({key for base in ours for key in base if not key.startswith("_")}):
                method = inspect.unwrap(getattr(member, key))
                if isinstance(method, property) or inspect.isroutine(method):
                    yield f"{full}.{key}", method


def sections(docstring):
    """Return the text under every heading of a docstring, and that before the first one as ``Summary``."""
    parts = re.split(r"^(\w[\w ]*)\n-+$", f"Summary\n-------\n{docstring}", flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def parameters(member):
    """Return the parameters of a signature as a docstring names them; None if another library gives the signature."""
    if isinstance(member, property) or getattr(member, "_is_protocol", False):
        return None
    try:
        given = [*inspect.signature(member).parameters.values()]
    except ValueError:  # of an exception that only has a name
        return None
    return [str(each.replace(annotation=each.empty, default=each.empty)) for each in given if each.name != "self"]


def faults(member):
    """Yield what is wrong with a docstring."""
    text = sections(inspect.getdoc(member) or "")
    first = text["Summary"].strip().split("\n\n")[0]
    if isinstance(member, property) and not first:  # the class has it among its attributes
        return
    if not re.fullmatch(r"[^\n]+\.", first) or re.search(r"\. [A-Z]", first):
        yield f"not one sentence in one line: {first!r}"
    if getattr(member, "__module__", None) == "fcco.core.objective":  # short methods, of which annotations say the rest
        return
    expected = parameters(member)
    # A class of fields may list them as attributes.
    heads = re.findall(r"^(\S.*?)(?: :.*)?$", text.get("Parameters", text.get("Attributes", "")), flags=re.MULTILINE)
    named = [name for head in heads for name in head.split(", ")]
    if expected is not None:
        passed_on = any(name.startswith("**") for name in expected)  # and may be named one by one
        if missing := [name for name in expected if name not in named]:
            yield f"without parameters: {missing}"
        if "Parameters" in text and not passed_on and (unknown := [name for name in named if name not in expected]):
            yield f"unknown parameters: {unknown}"
    if inspect.isroutine(member) and not {"Returns", "Yields"} & {*text}:
        returned = inspect.signature(member).return_annotation
        if returned not in (None, "None"):
            yield f"does not say what is returned: {returned}"


@pytest.mark.parametrize("module", ["fcco", *OUTSIDE])
def test_docstrings_follow_numpydoc(module):
    pytest.importorskip(module, exc_type=ImportError)
    found = {name: wrong for name, member in documented(module) if (wrong := [*faults(member)])}
    assert not found, "\n".join(f"{name}: {'; '.join(wrong)}" for name, wrong in found.items())

"""Keys of results: they cover the code that a job leads to, and no other."""

import importlib
import sys

import pytest

import fcco
import fcco_reproduce
from fcco_reproduce import Job, Scale, _digest
from fcco_reproduce.quick import STUDY

LIBRARY = {
    "__init__.py": "from made.kernels import step\n",
    "kernels.py": (
        '# how\nRATE = 0.1\n\n\ndef step(x):\n    """One."""\n'
        '    if x > 9:\n        raise OverflowError(f"{shown(x)}!")\n'
        "    if x < 0:\n        raise StopIteration(x)\n    return x * RATE\n\n\n"
        "def shown(x):\n    return str(x)\n\n\ndef other(x):\n    return x\n"
    ),
    "figures.py": "def draw(x):\n    return x\n",
    "study.py": (
        "from made import figures, step\n\nTEXT = 'a'\n\n\ndef run(x):\n    from made import kernels\n\n"
        "    return step(kernels.step(x))\n\n\ndef show(x):\n    return figures.draw(x), TEXT\n"
    ),
}


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("study.py", "step(kernels", "2 * step(kernels", True),
        ("kernels.py", "x * RATE", "x + RATE", True),
        ("kernels.py", "RATE = 0.1", "RATE = 0.2", True),
        ("kernels.py", "# how", "REGISTRY = {}\nREGISTRY['a'] = 1", True),
        ("kernels.py", "    return x\n", "    return -x\n", False),
        ("kernels.py", "# how", "# that is how", False),
        ("kernels.py", '"""One."""', '"""A step."""', False),
        ("kernels.py", "{shown(x)}!", "{shown(x)} is too large", False),
        ("kernels.py", "return str(x)", "return repr(x)", False),
        ("kernels.py", "StopIteration(x)", "StopIteration(-x)", True),
        ("kernels.py", "OverflowError", "ValueError", True),
        ("figures.py", "return x", "return -x", False),
        ("study.py", "TEXT = 'a'", "TEXT = 'b'", False),
        ("study.py", "def show(x):", "def show(x, y=1):", False),
    ],
)
def test_a_key_covers_the_code_that_is_called_and_no_other(key_of, file, old, new, changes):
    before = {f"made/{name}": text for name, text in LIBRARY.items()}
    assert (key_of(before) != key_of({**before, f"made/{file}": LIBRARY[file].replace(old, new)})) == changes


@pytest.fixture
def key_of(tmp_path, monkeypatch):
    """The key of ``made.study.run``, in packages that are made of texts."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(_digest, "LIBRARIES", ("library",))

    def key_of(texts):
        at = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in texts.items():
            (at / name).parent.mkdir(parents=True, exist_ok=True)
            (at / name).write_text(text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(at)
            key = Job(importlib.import_module("made.study").run, {"x": 1}).key
        for name in [name for name in sys.modules if name.split(".")[0] in ("made", "library", "laboratory")]:
            del sys.modules[name]
        return key

    return key_of


@pytest.mark.parametrize(
    "study",
    [
        "from library.helper import helper\ndef run(x):\n    return helper(x)\n",
        "from library import helper\ndef run(x):\n    return helper.helper(x)\n",
        "import library.helper\ndef run(x):\n    return library.helper.helper(x)\n",
        "import library.helper as h\ndef run(x):\n    return h.helper(x)\n",
        "def run(x):\n    from library.helper import helper\n    return helper(x)\n",
        "def run(x):\n    from library import helper as h\n    return h.helper(x)\n",
        "def run(x):\n    import library.helper\n    return library.helper.helper(x)\n",
        "def run(x):\n    import library.helper as h\n    return h.helper(x)\n",
        "def run(x):\n    if x:\n        from library.helper import helper\n        return helper(x)\n",
        "try:\n    from library.helper import helper\nexcept ImportError:\n    from library.other import helper\n"
        "def run(x):\n    return helper(x)\n",
        "try:\n    from library.other import helper\nexcept ImportError:\n    from library.helper import helper\n"
        "def run(x):\n    return helper(x)\n",
        "try:\n    from library.helper import helper\nexcept ImportError:\n    helper = None\n"
        "def run(x):\n    return helper(x)\n",
        "from library.helper import helper\n@helper\ndef run(x):\n    return x\n",
        "from library.helper import helper\ndef run(x, y=helper):\n    return y(x)\n",
        "from library.helper import helper\nHOW = {'a': helper}\ndef run(x):\n    return HOW['a'](x)\n",
        "from library.helper import helper\nclass How:\n    def do(self, x):\n        return helper(x)\n"
        "def run(x):\n    return How().do(x)\n",
        "from library.helper import helper\nHOW = []\nHOW.append(helper)\ndef run(x):\n    return HOW[0](x)\n",
        "from made.inside import through\ndef run(x):\n    return through(x)\n",
        "from .inside import through\ndef run(x):\n    return through(x)\n",
        "def run(x):\n    from . import inside\n    return inside.through(x)\n",
    ],
)
def test_a_key_covers_the_library_in_whichever_way_it_is_imported(key_of, study):
    texts = {"made/__init__.py": "", "library/__init__.py": "", "made/study.py": study}
    texts |= {f"library/{name}.py": "def helper(f):\n    return f\n" for name in ("helper", "other")}
    texts["made/inside.py"] = "from library.helper import helper\ndef through(x):\n    return helper(x)\n"
    changed = {**texts, "library/helper.py": "def helper(f):\n    return (f)\n\n\ndef unused():\n    pass\n"}
    whole = "library.helper.helper" in study  # of a module by its full name, all counts
    assert (key_of(texts) == key_of(changed)) != whole
    assert key_of(texts) != key_of({**texts, "library/helper.py": "def helper(f):\n    return f or f\n"})


def test_the_libraries_are_these():
    assert (fcco.__name__, fcco_reproduce.__name__) == _digest.LIBRARIES


def test_the_key_of_a_study_covers_both_packages():
    """A job of the quick study leads from ``fcco_reproduce`` to the engine in ``fcco``."""
    trail = _digest._Trail(set(_digest.LIBRARIES))
    for job in STUDY.experiments("quick")[0].jobs(Scale(1, "quick")):
        trail.follow(job.function.__module__, job.function.__qualname__)
    followed = {module for module, _ in trail.seen}
    assert {"fcco.losses.loss", "fcco.core.step", "fcco._table", "fcco_reproduce.quick._objectives"} <= followed


def test_the_key_of_work_outside_covers_both_packages(key_of, monkeypatch):
    """Benchmarks are in neither package, and use both."""
    monkeypatch.setattr(_digest, "LIBRARIES", ("library", "laboratory"))
    run = "from library.a import a\nfrom laboratory.b import b\ndef run(x):\n    return a(b(x))\n"
    texts = {f"{package}/__init__.py": "" for package in ("made", "library", "laboratory")}
    texts |= {"made/study.py": run, "library/a.py": "def a(x):\n    return x\n"}
    texts["laboratory/b.py"] = "def b(x):\n    return x\n"
    for file in ("library/a.py", "laboratory/b.py"):
        assert key_of(texts) != key_of({**texts, file: texts[file].replace("return x", "return -x")})


def test_modules_and_what_they_lead_to(monkeypatch, tmp_path):
    """Through two imports, in a package and beside the script; what is not used elsewhere does not count."""
    texts = {"script.py": "import os\nimport near\n\n\ndef main():\n    return near.VALUE\n"}
    texts |= {"near.py": "from library.far import VALUE\n", "library/__init__.py": ""}
    texts |= {"library/far.py": "VALUE = 1\nOTHER = 1\n", "library/other.py": "VALUE = 1\n"}
    monkeypatch.setattr(_digest, "LIBRARIES", ("library",))

    def found(**changes):
        at = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in {**texts, **changes}.items():
            (at / name).parent.mkdir(parents=True, exist_ok=True)
            (at / name).write_text(text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(at)
            digest = _digest.digest_modules(["script"], ("near",))
        for name in [name for name in sys.modules if name.split(".")[0] in ("script", "near", "library")]:
            del sys.modules[name]
        return digest

    before = found()
    assert found(**{"library/far.py": '"""Says."""\nVALUE = 1  # one\nOTHER = 2\n'}) == before
    assert found(**{"library/other.py": "VALUE = 2\n"}) == before
    assert found(**{"library/far.py": "VALUE = 2\nOTHER = 1\n"}) != before
    assert found(**{"script.py": texts["script.py"] + "\n\ndef by_name():\n    return 2\n"}) != before

"""The Python blocks and the shell commands of a Markdown page.

What a page shows is between ```python and ```. What it needs to run, and does not show, is in a comment that begins
with ``<!--python`` on a line of its own and ends with ``-->``.
"""

import re
import shlex

BLOCK = re.compile(r"^```python\n(.*?)^```$|^<!--python\n(.*?)^-->$", flags=re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"(?<=\n\n)(?: {4}.*\n)+|^```(?:sh|bash|console|shell)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:make|python|pip|fcco) \S.*")


def snippets(page):
    """Return the blocks of a page in their order, as pairs of the line of the page where each begins and its code."""
    text = page.read_text()
    return [
        (text.count("\n", 0, found.start()) + 2, found.group(1) or found.group(2)) for found in BLOCK.finditer(text)
    ]


def run(page, namespace):
    """Run the blocks in order. They share their names, as in a reader's session, and errors name the page's lines."""
    for line, code in snippets(page):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)


def commands(page):
    """Return the words of every shell command of a page, be it in a block or in a sentence."""
    text = BLOCK.sub("", page.read_text())
    blocks = [line for found in SHELL.finditer(text) for line in found.group().replace("\\\n", " ").splitlines()]
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]
    shown = [line.strip().removeprefix("$ ") for line in [*blocks, *inline]]
    return [shlex.split(line, comments=True) for line in dict.fromkeys(shown) if COMMAND.fullmatch(line)]

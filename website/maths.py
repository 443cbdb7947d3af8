"""Formulas in Markdown, written as ``$...$`` in a line and ``$$...$$`` on their own, become MathML.

MathML needs neither a script nor a font of its own, so that the pages load nothing.
"""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, fromstring, register_namespace

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

NAMESPACE = "http://www.w3.org/1998/Math/MathML"
register_namespace("", NAMESPACE)

LIMITS = {"msub": "munder", "msup": "mover", "msubsup": "munderover"}
LARGE = {"\N{N-ARY SUMMATION}", "\N{N-ARY PRODUCT}", "max", "min"}
WORDS = {"log", "exp", "max", "min", "mean"}

# No space inside the dollars, and no digit after them, so that prices stay as they are.
INLINE = r"(?<![\\$])\$(?![\s$])([^$\n]*?[^\s\\$])\$(?!\d)"
# What the converter does not know, or does not escape, in words that it does.
SYNONYMS = {
    r"\Bigl": r"\left",
    r"\Bigr": r"\right",
    r"\bigl": r"\left",
    r"\bigr": r"\right",
    "<": r"\lt ",
    ">": r"\gt ",
}


def as_mathml(latex: str, display: str) -> Element:
    """Return a formula as an element of MathML; its source stays in ``alttext`` for those who do not see it."""
    for known, other in SYNONYMS.items():
        latex = latex.replace(known, other)
    if "&" in latex and r"\begin" not in latex:  # as Sphinx has it
        latex = rf"\begin{{split}}{latex}\end{{split}}"
    element = fromstring(convert(latex, display=display))
    for part in element.iter():
        part.tag = part.tag.removeprefix(f"{{{NAMESPACE}}}")
        # Within brackets and fractions the converter forgets that limits stand below and above.
        if display == "block" and part.tag in LIMITS and part[0].text in LARGE:
            part.tag = LIMITS[part.tag]
        if part.tag == "mi" and part.text in WORDS:  # with space around it, like an operator
            part.tag = "mo"
            part.attrib.update(form="prefix", lspace="0.17em", rspace="0.17em")
    element.set("alttext", latex)
    return element


class _Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Element, int, int]:  # noqa: N802
        return as_mathml(m.group(1), "inline"), m.start(0), m.end(0)


class _Display(BlockProcessor):
    def test(self, parent: Element, block: str) -> bool:
        return block.startswith("$$") and block.rstrip().endswith("$$")

    def run(self, parent: Element, blocks: list[str]) -> None:
        frame = Element("div", {"class": "formula"})
        frame.append(as_mathml(" ".join(blocks.pop(0).strip().strip("$").split()), "block"))
        parent.append(frame)


class Maths(Extension):
    """The extension that a Markdown converter is given."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register both kinds of formulas, before backslashes and underscores are read as Markdown."""
        md.inlinePatterns.register(_Inline(INLINE, md), "formula", 185)
        md.parser.blockprocessors.register(_Display(md.parser), "formula", 175)

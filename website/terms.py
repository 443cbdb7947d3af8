"""Terms of the glossary, explained where the mouse rests on them."""

from __future__ import annotations

import re
from pathlib import Path

GLOSSARY = Path(__file__).parent.parent / "docs/glossary.md"
ENTRY = re.compile(r"^(\*\*.+)\n:   ((?:.+\n)+)", flags=re.MULTILINE)
# Pages whose tables name methods; elsewhere the text says what they are.
STUDIES = ("results", "push", "nca", "ap", "theory")
BENCHMARKS = ("benchmarks", "defaults", "memory", "top_of_list", "what_decides")
RESULTS = {f"{name}.md" for name in (*STUDIES, *BENCHMARKS)}
# These stand for too many other things, or are in every sentence.
PLAIN = {"row", "rule", "even", "pass", "table", "memory", "population", "beta", "gamma", "noise", "drift"}


def definitions() -> dict[str, str]:
    """Return the first sentence of each entry, by its terms."""
    found = {}
    for names, text in ENTRY.findall(GLOSSARY.read_text()):
        words = re.sub(r"\$([^$]+)\$|[`*]|\[([^\]]+)\]\([^)]+\)", lambda m: m[1] or m[2] or "", " ".join(text.split()))
        sentence = re.match(r".+?[.](?= |$)", words)
        for name in re.findall(r"\*\*(.+?)\*\*", names):
            found[name] = sentence[0] if sentence else words
    return found


def abbreviations(place: str) -> str:
    """Return lines that Markdown reads as explanations, for every page except the glossary and the reference."""
    if place == "glossary.md" or place.startswith("reference/"):
        return ""
    lines = []
    for name, text in definitions().items():
        if name not in PLAIN and (place in RESULTS or not name.isupper()):
            lines += [f"*[{form}]: {text}" for form in (name, f"{name}s", f"{name}es")]
    return "\n\n" + "\n".join(lines) + "\n"

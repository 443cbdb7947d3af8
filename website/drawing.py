"""Shapes and text as SVG, in a figure that stands in the page and takes its colours from the page's style sheet."""

from __future__ import annotations

from html import escape


def text(x: float, y: float, words: str, *, anchor: str = "start", size: float = 12, kind: str = "") -> str:
    """Return one line of text."""
    style = f'text-anchor="{anchor}" font-size="{size:g}" class="{kind}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "line", *, end: str = "") -> str:
    """Return a line, with an arrow head if ``end`` names a marker."""
    marker = f' marker-end="url(#{end})"' if end else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"{marker}/>'


def link(target: str, part: str) -> str:
    """Return a part that leads to another page."""
    return f'<a href="{target}">{part}</a>'


def rectangle(x: float, y: float, width: float, height: float, kind: str, *, radius: float = 6) -> str:
    """Return a rectangle with round corners."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}" class="{kind}"/>'


def marker(x: float, y: float, shape: str, kind: str, *, size: float = 4.5) -> str:
    """Return a circle, a square or a triangle around a point."""
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" class="{kind}"/>'
    if shape == "square":
        return rectangle(x - size + 0.5, y - size + 0.5, 2 * size - 1, 2 * size - 1, kind, radius=0)
    points = f"{x:.1f},{y - size:.1f} {x - size:.1f},{y + size - 1:.1f} {x + size:.1f},{y + size - 1:.1f}"
    return f'<polygon points="{points}" class="{kind}"/>'


def arrow_head(name: str) -> str:
    """Return the definition of an arrow head."""
    return (
        f'<defs><marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" class="faint"/></marker></defs>'
    )


COLOURS = (
    "text{fill:#222}.faint{fill:#666}.axis{stroke:#666;fill:none}.box{fill:#eee;stroke:#888}"
    ".ours{fill:#009485;stroke:#009485}.elsewhere{fill:none;stroke:#888;stroke-dasharray:4 3}"
)


def file(parts: list[str], width: float, height: float, *, alt: str) -> str:
    """Return an SVG with colours of its own, which can be seen outside of the site too."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="sans-serif"><title>{escape(alt)}</title><style>{COLOURS}</style>'
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>{"".join(parts)}</svg>\n'
    )


def figure(parts: list[str], width: float, height: float, *, alt: str, caption: str = "") -> str:
    """Return an SVG of these parts as a figure. ``alt`` says in words what it shows."""
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return (
        f'<figure class="chart"><svg role="img" aria-label="{escape(alt)}" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}"><title>{escape(alt)}</title>{"".join(parts)}</svg>{below}</figure>'
    )

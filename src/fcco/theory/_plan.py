"""The command ``fcco plan``: what the theorems prescribe and guarantee for given sizes and constants."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from typing import Any

from fcco.theory import (
    REGIMES,
    Constants,
    Parameters,
    boost_constants,
    complexities,
    convexifier,
    projected,
    sox,
    sox_boost,
    split_batch,
    strongly_convex,
    strongly_convex_steps,
)

EXAMPLES = """examples:
  fcco plan --n 10000 --b1 32 --b2 32 --epsilon 0.1
  fcco plan --n 500 --b1 16 --b2 16 --epsilon 0.05 --l-f 0.25 --sigma2 0.1 --mu 0.1 --diameter 2
  fcco plan --n 500 --b1 16 --b2 16 --epsilon 0.05 --json
"""
_CONSTANTS = {
    "c_f": "C_f: f_i is C_f-Lipschitz",
    "l_f": "L_f: the gradient of f_i is L_f-Lipschitz",
    "c_g": "C_g: g_i is C_g-Lipschitz",
    "l_g": "L_g: the gradient of g_i is L_g-Lipschitz",
    "sigma2": "variance of one inner sample's value",
    "zeta2": "variance of one inner sample's gradient",
    "chi2": "variance of the gradient of one sample of f_i, if f_i is stochastic",
}
_OPTIONAL = {"mu": "Theorems 4 and 7", "radius": "the corollary", "diameter": "Theorem 5 and the steps of Theorem 7"}
_SYMBOLS = {"c_1": "C_1", "c_2_squared": "C_2^2", "c_3_squared": "C_3^2", "c_4": "C_4", "c_5": "C_5"}


def define(parser: argparse.ArgumentParser) -> None:
    """Give the parser of the command its description and options."""
    parser.description = (
        "Print the parameters that each theorem prescribes, and the paper's Table 1, for given sizes. Constants that "
        "are not given are set to 1, which only shows the form of the result: fcco.theory.estimate_constants measures "
        "them for a problem."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("--n", type=int, required=True, help="number of rows, that is, of outer examples")
    parser.add_argument("--b1", type=int, required=True, help="B1, the outer batch size")
    parser.add_argument("--b2", type=int, required=True, help="B2, the inner batch size for each outer example")
    parser.add_argument("--epsilon", type=float, required=True, help="accuracy to reach")
    for name, meaning in _CONSTANTS.items():
        default = 0.0 if name == "chi2" else 1.0
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=float, default=default, help=f"{meaning} (default: {default:g})"
        )
    parser.add_argument("--b3", type=int, default=1, help="B3, the samples of a stochastic f_i (default: 1)")
    parser.add_argument("--gap", type=float, default=1.0, help="F(w_1) - F* (default: 1)")
    parser.add_argument("--mu", type=float, help="modulus of strong convexity, for Theorems 4 and 7")
    parser.add_argument("--radius", type=float, help="bound on the norm of an optimum, for the corollary on convex F")
    parser.add_argument("--diameter", type=float, help="diameter of the set, for Theorems 5 and 7")
    parser.add_argument("--c-r", type=float, help="Lipschitz constant of R (default: mu times the diameter)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> str:
    """Return what the command prints.

    Raises
    ------
    ValueError
        If an argument is outside the range of the theorems.
    """
    _check_used(args)
    try:
        found = plan(args)
    except ValueError as refused:
        raise ValueError(str(refused).replace("outer_batch", "--b1").replace("inner_batch", "--b2")) from refused
    return json.dumps(found, indent=2) if args.json else "\n".join(_lines(args, found))


def _check_used(args: argparse.Namespace) -> None:
    """Refuse an option that would have no effect."""
    if args.b3 != 1 and args.chi2 == 0:
        raise ValueError("--b3 is the number of samples of a stochastic f_i: give its variance too, as --chi2")
    if args.c_r is not None and (args.mu is None or args.diameter is None):
        raise ValueError("--c-r is for the steps of Theorem 7: give --mu and --diameter too")


def plan(args: argparse.Namespace) -> dict[str, Any]:
    """Return all numbers of the plan, under the names that ``--json`` prints."""
    constants = Constants(**{name: getattr(args, name) for name in _CONSTANTS})
    sizes: dict[str, Any] = {"n": args.n, "outer_batch": args.b1, "inner_batch": args.b2, "epsilon": args.epsilon}
    found: dict[str, Any] = {"constants": asdict(constants), "smoothness": constants.smoothness}
    found["sox"] = asdict(sox(constants, gap=args.gap, outer_samples=args.b3, **sizes))
    target = {"epsilon": args.epsilon, "gap": args.gap, "outer_samples": args.b3}
    best = split_batch(args.b1 + args.b2, n=args.n, constants=constants, **target)
    found["best_split"] = dict(zip(("outer_batch", "inner_batch"), best, strict=True))
    found["table_1"] = [{**asdict(entry), "samples": entry.samples} for entry in complexities(mu=args.mu, **sizes)]
    if constants.chi2 == 0:
        found.update(_exact_outer(args, constants, sizes))
    return found


def _exact_outer(args: argparse.Namespace, constants: Constants, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of the theorems that do not cover a stochastic f."""
    found: dict[str, Any] = {"boost_constants": asdict(boost_constants(constants, inner_batch=args.b2))}
    if args.mu is not None and args.mu <= constants.smoothness:
        found["sox_boost"] = _stages(sox_boost(constants, gap=args.gap, mu=args.mu, **sizes))
    if args.radius is not None:
        mu = convexifier(args.epsilon, args.radius)
        # If the start is no longer than the radius, mu/2 |w_1|^2 adds at most epsilon to the gap.
        stages = sox_boost(constants, gap=args.gap + args.epsilon, mu=mu, weight_decay=mu, **sizes)
        found["corollary"] = {"mu": mu, **_stages(stages)}
    if args.diameter is not None:
        found["projected"] = asdict(projected(constants, diameter=args.diameter, **sizes))
    if args.mu is not None:
        schedule = strongly_convex(n=args.n, outer_batch=args.b1, mu=args.mu)
        at = (0, 10, 100, 1000)
        found["strongly_convex"] = [{"t": t, "lr": schedule.lr(t), "gamma": schedule.gamma(t)} for t in at]
    if args.mu is not None and args.diameter is not None:
        c_r = args.mu * args.diameter if args.c_r is None else args.c_r
        found["strongly_convex_steps"] = strongly_convex_steps(
            constants, mu=args.mu, c_r=c_r, diameter=args.diameter, **sizes
        )
    return found


def _stages(stages: tuple[Parameters, ...]) -> dict[str, Any]:
    return {"steps": sum(stage.steps for stage in stages), "stages": [asdict(stage) for stage in stages]}


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    cells = [list(header), *([_number(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _lines(args: argparse.Namespace, found: dict[str, Any]) -> Iterator[str]:
    yield f"n = {args.n:,}, B1 = {args.b1:,}, B2 = {args.b2:,}, epsilon = {args.epsilon:g}, gap = {args.gap:g}"
    yield ", ".join(f"{name} = {value:g}" for name, value in found["constants"].items())
    yield f"L_F = {found['smoothness']:g}"
    if "boost_constants" in found:
        yield ", ".join(f"{_SYMBOLS[name]} = {value:g}" for name, value in found["boost_constants"].items())
    yield ""
    yield "Parameters"
    names = [field.name for field in fields(Parameters)]
    yield from _table(["", *names], ([label, *(row[name] for name in names)] for label, row in _parameters(found)))
    yield from _remarks(args, found)
    yield ""
    yield "Complexity up to constants (Table 1)"
    columns = ("method", "regime", "formula", "iterations", "samples_per_step", "samples", "speedup")
    header = ("method", "for", "iterations ~", "number", "samples per step", "samples", "speed-up with batch")
    yield from _table(header, ([entry[column] for column in columns] for entry in found["table_1"]))
    yield from (f"  {regime}: {meaning}" for regime, meaning in REGIMES.items())
    yield from (f"  {e['method']}, {e['regime']}: {e['note']}" for e in found["table_1"] if e["note"])


def _parameters(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a label and the parameters of every theorem that applies."""
    yield "Theorem 3, SOX", found["sox"]
    for key, label in {"sox_boost": "Theorem 4, SOX-boost", "corollary": "Corollary, SOX-boost"}.items():
        for k, stage in enumerate(found.get(key, {}).get("stages", ()), start=1):
            yield f"{label}, stage {k}", stage
    if "projected" in found:
        yield "Theorem 5, projected SOX", found["projected"]
    for step in found.get("strongly_convex", ()):
        yield f"Theorem 7, at step {step['t']}", {"beta": 1.0, "steps": None, **step}


def _remarks(args: argparse.Namespace, found: dict[str, Any]) -> Iterator[str]:
    budget, split = args.b1 + args.b2, found["best_split"]
    yield f"  Best split of {budget:,} by Theorem 3: B1 = {split['outer_batch']:,}, B2 = {split['inner_batch']:,}."
    for key, label in {"sox_boost": "Theorem 4", "corollary": "Corollary"}.items():
        if key in found:
            yield f"  {label}: {found[key]['steps']:,} steps in total."
    if args.mu is not None and args.chi2 == 0 and "sox_boost" not in found:
        limit = f"{found['smoothness']:g}"
        yield f"  Theorem 4 does not apply: mu of F cannot exceed L_F = {limit}. Theorem 7 takes mu as that of R."
    if "strongly_convex_steps" in found:
        yield f"  Theorem 7: {found['strongly_convex_steps']:,} steps in total."
    if "corollary" in found:
        yield f"  Corollary: mu = {found['corollary']['mu']:g}; F itself is then minimised up to 2 epsilon."
    if args.chi2 > 0:
        yield "  Theorems 4, 5 and 7 and the corollary do not cover a stochastic f (chi2 > 0)."
        return
    for option, theorems in _OPTIONAL.items():
        if getattr(args, option) is None:
            yield f"  To include {theorems}, give --{option}."

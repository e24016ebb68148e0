"""Closed forms in sizes of anybody's naming: their value at given sizes, and how they are written as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sympy import Expr, Integer, ceiling, expand, floor, sympify

from refcheck import Problem
from refcheck.notation import ORDER, RAISED


def at(form: Expr, sizes: Mapping[str, int]) -> int:
    """The value of a closed form at given sizes.  Raises `Problem` if it is no whole number there."""
    form = sympify(form)
    value = form.xreplace({s: Integer(sizes[s.name]) for s in form.free_symbols if s.name in sizes})
    if not value.is_Integer:
        raise Problem(f"{text(form)} is {value} at these sizes: give every size that it names, as a whole number")
    return int(value)


def text(form: Any) -> str:
    """A closed form as a line of text, as on a page: 2BTD + 8BT, BhT².  Longer names are set apart: 2·batch·time."""
    return " + ".join(_term(*term.as_coeff_Mul()) for term in expand(sympify(form)).as_ordered_terms()).replace(
        "+ -", "- "
    )


def _term(number: Expr, rest: Expr) -> str:
    powers = rest.as_powers_dict() if rest != 1 else {}
    factors = [_factor(s, powers[s]) for s in sorted(powers, key=_rank)]
    between = "" if all(len(s.name) == 1 for s in rest.free_symbols) else "·"
    if not factors:
        return f"{int(number):,}" if number.is_Integer else str(number)
    if number in (1, -1):
        return ("-" if number == -1 else "") + between.join(factors)
    told = f"{int(number):,}" if number.is_Integer else f"({number})"
    return between.join([told, *factors])


def _rank(factor: Expr) -> tuple[int, str]:
    name = min((s.name for s in factor.free_symbols), default="")
    return (ORDER.index(name) if name in ORDER else len(ORDER), str(factor))


def _factor(factor: Expr, power: Expr) -> str:
    body = f"⌈{factor.args[0]}⌉" if isinstance(factor, ceiling) else str(factor)
    body = f"⌊{factor.args[0]}⌋" if isinstance(factor, floor) else body
    raised = str(power).translate(RAISED) if power.is_Integer and power > 0 else f"^({power})"
    return body if power == 1 else (body if factor.is_Symbol else f"({body})") + raised

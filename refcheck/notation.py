"""How sizes, shapes, bytes and tensors are written on a page: TeX and Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from sympy import Expr, expand, sympify

from refcheck.sizes import D, d, h
from refcheck.words import WORDS

ORDER = ["B", "h", "T", "d", "D", "M", "V"]


def tex(form: Expr | int) -> str:
    """A closed form in TeX, sizes in the order of the text: 2BTD + 8BT.  h·d is written D."""
    terms = []
    for term in expand(sympify(form)).subs(h * d, D).as_ordered_terms():
        number, rest = term.as_coeff_Mul()
        powers = rest.as_powers_dict() if rest != 1 else {}
        symbols = sorted(powers, key=lambda s: ORDER.index(s.name) if s.name in ORDER else len(ORDER))
        body = " ".join(s.name + (f"^{powers[s]}" if powers[s] != 1 else "") for s in symbols)
        terms.append(f"{number if number != 1 or not body else ''}{body}")
    return " + ".join(terms)


def shape_of(shape: Iterable[Expr | int], lang: str) -> str:
    if not (shape := tuple(shape)):
        return WORDS[lang]["scalar"]
    return "$" + r" \times ".join(tex(n) for n in shape) + "$"


def human(n: int) -> str:
    """Bytes with a binary unit, exact where they are whole."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while power < len(units) - 1 and n >= 1024 ** (power + 1):
        power += 1
    value = n / 1024**power
    return f"{value:g} {units[power]}" if value == int(value) else f"{value:.2f} {units[power]}"


def table(head: Iterable[str], body: Iterable[Iterable[str]], right: Iterable[int] = ()) -> str:
    head = list(head)
    ruler = ["---:" if n in set(right) else "---" for n in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ruler, *map(list, body)]) + "\n"


def chip(name: str, kind: str, anchor: str = "") -> str:
    return f"`{name}`{{ .{kind}{f' #{anchor}' if anchor else ''} }}"


def chips(names: Iterable[str], kind: str, lang: str) -> str:
    return " ".join(chip(n, kind) for n in names) or WORDS[lang]["nothing"]

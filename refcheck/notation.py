"""How sizes, shapes, bytes and tensors are written on a page: TeX and Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sympy import Expr, ceiling, expand, sympify

from refcheck.sizes import D, d, h
from refcheck.words import WORDS

RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
ORDER = ["B", "E", "g", "h", "T", "k", "d", "D", "M", "R", "V"]


def tex(form: Expr | int) -> str:
    """A closed form in TeX, sizes in the order of the text: 2BTD + 8BT.  h·d is written D."""
    text = ""
    for number, powers in monomials(form):
        body = " ".join(_power(s, power) for s, power in powers if power > 0)
        under = " ".join(_power(s, -power) for s, power in powers if power < 0)
        below = f"{number.q if number.q != 1 else ''}{under}"
        term = f"{abs(number.p) if abs(number.p) != 1 or not body else ''}{body}" + (f" / {below}" if below else "")
        sign = "-" if number.p < 0 else "+"
        text += f" {sign} {term}" if text else term if sign == "+" else f"-{term}"
    return text


def monomials(form: Expr | int) -> Iterator[tuple[Expr, list[tuple[Expr, Expr]]]]:
    """A closed form as a sum: of each term its number and, in the order of the text, its factors with their powers."""
    for term in expand(sympify(form)).subs(h * d, D).as_ordered_terms():
        number, rest = term.as_coeff_Mul()
        powers = rest.as_powers_dict() if rest != 1 else {}
        yield number, [(s, powers[s]) for s in sorted(powers, key=_rank)]


def _rank(factor: Expr) -> int:
    name = min((s.name for s in factor.free_symbols), key=lambda name: name not in ORDER)
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _power(factor: Expr, power: Expr) -> str:
    """A size, or one rounded up to whole blocks, to a power."""
    text = rf"\lceil {tex(factor.args[0])} \rceil" if isinstance(factor, ceiling) else factor.name
    return text + (f"^{power}" if power != 1 else "")


def shape_of(shape: Iterable[Expr | int], lang: str) -> str:
    if not (shape := tuple(shape)):
        return WORDS[lang]["scalar"]
    return "$" + r" \times ".join(map(_length, shape)) + "$"


def _length(n: Expr | int) -> str:
    """A length among others: a quotient is put in brackets."""
    return f"({text})" if " / " in (text := tex(n)) else text


def plain(form: Expr | int) -> str:
    """A closed form as a line of text: 2BTD + 8BT, BhT²."""
    text = tex(form).replace(r"\lceil ", "⌈").replace(r" \rceil", "⌉")
    text = re.sub(r"\^(\d+)", lambda m: m[1].translate(RAISED), text)
    return re.sub(r"(?<=[^ +/]) (?=[^ +/])", "", text)


def shape_plain(shape: Iterable[Expr | int], lang: str) -> str:
    """A shape as a line of text: B×T×D."""
    lengths = [plain(n) for n in shape]
    return "×".join(f"({n})" if "/" in n else n for n in lengths) or WORDS[lang]["scalar"]


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

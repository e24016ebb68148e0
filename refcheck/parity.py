"""Two languages, one structure: what a page and its twin must have in common, and how they differ.

Only prose may differ: headings have the same ids in the same order, and code, display equations, remarks, the size of
tables and the calls that fill a page are the same.  A section's prose has the same inline equations and names the same
dtypes of floats, in any order and number.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import zip_longest

CALL = re.compile(r"\[=.*?=\]")
BLOCK = re.compile(
    r"^ *(?P<code>(?P<fence>```+|~~~+).*?^ *(?P=fence))[ ]*$"
    r"|^ *\$\$(?P<equation>.*?)\$\$ *$"
    r"|^(?P<heading>#+ [^\n]*)$"
    r"|^ *(?P<remark>(?:!!!|\?{3}\+?) *[\w -]+)[^\n]*$"
    r"|(?P<table>(?:^ *\|[^\n]*(?:\n|\Z))+)",
    re.M | re.S,
)
# What prose states: an equation whose right side is more than one symbol, a dtype.
STATED = re.compile(
    r"\$(?P<equation>[^$\n]*=\s*(?![-\w\\ ]*\$)[^$\n]+)\$|(?<![\w.])(?P<dtype>(?:bf|fp)(?:16|32|64))(?!\w)"
)
NOT_STATED = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$|\$\$.*?\$\$|`[^`\n]*`|\[=.*?=\]", re.M | re.S)


def structure(text: str) -> list[tuple[str, int]]:
    """What must be the same in both languages, each with its line: blocks in order, then what a section states."""
    found = [(match.start(), "", _block(match)) for match in BLOCK.finditer(text)]
    headings = [start for start, _, value in found if value.startswith("#")]
    found += [(match.start(), match[0], match[0]) for match in CALL.finditer(text)]
    said = {(bisect(headings, start), value): start for start, value in reversed([*_stated(text)])}
    found += [(start, value, value) for (_, value), start in said.items()]
    found.sort(key=lambda item: (bisect(headings, item[0]), item[1], item[0]))
    return [(value, text.count("\n", 0, start) + 1) for start, _, value in found]


def _stated(text: str) -> Iterator[tuple[int, str]]:
    """Where the prose states an equation or a dtype, and which, spaces and words apart."""
    prose = NOT_STATED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in STATED.finditer(prose):
        equation = re.sub(r"\\text\{.*?\}|\s", "", match["equation"] or "")
        yield match.start(), f"${equation}$" if equation else match["dtype"]


def _block(match: re.Match[str]) -> str:
    """A block as it is compared: of a heading its level and id, of a table its size, of an equation all but words."""
    kind = match.lastgroup or ""
    value = match[kind].rstrip()
    if kind == "heading":
        return re.sub(r" .*?(\{[^{}]*\})?$", r" \1", value)
    if kind == "table":
        rows = value.split("\n")
        return f"a table of {len(rows)} rows and {len(re.findall(r'[^|]+', CALL.sub('call', rows[0].strip())))} columns"
    return re.sub(r"\\text\{.*?\}", r"\\text{}", value) if kind == "equation" else value


def parity(zh: str, en: str) -> list[str]:
    """How two pages differ in anything but prose, one readable line each; the empty list if they don't."""
    left, right = structure(zh), structure(en)
    matcher = SequenceMatcher(None, [value for value, _ in left], [value for value, _ in right], autojunk=False)
    return [
        "; ".join((_side("zh", one, other), _side("en", other, one)))
        for tag, a, b, c, d in matcher.get_opcodes()
        if tag != "equal"
        for one, other in zip_longest(left[a:b], right[c:d], fillvalue=("", 0))
    ]


def _side(lang: str, this: tuple[str, int], that: tuple[str, int]) -> str:
    """One side of a difference: the first line that the other doesn't have, and where it stands."""
    lines, others = this[0].split("\n"), that[0].split("\n")
    at = next((n for n, line in enumerate(lines) if n >= len(others) or line != others[n]), len(lines) - 1)
    return f"{lang} line {this[1] + at}: {lines[at].strip()}" if this[1] else f"{lang} lacks it"

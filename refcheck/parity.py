"""Two languages, one structure: what a page and its twin must have in common, and how they differ.

Only prose may differ: headings have the same ids in the same order, and code, display equations, remarks, the size of
tables and the calls that fill a page are the same.
"""

from __future__ import annotations

import re
from bisect import bisect
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


def structure(text: str) -> list[tuple[str, int]]:
    """What must be the same in both languages, each with its line: blocks in order, then a section's calls in any."""
    found = [(match.start(), "", _block(match)) for match in BLOCK.finditer(text)]
    headings = [start for start, _, value in found if value.startswith("#")]
    found += [(match.start(), match[0], match[0]) for match in CALL.finditer(text)]
    found.sort(key=lambda item: (bisect(headings, item[0]), item[1], item[0]))
    return [(value, text.count("\n", 0, start) + 1) for start, _, value in found]


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

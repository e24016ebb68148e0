"""Pages: each call, display equation, executed snippet and heading changed in one language, or alike in both.

In one language the other must show it: `parity`, which check and the build both run.  Alike in both nobody compares;
what catches it then is that a call can't be filled in, or what `refcheck.pages` reads off the equations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, partial

from refcheck.evidence import ROOT
from refcheck.parity import BLOCK, CALL, parity
from refcheck.site import JINJA, LAYER, names
from tests.mutate.mutant import Group, Mutant

DOCS = ROOT / "docs"
LANGS = ("zh", "en")
OTHER = {"cuda": "cpu", "cpu": "cuda", "bfloat16": "float32", "float32": "float16", "float16": "bfloat16"}
SIGNS = (("+", "-"), ("-", "+"), ("^2", ""), (r"\odot", ""), ("^\\top", ""), ("_i", "_j"), ("T", "D"), ("x", "y"))


def groups() -> Iterator[Group]:
    for zh in sorted((DOCS / "zh").rglob("*.md")):
        page = zh.relative_to(DOCS / "zh").as_posix()
        layer = LAYER.get(page)
        files = tuple(f"docs/{lang}/{page}" for lang in LANGS)
        yield Group(layer.id if layer else page.removesuffix(".md"), "page", files, partial(_of, page))


def _of(page: str) -> Iterator[Mutant]:
    texts = {lang: (DOCS / lang / page).read_text(encoding="utf-8") for lang in LANGS}
    for lang in LANGS:
        for kind, start, old, new in changes(texts[lang]):
            at = texts[lang].count("\n", 0, start) + 1
            wrong = {**texts, lang: spliced(texts[lang], start, old, new)}
            where = f"docs/{lang}/{page}:{at}"
            yield Mutant(kind, where, f"{_line(old)} becomes {_line(new)}", (f"{lang} line",), partial(_parity, wrong))
    for kind, start, old, new in changes(texts["en"]):
        if kind == "call" and new != "[= lang =]" and texts["zh"].count(old) == texts["en"].count(old):
            where = f"docs/??/{page}:{texts['en'].count(chr(10), 0, start) + 1}"
            yield Mutant("call, alike in both", where, f"{old} becomes {new}", (), partial(_fails, page, new))


def changes(text: str) -> Iterator[tuple[str, int, str, str]]:
    """(kind, where it starts, the old words, the new ones)."""
    for match in CALL.finditer(text):
        yield "call", match.start(), match[0], "[= lang =]"
        for argument in re.finditer(r'"([^"]*)"', match[0]):
            other = OTHER.get(argument[1], f"{argument[1]}x")
            yield "call", match.start(), match[0], spliced(match[0], argument.start(1), argument[1], other)
    for match in BLOCK.finditer(text):
        if equation := match["equation"]:
            for old, new in SIGNS:
                for found in re.finditer(rf"{re.escape(old)}(?![a-z])", equation):
                    yield "equation", match.start("equation") + found.start(), old, new
        elif (code := match["code"]) and 'exec="on"' in code.split("\n")[0]:
            for n, line in enumerate(code.split("\n")[1:-1], 1):
                start = match.start("code") + len("\n".join(code.split("\n")[:n])) + 1
                for old, new in _changed(line):
                    yield "snippet", start, old, new
        elif (heading := match["heading"]) and "{ #" in heading:
            yield "heading", match.start("heading"), heading, heading.replace("{ #", "{ #other-")


def _changed(line: str) -> Iterator[tuple[str, str]]:
    """A line of code with one number, or else one sign or name, changed."""
    if line.strip():
        number = re.search(r"\d+", line)
        yield line, spliced(line, number.start(), number[0], f"{int(number[0]) + 1}") if number else f"{line} + 0"


def spliced(text: str, start: int, old: str, new: str) -> str:
    assert text[start : start + len(old)] == old
    return text[:start] + new + text[start + len(old) :]


def _line(text: str) -> str:
    return text.strip() or "nothing"


def _parity(texts: dict[str, str]) -> str:
    return "; ".join(parity(texts["zh"], texts["en"]))


def _fails(page: str, call: str) -> str:
    """What the build says of a call that can't be filled in."""
    try:
        for lang in LANGS:
            JINJA.from_string(call).render(_names(page, lang))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@cache
def _names(page: str, lang: str) -> dict[str, object]:
    return names(lang, LAYER.get(page))

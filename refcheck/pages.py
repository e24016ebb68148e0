"""What can be said of the pages without building them: each is there in both languages, with the same structure, and
no number of bytes and no shape is typed in its prose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from refcheck.check import PAGE, Drift
from refcheck.evidence import ROOT
from refcheck.parity import parity
from refcheck.spec import Layer

DOCS = ROOT / "docs"
NOT_PROSE = re.compile(
    r"\A---\n.*?\n---\n"  # front matter
    r"|^ *(?P<fence>```+|~~~+).*?^ *(?P=fence) *$"
    r"|\$\$.*?\$\$|\[=.*?=\]|`[^`\n]*`|<[^>\n]*>|\]\([^)\n]*\)",
    re.M | re.S,
)
SIZE = r"(?:[BThdDMV]|\d+)(?:\^\d)?"
TYPED = {
    "a number of bytes": re.compile(r"\d[\d,.]*[  ]*(?:字节|bytes?\b|[KMGT]i?B\b)"),
    "a shape": re.compile(rf"{SIZE} *(?:×|\\times) *{SIZE}|\([BThd]+, *[BThdDMV][^)\n]*\)"),
}


def check_pages(layers: Iterable[Layer]) -> Iterator[Drift]:
    """Pages and labs that are missing, twins that differ, and facts typed in prose."""
    for layer in layers:
        for wanted in (f"zh/layers/{layer.id}.md", f"en/layers/{layer.id}.md", f"lab/{layer.id}.py"):
            if not (DOCS / wanted).exists():
                yield _drift(
                    layer.id,
                    "",
                    "page",
                    f"docs/{wanted}",
                    "no such file",
                    "write it; docs/zh/layers/softmax.md shows how",
                )
    for zh in sorted((DOCS / "zh").rglob("*.md")):
        name = zh.relative_to(DOCS / "zh").as_posix()
        en = DOCS / "en" / name
        if not en.exists():
            yield _drift(name, "", "page", f"docs/en/{name}", "no such file", "write it in English too")
            continue
        for difference in parity(zh.read_text(encoding="utf-8"), en.read_text(encoding="utf-8")):
            yield _drift(name, "", "structure", "the same in zh and en", difference, "make the two pages agree")
        for path in (zh, en):
            yield from _typed(path)
    for en in sorted((DOCS / "en").rglob("*.md")):
        name = en.relative_to(DOCS / "en").as_posix()
        if not (DOCS / "zh" / name).exists():
            yield _drift(name, "", "page", f"docs/zh/{name}", "no such file", "write it in Chinese too")


def _typed(path: Path) -> Iterator[Drift]:
    """Sizes that stand in the prose of a page instead of coming from the claims."""
    text = NOT_PROSE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), path.read_text(encoding="utf-8"))
    for number, line in enumerate(text.split("\n"), start=1):
        for what, pattern in TYPED.items():
            for found in pattern.finditer(line):
                place = f"{path.relative_to(ROOT).as_posix()}:{number}"
                mend = "fill it in from the claims: [= form(…) =], [= size(…) =] or [= shape(…) =]"
                yield _drift(place, "", what, "from the claims", f"typed: {found[0]}", mend)


def _drift(page: str, tensor: str, what: str, claimed: str, measured: str, mend: str) -> Drift:
    return Drift(page, "", "", PAGE, tensor, what, claimed, measured, mend)

"""What can be said of the pages without building them: each is there in both languages, with the same structure; a
layer's page has all its sections and tables; code of Python is run; and nothing is typed that comes from the claims or
the records: no number of bytes, no shape, no closed form, no word of a measurement that nobody made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from refcheck.check import PAGE, Drift
from refcheck.evidence import ROOT, read_all
from refcheck.parity import parity
from refcheck.spec import Layer

DOCS = ROOT / "docs"
NOT_PROSE = re.compile(
    r"^ *(?P<fence>```+|~~~+).*?^ *(?P=fence) *$"
    r"|\$\$.*?\$\$|\[=.*?=\]|`[^`\n]*`|<[^>\n]*>|\]\([^)\n]*\)",
    re.M | re.S,
)
SECTIONS = ("forward", "gradient", "needed", "proof", "saved", "bytes", "pitfalls", "evidence", "cite")
CALLS = ("needed", "saved", "nbytes", "evidence", "cite")
SIZE = r"(?:[BThdDMV]|\d+)(?:\^\d)?"
GAP = r"(?:\\,|[ *·])*"
TYPED = {
    "a number of bytes": re.compile(r"\d[\d,.]*[  ]*(?:字节|bytes?\b|[KMGT]i?B\b)"),
    "a shape": re.compile(rf"{SIZE} *(?:×|\\times) *{SIZE}|\([BThd]+, *[BThdDMV][^)\n]*\)"),
    "a closed form": re.compile(rf"(?<![\w^.-])\d+(?:{GAP}[BThdDMV](?:[²³]|\^\d)?){{2,}}(?![a-z])"),
}
IN_LABS = ("a number of bytes", "a closed form")
NOT_RUN = re.compile(r"^ *```+ *(?:python|py)\b(?![^\n]*exec=\"on\")[^\n]*", re.M)
MEASURED = re.compile(r"measured on (?:a|one)\b[^.]{0,9} GPU|(?:在 ?GPU ?上的?|GPU ?)实测", re.I)
NOT_MEASURED = re.compile(r"\bno\b|\bnot\b|n't\b|\bnothing\b|\bnever\b|未|没|不", re.I)
DEFINES = "glossary.md"  # says what "measured on a GPU" means


def check_pages(layers: Iterable[Layer]) -> Iterator[Drift]:
    """Pages and labs that are missing or lack a part, twins that differ, and facts typed in prose."""
    for layer in layers:
        for wanted in (f"zh/layers/{layer.id}.md", f"en/layers/{layer.id}.md", f"lab/{layer.id}.py"):
            if not (DOCS / wanted).exists():
                mend = "write it; docs/zh/layers/softmax.md shows how"
                yield _drift(layer.id, "page", f"docs/{wanted}", "no such file", mend)
            elif wanted.endswith(".md"):
                yield from _lacking(DOCS / wanted)
            else:
                yield from _typed(DOCS / wanted, _comments(DOCS / wanted), IN_LABS)
    if (readme := ROOT / "README.md").exists():
        yield from _measured(readme)
    for zh in sorted((DOCS / "zh").rglob("*.md")):
        name = zh.relative_to(DOCS / "zh").as_posix()
        en = DOCS / "en" / name
        if not en.exists():
            yield _drift(name, "page", f"docs/en/{name}", "no such file", "write it in English too")
            continue
        for difference in parity(zh.read_text(encoding="utf-8"), en.read_text(encoding="utf-8")):
            yield _drift(name, "structure", "the same in zh and en", difference, "make the two pages agree")
        for path in (zh, en):
            yield from _typed(path, _prose(path))
            yield from _not_run(path)
            yield from _measured(path)
    for en in sorted((DOCS / "en").rglob("*.md")):
        name = en.relative_to(DOCS / "en").as_posix()
        if not (DOCS / "zh" / name).exists():
            yield _drift(name, "page", f"docs/zh/{name}", "no such file", "write it in Chinese too")


def _lacking(path: Path) -> Iterator[Drift]:
    """Sections and tables that every layer's page has, and this one hasn't."""
    text = path.read_text(encoding="utf-8")
    for wanted in (*(f"{{ #{name} }}" for name in SECTIONS), *(f"[= {name}() =]" for name in CALLS)):
        if wanted not in text:
            yield _drift(_place(path), "page", wanted, "nothing of the kind", "docs/zh/layers/softmax.md shows where")


def _prose(path: Path) -> str:
    """The text of a page with all else blanked out, so that a line keeps its number."""
    return NOT_PROSE.sub(lambda m: re.sub(r"[^\n]", "▮", m[0]), path.read_text(encoding="utf-8"))


def _comments(path: Path) -> str:
    """The lines of a lab that are comments; what a notebook shows as text is among them."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return "\n".join(line if line.startswith("#") else "" for line in lines)


def _typed(path: Path, prose: str, kinds: Iterable[str] = tuple(TYPED)) -> Iterator[Drift]:
    """Sizes that stand in the prose instead of coming from the claims."""
    mend = "fill it in from the claims: [= form(…) =], [= size(…) =] or [= shape(…) =]"
    for what in kinds:
        for found in TYPED[what].finditer(prose):
            yield _drift(_place(path, prose, found), what, "from the claims", f"typed: {found[0]}", mend)


def _not_run(path: Path) -> Iterator[Drift]:
    """Code of Python that is shown and never run: nobody would see it fail."""
    text = path.read_text(encoding="utf-8")
    for found in NOT_RUN.finditer(text):
        mend = 'write ```python exec="on" source="above" result="text"'
        yield _drift(_place(path, text, found), "snippet", "run at build", found[0].strip(), mend)


def _measured(path: Path) -> Iterator[Drift]:
    """Sentences that speak of a measurement on a GPU, without a "not", where there is no record of one."""
    if path.name == DEFINES:
        return
    prose = _prose(path)
    for sentence in re.finditer(r"[^.。!?！？;；\n]+", prose):
        found = MEASURED.search(sentence[0])
        if found and not NOT_MEASURED.search(sentence[0]) and not _on_a_gpu():
            mend = "there is no record whose device is cuda: say traced, or not yet measured on a GPU"
            yield _drift(_place(path, prose, sentence), "word", "as the records say", found[0], mend)


def _on_a_gpu() -> bool:
    return any(record.environment.device == "cuda" for record in read_all().values())


def _place(path: Path, text: str = "", found: re.Match[str] | None = None) -> str:
    line = f":{text.count(chr(10), 0, found.start()) + 1}" if found else ""
    return path.relative_to(ROOT).as_posix() + line


def _drift(page: str, what: str, claimed: str, found: str, mend: str) -> Drift:
    return Drift(page, "", "", PAGE, "", what, claimed, found, mend)

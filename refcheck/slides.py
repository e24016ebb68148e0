"""A layer's page cut down to slides: the formulas, what is kept, the bytes; one screen each, and nothing typed anew."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from refcheck import tables
from refcheck.cite import record, vouched
from refcheck.spec import Layer

TEMPLATE = "slides.html"
CODE = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.M | re.S)
SECTION = re.compile(r"^## (?P<title>.*?) *\{ #(?P<id>[\w-]+) \}$(?P<text>.*?)(?=^## |\Z)", re.M | re.S)
EQUATION = re.compile(r"^ *\$\$\n.*?^ *\$\$ *$", re.M | re.S)
KEPT = re.compile(r"^### (?P<title>.*?) *\{ #(?P<id>[\w-]+) \}$(?P<text>.*?)(?=^### |\Z)", re.M | re.S)
AT_ONCE = 3  # displays that fit on one screen


def markdown(page: str, layer: Layer, lang: str) -> str:
    """The slides of a layer as Markdown, made from the text of its page."""
    told = re.search(r"^description: (.*)$", page, re.M)
    sections = {match["id"]: match for match in SECTION.finditer(CODE.sub("", page))}
    slides = [f"# {layer.title[lang]} {{ #{layer.id} }}\n\n{told[1] if told else ''}"]
    slides += [slide for name, section in sections.items() for slide in _slides(name, section, layer, lang)]
    front = [f"template: {TEMPLATE}", f"title: {layer.title[lang]}", *([told[0]] if told else [])]
    front += ["search:", "  exclude: true"]
    body = "\n".join(f"<section markdown>\n\n{slide}\n\n</section>\n" for slide in slides)
    return "\n".join(["---", *front, "---", "", body])


def _slides(name: str, section: re.Match[str], layer: Layer, lang: str) -> Iterator[str]:
    """Those of one section: its displays, or its table; of the gradients the displays that say what is needed."""
    title = section["title"]
    if name in ("forward", "gradient"):
        displays = [textwrap.dedent(found) for found in EQUATION.findall(section["text"])]
        displays = [shown for shown in displays if name == "forward" or r"\needed" in shown] or displays
        for n in range(0, len(displays), AT_ONCE):
            at = f"{name}-{n // AT_ONCE + 1}" if n else name
            yield "\n\n".join([f"## {title} {{ #{at} }}", *displays[n : n + AT_ONCE]])
    elif name == "needed":
        yield f"## {title} {{ #{name} }}\n\n[= needed() =]"
    elif name == "saved":
        for kept in KEPT.finditer(tables.saved(layer, lang)):
            yield f"## {title} · {kept['title']} {{ #{kept['id']} }}\n{kept['text']}"
    elif name == "bytes":
        vouching = record(layer)
        told = f"\n{vouched(vouching, lang)}\n" if vouching else ""
        yield f"## {title} {{ #{name} }}\n\n[= nbytes() =]\n{told}"

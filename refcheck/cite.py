"""How a page is cited: BibTeX, GB/T 7714 and plain text, with version, commit and the record that vouches for it.

Without a script a reader sees the page's path and YYYY-MM-DD; assets/site.js puts the full address and the day there.
"""

from __future__ import annotations

import html
import os
from functools import cache
from typing import Any

from refcheck.evidence import ROOT, commit
from refcheck.rows import records, supported
from refcheck.spec import Layer
from refcheck.words import CITE

BEST = ("cuda", "cuda-trace", "cpu")  # the record that says most comes first
DAY = "YYYY-MM-DD"


@cache
def about() -> dict[str, Any]:
    """CITATION.cff: title, version and authors stand there and nowhere else."""
    import yaml

    found: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    return found


@cache
def _state() -> tuple[str, str | None]:
    """The date of the newest record, which the numbers are of, and the commit."""
    return max((r.environment.date for r in records().values()), default=""), commit()


def record(layer: Layer | None = None) -> str | None:
    """The newest of the records that say most of a layer, or of anything."""
    named = records()
    for device in BEST:
        names = supported(layer)[device] if layer else [n for n, r in named.items() if r.environment.device == device]
        if names:
            return max(names, key=lambda n: (named[n].environment.date, n))
    return None


def cite(layer: Layer, lang: str) -> str:
    """How to cite a layer's page: three ways, each to be copied."""
    return block(layer.title[lang], f"layers/{layer.id}/", lang, record(layer))


def cite_site(lang: str) -> str:
    """How to cite the whole site."""
    return block("", "", lang, record())


def folded(title: str, path: str, lang: str) -> str:
    """How to cite a page that is no layer's, folded up at its foot."""
    inner = block(title, path, lang, record())
    return f'<details class="citing" id="cite"><summary>{CITE[lang]["cite"]}</summary>{inner}</details>'


def block(title: str, path: str, lang: str, vouching: str | None) -> str:
    """The three texts as HTML, which Material gives a button each to copy it; `path` is within the edition."""
    shown = "".join(
        f"<p>{html.escape(name)}</p>\n<pre><code>{html.escape(text, quote=False)}</code></pre>\n"
        for name, text in texts(title, path, lang, vouching).items()
    )
    at = f'data-path="{_address(path, lang)}" data-here="{path}"'
    return f'<div class="cite" data-search-exclude {at}>\n{shown}</div>\n'


def texts(title: str, path: str, lang: str, vouching: str | None) -> dict[str, str]:
    """The name of each format, and the reference in it."""
    words, (date, commit) = CITE[lang], _state()
    site, version, address = about()["title"], about()["version"], _address(path, lang)
    author = ", ".join(a["name"] for a in about()["authors"])
    title = f"{title} · {site}" if title else site
    state = [f"{words['version']} {version}"]
    state += [f"{words['commit']} {commit}"] if commit else []
    state += [vouched(vouching, lang)] if vouching else []
    key = "-".join(["saved-for-backward", *path.strip("/").removeprefix("layers/").split("/")]).rstrip("-")
    joined = words["comma"].join(state)
    fields = dict(title=title, author=f"{{{author}}}", year=date[:4], url=address, urldate=DAY, note=joined)
    bibtex = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
    return {
        "BibTeX": f"@misc{{{key},\n{bibtex}}}",
        "GB/T 7714—2015": f"{author}. {title}: {joined}[EB/OL]. ({date})[{DAY}]. {address}.",
        words["text"]: f"{author}. {title}. {joined}. {date}. {address}",
    }


def vouched(name: str, lang: str) -> str:
    """A record's name, and plainly so if it was traced."""
    words = CITE[lang]
    return f"{words['record']} {name}{words['traced'] if name.endswith('-trace') else ''}"


def _address(path: str, lang: str) -> str:
    """The page's address: in full where SITE_URL says where the site is, else its path within the site."""
    whole = os.environ.get("SITE_URL", "").rstrip("/")
    return f"{whole}/{'' if lang == 'zh' else 'en/'}{path}".removeprefix("/") or "./"

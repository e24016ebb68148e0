"""The MkDocs hook: fills pages from the claims, typesets their formulas, and holds the two languages together.

Whatever is wrong with a page is reported as a warning that names the file, and `mkdocs build --strict` fails on it.
"""

from __future__ import annotations

import functools
import html
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import jinja2
import jupytext
import mkdocs_jupyter.config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from py_mini_racer import JSEvalException, MiniRacer

from refcheck import calculator, cite, reconcile, rows, slides, tables
from refcheck.layers import LAYERS
from refcheck.parity import parity
from refcheck.spec import Layer

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TWIN = {"zh": "en", "en": "zh"}
LAYER = {f"layers/{layer.id}.md": layer for layer in LAYERS}

SERVING = False
log = get_plugin_logger("site")


def complain(page: Page, message: str, line: int | None = None) -> None:
    """A warning that fails the strict build and says where to look."""
    source = page.file.abs_src_path
    place = Path(source).relative_to(ROOT) if source else Path(page.file.src_uri)
    log.warning("%s: %s", f"{place}:{line}" if line else place, message)


# --- the build, in the order in which MkDocs calls -------------------------------------------------------------------


def on_startup(command: str, dirty: bool) -> None:
    """Keeps this module, and with it the warm interpreter, over the rebuilds of `mkdocs serve`."""
    global SERVING
    SERVING = command == "serve"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts one page per layer into the nav, in the order of LAYERS; the labs get this project's notebook template."""
    pages = [*LAYER]
    config.nav = [{config.extra["layers"]: pages} if item == "layers/*" else item for item in config.nav or ()] or None
    if config.site_url:
        config.extra["whole"] = config.site_url.rstrip("/") + "/"
        config.site_url = urljoin(config.extra["whole"], config.extra["path"])
    if SERVING:
        config.extra["policy"] = None  # it forbids scripts in the page, such as the one for live reload
    mkdocs_jupyter.config.settings.templates_dir = str(DOCS / "theme" / "jupyter")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the records and docs/assets, which the editions share: of KaTeX its fonts, and its style with the site's."""
    for pattern in ("evidence/*.json", "assets/*.*", "assets/fonts/*", "assets/katex/fonts/*"):
        for path in sorted(DOCS.glob(pattern)):
            files.append(File.generated(config, path.relative_to(DOCS).as_posix(), abs_src_path=str(path)))
    style = "".join((DOCS / "assets" / name).read_text() for name in ("katex/katex.min.css", "site.css"))
    files.remove(files.src_uris["assets/site.css"])
    files.append(File.generated(config, "assets/site.css", content=style))
    table = list(rows.rows())
    offered = calculator.export(config.theme["language"])
    texts = {
        "table.json": json.dumps(table, indent=1) + "\n",
        "table.csv": rows.as_csv(table),
        "calculator.json": json.dumps(offered, ensure_ascii=False, separators=(",", ":")) + "\n",
    }
    for name, text in texts.items():
        files.append(File.generated(config, name, content=text))
    for uri, layer in LAYER.items():
        if config.extra["twin"] and (page := files.get_file_from_path(uri)):
            text = slides.markdown(page.content_string, layer, config.theme["language"])
            name = f"layers/{layer.id}/slides.md"
            files.append(File.generated(config, name, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str | None:
    """Compares the page with its twin and fills in what comes from the claims."""
    lang = config.theme["language"]
    if config.extra["path"] == "lab/":
        page.meta["lab"] = Path(page.file.src_uri).stem if page.file.src_uri.endswith(".py") else None
        return None
    if not page.meta.get("description"):
        complain(page, "its front matter has no description")
    if page.meta.get("template") == slides.TEMPLATE:
        return fill(markdown, page, lang)
    twin = DOCS / TWIN[lang] / page.file.src_uri
    if not twin.exists():
        complain(page, f"there is no {twin.relative_to(ROOT)}")
    else:
        texts = {lang: Path(page.file.abs_src_path or "").read_text(), TWIN[lang]: twin.read_text()}
        for difference in parity(texts["zh"], texts["en"]):
            complain(page, f"the languages differ: {difference}")
    page.meta["layer"] = head(LAYER.get(page.file.src_uri), config)
    return one_session(fill(markdown, page, lang), page.file.src_uri)


def head(layer: Layer | None, config: MkDocsConfig) -> dict[str, Any] | None:
    """What stands above a layer page's title: its place among the layers, and its lab if there is one."""
    if not layer:
        return None
    lab = f"{config.extra['root']}lab/{layer.id}/" if (DOCS / "lab" / f"{layer.id}.py").exists() else None
    return dict(number=LAYERS.index(layer) + 1, of=len(LAYERS), lab=lab, slides=f"layers/{layer.id}/slides/")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Typesets the formulas and gives every table a box in which it scrolls."""
    if str(ROOT) in html:
        complain(page, "it shows a path of this machine")
    return boxed(typeset(html, page, config.mdx_configs["toc"]["permalink_title"]))


def on_page_context(context: dict[str, Any], page: Page, config: MkDocsConfig, nav: Navigation) -> None:
    """Puts the drawn formulas in, now that search has read the page with each formula as a line of text."""
    drawn = iter(page.meta.get("formulas", ()))
    content = re.sub(r"<formula>.*?</formula>", lambda _: next(drawn), page.content or "", flags=re.S)
    content = linked(content, config.mdx_configs["toc"]["permalink_title"])
    if config.extra["twin"] and not page.meta.get("template") and 'id="cite"' not in content:
        title = "" if page.is_homepage else str(page.title)
        content += cite.folded(title, page.url.removeprefix("./"), config.theme["language"])
    page.content = content


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Puts a notebook, not yet run, beside each lab's page and its source."""
    source = Path(page.file.abs_src_path or "")
    if source.suffix == ".py":
        target = Path(page.file.abs_dest_path).with_name(source.stem + ".ipynb")
        target.parent.mkdir(parents=True, exist_ok=True)
        jupytext.write(jupytext.read(source), target)
    return output


# --- what a page's Markdown can call ---------------------------------------------------------------------------------

JINJA = jinja2.Environment(
    variable_start_string="[=",
    variable_end_string="=]",
    block_start_string="[%%",
    block_end_string="%%]",
    comment_start_string="[##",
    comment_end_string="##]",
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
)


TABLES = (tables, cite, reconcile)


def names(lang: str, layer: Any = None) -> dict[str, Any]:
    """`lang`, `layer`, `title`, and each public function of TABLES, bound to the page's layer and language."""
    known: dict[str, Any] = dict(lang=lang, **(dict(layer=layer, title=layer.title[lang]) if layer else {}))
    for name, function in (found for module in TABLES for found in inspect.getmembers(module, inspect.isfunction)):
        first = list(inspect.signature(function).parameters)
        if name.startswith("_") or function.__module__ not in (module.__name__ for module in TABLES):
            continue
        if first[:2] == ["layer", "lang"] and layer:
            known[name] = functools.partial(function, layer, lang)
        elif first[:1] == ["lang"]:
            known[name] = functools.partial(function, lang)
    return known


def fill(markdown: str, page: Page, lang: str) -> str:
    """The page with each `[= … =]` replaced by its value."""
    name = page.file.src_uri
    try:
        code = JINJA.compile(markdown, name, name)
        layer = LAYER.get(name.replace("/slides.md", ".md"))
        return jinja2.Template.from_code(JINJA, code, {}).render(names(lang, layer))
    except Exception as error:
        source = page.file.content_string
        before = source.rstrip("\n").count("\n") - markdown.rstrip("\n").count("\n")  # the front matter
        complain(page, f"{type(error).__name__}: {error}", before + _line(error, name))
        return markdown


def _line(error: BaseException, name: str) -> int:
    """The line of the template at which an error was raised."""
    line, trace = getattr(error, "lineno", 0) or 0, error.__traceback__
    while trace:
        line, trace = (trace.tb_lineno if trace.tb_frame.f_code.co_filename == name else line), trace.tb_next
    return line


BUILD = iter(range(10**9))


def one_session(markdown: str, uri: str) -> str:
    """The executed snippets of a page share their names with each other, and with no other page or build."""
    session = f'session="{uri}#{next(BUILD)}"'
    return re.sub(r'^( *```+ *\w+(?![^\n]*session=)[^\n]*exec="on")', rf"\1 {session}", markdown, flags=re.M)


# --- typesetting -----------------------------------------------------------------------------------------------------

MATHS = re.compile(
    r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>([,.;:!?)’”，。；：！？、）」]*)|<h[1-6] id="([^"]+)"',
    re.S,
)


@functools.cache
def katex() -> Callable[[str, bool], str]:
    """KaTeX in an embedded JavaScript engine: (TeX, is it a display?) -> HTML and MathML."""
    engine = MiniRacer()
    engine.eval((DOCS / "assets/katex/katex.min.js").read_text())
    engine.eval((DOCS / "assets/katex/typeset.js").read_text())
    return functools.partial(engine.call, "typeset")


def typeset(text: str, page: Page, title: str) -> str:
    """Typesets every formula that arithmatex has marked, and leaves its text in its place for on_page_context.

    A display is numbered in its section: its address is `SECTION-eq1`.  One that is put before others which have been
    published is given a name, by a first line of TeX such as `% #gradient-dx`, so that the numbers stay as they are.
    """
    drawn: list[str] = []
    section, number = "", 0

    def replace(match: re.Match[str]) -> str:
        nonlocal section, number
        if match[4]:
            section, number = match[4], 0
            return match[0]
        tex = html.unescape(match[2]).strip()
        try:
            formula = katex()(tex, match[1] == "div") + match[3]
        except JSEvalException as error:
            reason = re.search(r"KaTeX parse error: (.*)", str(error))
            complain(page, f"{reason[1] if reason else error} in {tex!r}")
            return match[0]
        readable = re.sub(r"(?s)<annotation.*?</annotation>|<[^>]*>", "", formula.partition("</math>")[0])
        if match[1] == "div":
            named = re.match(r"% *#([\w-]+)\n", tex)
            number += not named
            at = named[1] if named else f"{section}-eq{number}"
            formula = f'<div class="stated" id="{at}">{formula}{link(at, title)}</div>'
        short = match[3] and len(readable) < 16  # stays on one line with the comma after it
        drawn.append(f'<span class="joined">{formula}</span>' if short else formula)
        return f"<formula>{readable}{match[3]}</formula>"

    text = MATHS.sub(replace, text)
    page.meta["formulas"] = drawn
    return text


ROW = re.compile(
    r'<td[^>]*>(?:<span id="[^"]*"></span>)?<(code|span|b|a)\b[^>]* id="([^"]+)"[^>]*>.*?</\1>(?!</\1>)', re.S
)


def linked(text: str, title: str) -> str:
    """Every row that has an address of its own shows it under the pointer, as headings do."""
    return ROW.sub(lambda match: match[0] + link(match[2], title), text)


def link(address: str, title: str) -> str:
    return f'<a class="headerlink" href="#{address}" title="{title}">§</a>'


def boxed(text: str) -> str:
    """Every table stands in a box that scrolls sideways and can be reached by keyboard."""
    text = text.replace("<table>", '<div class="scroll" tabindex="0"><table class="ruled">')
    return text.replace("</table>", "</table></div>").replace("<th></th>", "<td></td>")

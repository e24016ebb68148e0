"""The built site: strict, whole, in two languages of one structure, and asking no other host for anything."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin

import pytest

from refcheck import addresses
from refcheck.evidence import ROOT, read_all
from refcheck.layers import LAYERS
from refcheck.spec import claim
from tests.browser import serving

pytestmark = pytest.mark.xdist_group("site")  # one worker builds it, once
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}


def build(config, target, folder=ROOT):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", str(target)]
    return subprocess.run(command, cwd=folder, env=ENV, capture_output=True, text=True)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The whole site, as `make site` builds it."""
    folder = tmp_path_factory.mktemp("site")
    for config, part in (("mkdocs.yml", ""), ("mkdocs.en.yml", "en"), ("mkdocs.lab.yml", "lab")):
        done = build(config, folder / part)
        assert done.returncode == 0, done.stderr[-3000:]
    return folder


class Page(HTMLParser):
    """What a page asks for, where it leads, and its ids."""

    def __init__(self, path):
        super().__init__()
        self.asks, self.leads, self.ids, self.policy, self.twins = [], [], [], None, {}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        at = dict(attributes)
        if "id" in at:
            self.ids.append(at["id"])
        if tag == "a" and at.get("href"):
            self.leads.append(at["href"])
        elif tag == "meta" and (at.get("http-equiv") or "").lower() == "content-security-policy":
            self.policy = at["content"]
        elif tag == "link" and at["rel"].strip() == "alternate":
            self.twins[at["hreflang"]] = at["href"]
        elif tag == "link" and at.get("rel") not in ("canonical", "prev", "next"):
            self.asks.append(at["href"])
        elif tag != "link":
            self.asks += [at[name] for name in ("src", "srcset", "data", "poster") if at.get(name)]


@pytest.fixture(scope="session")
def pages(site):
    return {path.relative_to(site).as_posix(): Page(path) for path in sorted(site.rglob("*.html"))}


def test_no_page_asks_another_host(site, pages):
    asked = {(name, url) for name, page in pages.items() for url in page.asks if re.match(r"(\w+:)?//", url)}
    assert asked == set()
    for path in site.rglob("*.css"):
        urls = re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")]+)", path.read_text(encoding="utf-8"))
        assert [u for u in urls if re.match(r"(\w+:)?//", u)] == [], path


def test_every_page_forbids_other_hosts(pages):
    for name, page in pages.items():
        assert page.policy is not None, name
        sources = set(re.sub(r"[a-z-]+-src(-attr|-elem)?|base-uri|form-action|;", " ", page.policy).split())
        assert sources <= {"'none'", "'self'", "'unsafe-inline'", "data:"}, name
        scripts = next(part for part in page.policy.split(";") if part.split()[0] == "script-src")
        assert "unsafe" not in scripts, name


def test_every_link_leads_somewhere(site, pages):
    for name, page in pages.items():
        if name.endswith("404.html"):
            continue
        for url in page.leads:
            if re.match(r"\w+:", url):
                continue
            path, _, anchor = urljoin(f"/{name}", url).partition("#")
            target = unquote(path).lstrip("/")
            target += "index.html" if not target or target.endswith("/") else ""
            assert (site / target).exists(), f"{name}: {url}"
            if anchor and target in pages:
                assert unquote(anchor) in pages[target].ids, f"{name}: {url}"


def test_ids_are_unique_and_the_same_in_both_languages(pages):
    for name, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), name
        if not name.startswith(("en/", "lab/", "404")):
            mine = [i for i in page.ids if not i.startswith("__")]
            assert mine == [i for i in pages[f"en/{name}"].ids if not i.startswith("__")], name


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.id)
def test_every_claim_has_its_address(layer, pages):
    """layers/layernorm/#saved-mean, #saved-from-output-rstd: what is cited stays."""
    for lang in ("", "en/"):
        ids = set(pages[f"{lang}layers/{layer.id}/index.html"].ids)
        for n, implementation in enumerate(layer.implementations):
            prefix = "saved" if n == 0 else f"saved-{implementation.id}"
            kept = {s.name for device in ("cuda", "cpu") for s in claim(implementation, device, "bfloat16")}
            assert {f"saved-{implementation.id}", *(f"{prefix}-{name}" for name in kept)} <= ids
        assert {"forward", "gradient", "needed", "proof", "saved", "bytes", "pitfalls", "evidence", "cite"} <= ids
    assert f"lab/{layer.id}/index.html" in pages


def test_no_published_address_vanishes(site, pages):
    """Mend: bring the address back; `make addresses` adds new ones to the list and takes none away."""
    known = addresses.read(addresses.LIST)
    assert [*addresses.broken(known, addresses.published(site))] == []
    for address in known:
        page, _, at = address.partition("#")
        assert not at or at in pages[f"en/{page}index.html"].ids, address


def test_every_display_and_row_has_an_address(site):
    found = addresses.published(site)
    for layer in LAYERS:
        text = (site / f"layers/{layer.id}/index.html").read_text(encoding="utf-8")
        marks = [address for address, mark in found.items() if mark and address.startswith(f"layers/{layer.id}/")]
        assert len(marks) == text.count('class="katex-display ') > 0
        assert f"layers/{layer.id}/#saved-{layer.implementations[0].id}-total" in found
    assert {"table/#layernorm-eager-cuda", "errata/#cell-layernorm-1-saved"} <= found.keys()
    assert {"layers/layernorm/#saved-mean", "layers/layernorm/#saved-eager-mean"} <= found.keys()


def test_each_page_names_its_twin(pages):
    for name, page in pages.items():
        if not name.endswith("404.html") and not name.startswith("lab/") and "/slides/" not in name:
            assert {"zh", "en", "x-default"} == page.twins.keys(), name


FOUND = {
    ("", "掩码"): "layers/mask/",
    ("", "softmax 保存"): "layers/softmax/",
    ("", "rstd"): "layers/layernorm/",
    ("en/", "mask"): "layers/mask/",
    ("en/", "softmax saved"): "layers/softmax/",
    ("en/", "rstd"): "layers/layernorm/",
}


@pytest.mark.parametrize("edition, typed", FOUND, ids=" ".join)
def test_search_finds_the_right_page_first(edition, typed, site, chromium):
    with serving(site) as address:
        page = chromium.new_page(locale="zh-CN")
        page.goto(f"{address}{edition}table/?q={typed}")
        page.wait_for_selector(".md-search-result__item a")
        first = page.locator(".md-search-result__link").first.get_attribute("href")
        page.close()
    assert first.partition("?")[0].partition("#")[0].endswith(FOUND[edition, typed]), first


def test_records_are_published_as_they_are(site):
    for name in read_all():
        assert (site / "evidence" / f"{name}.json").read_text() == (ROOT / f"docs/evidence/{name}.json").read_text()


def test_labs_can_be_downloaded(site):
    for layer in LAYERS:
        notebook = json.loads((site / "lab" / layer.id / f"{layer.id}.ipynb").read_text(encoding="utf-8"))
        assert all(not cell.get("outputs") for cell in notebook["cells"])


def test_formulas_are_typeset(site, pages):
    text = (site / "layers/softmax/index.html").read_text(encoding="utf-8")
    assert text.count('class="katex"') > 20 and "\\frac" not in re.sub(
        r"<annotation.*?</annotation>", "", text, flags=re.S
    )


def test_chinese_search_has_words(site):
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    text = "".join(doc["title"] + doc["text"] for doc in index["docs"])
    assert "反向\u200b传播" in text or "\u200b反向传播\u200b" in text
    assert "\\u200b" in json.dumps(index["config"]["separator"])


FAULTS = {
    "a failing snippet": ('```python exec="on"\n1 / 0\n```', "ZeroDivisionError"),
    "an unknown name": ("[= nothing() =]", "'nothing' is undefined"),
    "an unknown word": ("[= nothing =]", "'nothing' is undefined"),
    "an unknown implementation": ('[= form("eagre", "cuda", "bfloat16") =]', "docs/en/layers/softmax.md"),
    "bad TeX": (r"$\frac{1}{$", "docs/en/layers/softmax.md"),
    "a formula that the other language lacks": ("$$\ny = x\n$$", "the languages differ"),
}


@pytest.fixture(scope="session")
def copy(tmp_path_factory):
    """A checkout with two pages: quick to build, free to spoil."""
    folder = tmp_path_factory.mktemp("spoilt") / "checkout"
    keep = shutil.ignore_patterns(".git", ".venv", "site", ".site.*", "__pycache__", "tests", "lab")
    shutil.copytree(ROOT, folder, ignore=keep)
    for path in folder.glob("docs/??/**/*.md"):
        if path.name not in ("index.md", "softmax.md"):
            path.unlink()
    return folder


def warnings(folder, target):
    """How many warnings a strict build of the copy gives, and its output; each page left out costs some."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "mkdocs.en.yml", "-d", str(target)]
    done = subprocess.run(command, cwd=folder, env={**ENV, "PYTHONPATH": str(folder)}, capture_output=True, text=True)
    assert done.returncode != 0
    return len(re.findall("^WARNING", done.stderr, re.M)), done.stderr


@pytest.fixture(scope="session")
def unspoilt(copy, tmp_path_factory):
    return warnings(copy, tmp_path_factory.mktemp("unspoilt"))[0]


@pytest.mark.parametrize("fault, named", FAULTS.values(), ids=FAULTS)
def test_a_spoilt_page_fails_the_build(fault, named, copy, unspoilt, tmp_path):
    page = copy / "docs/en/layers/softmax.md"
    whole = page.read_text(encoding="utf-8")
    page.write_text(f"{whole}\n{fault}\n", encoding="utf-8")
    try:
        count, output = warnings(copy, tmp_path)
    finally:
        page.write_text(whole, encoding="utf-8")
    assert count > unspoilt, output[-2000:]
    assert named in output, output[-2000:]


def test_no_path_of_this_machine_is_shown(site):
    for path in site.rglob("*.html"):
        assert str(Path(ROOT)) not in path.read_text(encoding="utf-8"), path

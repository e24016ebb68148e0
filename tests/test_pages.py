"""The pages: both languages have the same structure, and what differs, is missing or is typed by hand is named."""

import pytest

from refcheck import pages
from refcheck.layers import LAYERS
from refcheck.parity import parity

PAGE = """---
description: d
---

# Title { #title }

Prose with [= form("eager") =].

## Forward { #forward }

$$
y = xW
$$

!!! pitfall "one"

    text

```python exec="on"
print(1)
```

| a | b |
| --- | --- |
| 1 | 2 |
"""
DIFFERENCES = {
    "a heading's id": ("{ #forward }", "{ #gradient }"),
    "a heading's level": ("## Forward", "### Forward"),
    "a heading more": ("## Forward", "## More { #more }\n\n## Forward"),
    "a sign in an equation": ("y = xW", "y = -xW"),
    "an equation less": ("$$\ny = xW\n$$\n", ""),
    "code": ("print(1)", "print(2)"),
    "whether code is run": ('python exec="on"', "python"),
    "a call": ('form("eager")', 'form("inplace")'),
    "a kind of remark": ("!!! pitfall", "!!! note"),
    "a row of a table": ("| 1 | 2 |\n", "| 1 | 2 |\n| 3 | 4 |\n"),
}


def test_pages_and_labs_are_as_they_should_be():
    assert [str(d) for d in pages.check_pages(LAYERS)] == []


@pytest.mark.parametrize("old, new", DIFFERENCES.values(), ids=DIFFERENCES)
def test_languages_that_differ(old, new):
    assert PAGE.count(old) == 1
    assert parity(PAGE, PAGE) == []
    assert parity(PAGE, PAGE.replace(old, new)) != []
    assert parity(PAGE.replace(old, new), PAGE) != []


def test_prose_and_titles_may_differ():
    other = PAGE.replace("Prose with", "带有").replace('"one"', '"一"').replace("# Title", "# 标题")
    assert parity(PAGE, other) == []


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """A small docs folder of one page in two languages."""
    for lang in ("zh", "en"):
        (tmp_path / lang).mkdir()
        (tmp_path / lang / "page.md").write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    return tmp_path


TYPED = [
    "It keeps 768 MiB.",
    "It keeps 768 MiB.",
    "共 1,024 字节。",
    "about 4.5 GB",
    "16 bytes per row",
    "a tensor of B×T×D",
    r"the shape $B \times h \times T \times T$",
    "a (B, T, D) tensor",
    "seen as (BT, D)",
]


@pytest.mark.parametrize("text", TYPED)
def test_sizes_typed_in_prose(docs, text):
    path = docs / "en" / "page.md"
    path.write_text(PAGE.replace("Prose with", f"{text} Prose with"), encoding="utf-8")
    found = list(pages.check_pages([]))
    assert {d.layer for d in found} == {"en/page.md:7"} and "typed" in found[0].measured


@pytest.mark.parametrize(
    "text", ["`(B, T, D)`", "[link](a_(B,_T)b)", "two tensors", "PyTorch 2.14", "CUDA 13.0", "$x$"]
)
def test_what_is_no_size(docs, text):
    path = docs / "en" / "page.md"
    path.write_text(PAGE.replace("Prose with", f"{text} Prose with"), encoding="utf-8")
    assert list(pages.check_pages([])) == []


@pytest.mark.parametrize("lang, twin", [("zh", "en"), ("en", "zh")])
def test_a_page_without_its_twin(docs, lang, twin):
    (docs / twin / "page.md").unlink()
    assert [d.claimed for d in pages.check_pages([])] == [f"docs/{twin}/page.md"]


def test_a_layer_without_its_pages_and_lab(docs):
    wanted = {f"docs/{path}" for path in ("zh/layers/softmax.md", "en/layers/softmax.md", "lab/softmax.py")}
    layer = next(x for x in LAYERS if x.id == "softmax")
    assert {d.claimed for d in pages.check_pages([layer])} == wanted

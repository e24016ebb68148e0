"""The pages: both languages have the same structure, and what differs, is missing or is typed by hand is named."""

import re
import shutil
from dataclasses import replace

import pytest

from refcheck import pages
from refcheck.evidence import read_all
from refcheck.layers import LAYERS
from refcheck.parity import parity

RECORD = next(iter(read_all().values()))
PAGE = """---
description: d
---

# Title { #title }

Prose with [= form("eager") =], in bf16, since $x = (y - b) / w$.

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
    "an equation in prose": ("(y - b)", "(y + b)"),
    "a dtype in prose": ("bf16", "fp32"),
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
    assert parity(PAGE, PAGE.replace("in bf16, since $x = (y - b) / w$", "由 $x=(y-b)/w$，bf16 还是 bf16")) == []


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
    "5BhT² bytes",
    "altogether $5BhT^2$",
    r"that is $2\,B\,T\,D$",
    "2*B*T*D in all",
]


@pytest.mark.parametrize("text", TYPED)
def test_sizes_typed_in_prose(docs, text):
    path = docs / "en" / "page.md"
    path.write_text(PAGE.replace("Prose with", f"{text} Prose with"), encoding="utf-8")
    found = list(pages.check_pages([]))
    assert {d.layer for d in found} == {"en/page.md:7"} and "typed" in found[0].measured


@pytest.mark.parametrize(
    "text",
    ["`(B, T, D)`", "[link](a_(B,_T)b)", "two tensors", "PyTorch 2.14", "CUDA 13.0", "$x$", "Llama-3-8B has", "2T"],
)
def test_what_is_no_size(docs, text):
    path = docs / "en" / "page.md"
    path.write_text(PAGE.replace("Prose with", f"{text} Prose with"), encoding="utf-8")
    assert list(pages.check_pages([])) == []


def test_sizes_typed_in_the_description(docs):
    (docs / "zh" / "page.md").write_text(PAGE.replace("description: d", "description: 768 MiB"), encoding="utf-8")
    assert [d.layer for d in pages.check_pages([])] == ["zh/page.md:2"]


@pytest.mark.parametrize("fence", ["```python", "```py", '    ```python result="text"'])
def test_code_that_is_never_run(docs, fence):
    for lang in ("zh", "en"):
        text = PAGE.replace("print(1)\n```\n", f"print(1)\n```\n\n{fence}\nprint(2)\n{fence[: fence.index('p')]}\n")
        (docs / lang / "page.md").write_text(text, encoding="utf-8")
    assert {(d.layer, d.measured) for d in pages.check_pages([])} == {
        (f"{lang}/page.md:23", fence.strip()) for lang in ("zh", "en")
    }


MEASURED = [
    "It was measured on a GPU.",
    "Measured on a real GPU: it fits.",
    "以上都在 GPU 上实测过。",
    "这些是 GPU 实测。",
]


@pytest.mark.parametrize("text", MEASURED)
def test_a_measurement_that_nobody_made(docs, text, monkeypatch):
    (docs / "en" / "page.md").write_text(PAGE.replace("Prose", f"{text} Prose"), encoding="utf-8")
    (docs / "README.md").write_text(f"# Title\n\n{text}\n", encoding="utf-8")
    assert {(d.layer, d.what) for d in pages.check_pages([])} == {("en/page.md:7", "word"), ("README.md:3", "word")}
    record = replace(RECORD, environment=replace(RECORD.environment, device="cuda"))
    monkeypatch.setattr(pages, "read_all", lambda: {"gpu": record})
    assert list(pages.check_pages([])) == []


@pytest.mark.parametrize("text", ["It is **not yet measured on a GPU**.", "尚未在 GPU 上实测。", "没有 GPU 实测。"])
def test_a_measurement_that_is_missed(docs, text):
    (docs / "en" / "page.md").write_text(PAGE.replace("Prose", f"{text} Prose"), encoding="utf-8")
    assert list(pages.check_pages([])) == []


@pytest.mark.parametrize("lang, twin", [("zh", "en"), ("en", "zh")])
def test_a_page_without_its_twin(docs, lang, twin):
    (docs / twin / "page.md").unlink()
    assert [d.claimed for d in pages.check_pages([])] == [f"docs/{twin}/page.md"]


def test_a_layer_without_its_pages_and_lab(docs):
    wanted = {f"docs/{path}" for path in ("zh/layers/softmax.md", "en/layers/softmax.md", "lab/softmax.py")}
    layer = next(x for x in LAYERS if x.id == "softmax")
    assert {d.claimed for d in pages.check_pages([layer])} == wanted


@pytest.mark.parametrize("part", [*(f"{{ #{s} }}" for s in pages.SECTIONS), *(f"[= {c}() =]" for c in pages.CALLS)])
def test_a_layer_page_that_lacks_a_part(part, tmp_path, monkeypatch):
    for name in ("zh/layers/softmax.md", "en/layers/softmax.md", "lab/softmax.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (pages.DOCS / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace(part, ""), encoding="utf-8")
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    layer = next(x for x in LAYERS if x.id == "softmax")
    assert {(d.layer, d.claimed) for d in pages.check_pages([layer])} == {
        (f"{lang}/layers/softmax.md", part) for lang in ("zh", "en")
    }


def test_a_size_typed_in_a_lab(tmp_path, monkeypatch):
    for name in ("zh/layers/softmax.md", "en/layers/softmax.md", "lab/softmax.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pages.DOCS / name, tmp_path / name)
    lab = tmp_path / "lab" / "softmax.py"
    lab.write_text(f"# It keeps 768 MiB.\n{lab.read_text(encoding='utf-8')}", encoding="utf-8")
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    layer = next(x for x in LAYERS if x.id == "softmax")
    assert [(d.layer, d.measured) for d in pages.check_pages([layer])] == [("lab/softmax.py:1", "typed: 768 MiB")]


# What an equation marks as needed, in the notation of the pages, and its name in the code.
SYMBOLS = {
    **{r"\hat x": "x_hat", r"\tilde P": "P_dropped", r"\mathrm{tok}": "tokens", "r": "rstd", "X": "x"},
    **{r"\hat Q": "Q_hat", r"\hat K": "K_hat", "r_Q": "rstd_Q", "r_K": "rstd_K"},
    **{r"\cos\theta": "cos", r"\sin\theta": "sin"},
    **{"x_n": "x_e", "a_n": "a_e", "g_n": "g_e", "o_n": "o_e", "z_{1,n}": "z1_e", "z_{2,n}": "z2_e"},
    **{r"\alpha_n": "alpha_e", "s_n": "slot", r"\tau_n": "token", "e_n": "offs", "c_j": "choice"},
    **{rf"W_{{\mathrm{{{name}}}}}": f"W_{name}_e" for name in ("gate", "up", "down")},
}
# A page may write what is needed in another way: computed from it, as a part of it, or for tied weights.
COMPUTED = {
    "rmsnorm": {"x_hat": "x rstd"},
    "final-norm": {"x_hat": "x mean rstd"},
    "layernorm-linear": {"x_hat": "x mean rstd"},
    "cross-entropy": {"p": "logp", "w": "t"},
    "qk-norm": {"Q_hat": "Q rstd_Q", "K_hat": "K_g rstd_K"},
    "out-proj": {"W_k": "W_O"},
    "lm-head": {"x_final": "x", "tokens": "W_vocab"},
}
MARK = re.compile(r"\\needed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")


def marked(text, layer):
    """The names of what a page's equations mark as needed."""
    known = {name for pair in layer.pairs for name in pair.needed} | COMPUTED.get(layer.id, {}).keys()
    for symbol in MARK.findall(text):
        symbol = symbol.strip()
        base = re.sub(r"_(\{[^{}]*\}|\w)$", "", symbol)
        plain = [
            re.sub(r"\\(mathrm|log|,)|[{}\s\\]", lambda m: "log" if m[1] == "log" else "", s) for s in (symbol, base)
        ]
        plain += [re.sub(r"_(\d)$", r"\1", plain[0]), re.sub(r"^(\w)\^(\w)$", r"\1_\2", plain[1])]
        names = [SYMBOLS.get(symbol), SYMBOLS.get(base), *plain]
        yield next((name for name in names if name in known), symbol)


def unlike(text, layer):
    """What is marked and not needed; then what is needed and not marked, for the pair that comes closest."""
    computed = COMPUTED.get(layer.id, {})
    names = set(marked(text, layer))
    needed = {name for pair in layer.pairs for name in pair.needed}
    parameters = {name for pair in layer.pairs for name, i in pair.inputs.items() if i.cls == "parameter"}
    given = names | {part for name in names for part in computed.get(name, "").split()}
    beside = [needs for pair in layer.pairs if (needs := set(pair.needed) - parameters)]
    missing = min((needs - given for needs in beside), key=len, default=set())
    return names - needed - computed.keys(), missing


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.id)
def test_what_equations_mark_as_needed_is_what_a_pair_needs(layer, lang):
    text = (pages.DOCS / lang / "layers" / f"{layer.id}.md").read_text(encoding="utf-8")
    assert unlike(text, layer) == (set(), set())
    for name in ("x_other", "y"):
        if not any(name in pair.needed for pair in layer.pairs):
            assert unlike(rf"{text} $\needed{{{name}}}$", layer)[0] == {name}
    if any(pair.needed for pair in layer.pairs):
        assert unlike(MARK.sub(r"\1", text), layer)[1] or not any(
            i.cls != "parameter" for pair in layer.pairs for n, i in pair.inputs.items() if n in pair.needed
        )

"""What the pages show, read back: every cell is the claim, in both languages; sizes and words are the right ones."""

import re
import tomllib
from dataclasses import replace
from functools import reduce
from operator import mul

import pytest
import torch
from sympy import Integer, ceiling, expand, symbols, sympify

from refcheck import check, cite, rows, tables
from refcheck.blocks import BLOCKS
from refcheck.evidence import ROOT, Record, Row, parse, read_all, source_hash
from refcheck.layers import LAYERS
from refcheck.measure import sizes_of
from refcheck.notation import human, shape_of, tex
from refcheck.saved import Allocated, Run, device_bytes, host_bytes, on
from refcheck.sizes import DTYPES, ITEMSIZE, B, D, M, T, at_sizes, d, g, h
from refcheck.spec import absence
from refcheck.tables import MODELS
from refcheck.words import CITE, DEVICE, SHORT, WORDS

LANGS = pytest.mark.parametrize("lang", ["zh", "en"])
EACH = pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.id)
LONG = {short: long for long, short in SHORT.items()}


# --- how a cell is read ---------------------------------------------------------------------------------------------


def untex(text):
    r"""The closed form that `$2B T D + 8B \lceil T / 32 \rceil$` says."""
    total = Integer(0)
    for signed in re.sub(r" - ", " + -", text.strip("$")).split(" + "):
        sign, term = (-1, signed[1:]) if signed.startswith("-") else (1, signed)
        over, *under = re.sub(r"\\lceil.*?\\rceil", "", term).split(" / ")
        rounded = re.findall(r"\\lceil (.*?) / (\d+) \\rceil", term)
        product = sympify(reduce(mul, (ceiling(untex(top) / int(bottom)) for top, bottom in rounded), Integer(1)))
        total += sign * product * _product(over) / reduce(mul, map(_product, under), Integer(1))
    return same(total)


def _product(text):
    assert re.fullmatch(r"-?(\d+)?( ?[BEkghTdDMRV](\^\d+)?)* *", text), text
    number = re.match(r"-?\d+", text)
    product = Integer(number[0]) if number else Integer(1)
    for name, power in re.findall(r"([BEkghTdDMRV])(?:\^(\d+))?", text):
        product *= symbols(name, integer=True, positive=True) ** int(power or 1)
    return product


def same(form):
    return expand(sympify(form).subs(D, h * d))


def unshape(text, lang):
    if text == WORDS[lang]["scalar"]:
        return ()
    return tuple(untex(n.strip("()")) for n in text.strip("$").split(r" \times "))


def unhuman(text):
    """(bytes, by how much they may be rounded)."""
    number, unit = text.split()
    factor = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    assert 1 <= float(number) < 1024 or factor == 1 or float(number) == 1024
    return float(number) * factor, 0.00500001 * factor if "." in number else 0


def cells(markdown):
    """The rows of the first table, its head first and without its ruler."""
    lines = [line for line in markdown.split("\n") if line.startswith("|")]
    head, _, *body = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return head, body


def claimed(implementation, device, dtype="bfloat16"):
    return () if absence(implementation, device, dtype) else implementation.claim(device, dtype)


def short(dtype):
    return SHORT.get(dtype, dtype)


# --- notation -------------------------------------------------------------------------------------------------------

FORMS = [
    0,
    1,
    8,
    B,
    2 * B * T * D + 8 * B * T,
    B * h * T**2,
    5 * B * h * T**2 + 34 * B * T * h * d,
    3 * M * D**2,
    B - 2 * T,
    h / g,
    128 * B * h * ceiling(T / 32) + 2 * B * T * D,
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_closed_form_says_what_it_is(form):
    assert untex(f"${tex(form)}$") == same(form)


def test_a_closed_form_is_written_in_the_order_of_the_text():
    assert tex(2 * B * T * h * d + 8 * B * T) in ("2B T D + 8B T", "8B T + 2B T D")
    assert tex(B * h * T**2) == "B h T^2"
    assert shape_of((B, h, T, T), "en") == r"$B \times h \times T \times T$"
    assert shape_of((T, B), "en") != shape_of((B, T), "en")
    assert shape_of((B, g, h / g, T), "en") == r"$B \times g \times (h / g) \times T$"


@pytest.mark.parametrize(
    "n, text",
    {
        0: "0 B",
        1023: "1023 B",
        1024: "1 KiB",
        1536: "1.50 KiB",
        768 * 2**20: "768 MiB",
        2**30: "1 GiB",
        3 * 2**40: "3 TiB",
        2**20 + 2**14: "1.02 MiB",
    }.items(),
)
def test_bytes_with_a_unit(n, text):
    assert human(n) == text


def test_an_element_is_as_large_as_torch_says():
    assert {name: getattr(torch, name).itemsize for name in ITEMSIZE} == ITEMSIZE


def test_the_models_have_their_published_sizes():
    """Grattafiori et al. 2024, table 3; Brown et al. 2020, table 2.1; Jiang et al. 2024, table 1."""
    assert {
        "Llama-3-8B": dict(B=1, T=8 * 1024, D=4096, h=32, d=4096 // 32, M=14336, V=128_000 + 256, g=8, R=16),
        "GPT-3": dict(B=1, T=2048, D=12288, h=96, d=12288 // 96, M=4 * 12288, V=50_000 + 256 + 1, g=96, R=16),
        "Mixtral-8x7B": dict(B=1, T=32 * 1024, D=4096, h=32, d=4096 // 32, M=14336, V=32_000, g=8, R=16, E=8, k=2),
    } == MODELS


def sizes_in(layer):
    shapes = (i.shape for pair in layer.pairs for i in pair.inputs.values())
    return {str(s) for shape in shapes for n in shape for s in sympify(n).free_symbols}


def models_of(layer):
    """Models that have experts if the layer has, else those that have none."""
    return {model: sizes for model, sizes in MODELS.items() if ("E" in sizes) == ("E" in sizes_in(layer))}


# --- a layer's page -------------------------------------------------------------------------------------------------


@LANGS
@EACH
def test_saved(layer, lang):
    sections = re.split(r"^### .*?#saved-([\w-]+) \}$", tables.saved(layer, lang), flags=re.M)[1:]
    assert sections[::2] == [i.id for i in layer.implementations]
    for n, (implementation, text) in enumerate(zip(layer.implementations, sections[1::2], strict=True)):
        head, (*body, total) = cells(text)
        assert head[2:4] == ["CUDA (bf16)", "CPU (bf16)"]
        assert f'id="saved-{implementation.id}-total"' in total[0]
        for column, device in ((2, "cuda"), (3, "cpu")):
            kept = {s.name: s for s in claimed(implementation, device)}
            shown = {re.search(r"`(.*?)`", row[0])[1]: row for row in body}
            assert {name for name, row in shown.items() if row[column] != "—"} == kept.keys()
            for name, s in kept.items():
                row = shown[name]
                dtype, form = row[column].split(" · ")
                assert (dtype, untex(form)) == (short(s.dtype), same(s.nbytes))
                assert unshape(row[1], lang) == tuple(map(same, s.shape))
                also = ("，" if lang == "zh" else ", ") + WORDS[lang]["output"] if "output" in s.shared_with else ""
                assert WORDS[lang][s.cls] + also in row[4].split(" · ")
                assert f"`{s.node}.{s.attr}`" in row[5] and f"#saved-{implementation.id}-{name} " in row[0]
                assert (f'<span id="saved-{name}"></span>' in row[0]) == (n == 0)
                unneeded = {e.name for e in implementation.saves(device).without_need}
                assert (".unneeded" in row[0]) >= (name in unneeded)
            if absence(implementation, device, "bfloat16"):
                assert total[column] == "—"
            else:
                assert untex(total[column]) == same(device_bytes(kept.values()))


@LANGS
@EACH
def test_needed(layer, lang):
    _, body = cells(tables.needed(layer, lang))
    assert [row[0] for row in body] == [f"`{pair.id}`{{ #needed-{pair.id} }}" for pair in layer.pairs]
    for row, pair in zip(body, layer.pairs, strict=True):
        listed = re.findall(r"`(\w+)`\{ \.needed \} (\$.*?\$|\S+)", row[1].replace("、", " "))
        wanted = {n: tuple(map(same, pair.symbolic[1][n].shape)) for n in pair.needed}
        assert {n: unshape(s.rstrip(","), lang) for n, s in listed} == wanted
        for i in layer.implementations:
            assert (i.title[lang] in row[2]) or pair not in i.pairs


@LANGS
@EACH
def test_nbytes(layer, lang):
    head, body = cells(tables.nbytes(layer, lang).partition("\n\n")[0])
    models = models_of(layer)
    assert head[2:] == ["bf16", "fp16", "fp32", *(f"{model}, bf16" for model in models)]
    shown = {}
    for cell, where, *row in body:
        address, title = re.fullmatch(r'<span id="(bytes-[\w-]+)">(.*)</span>', cell).groups()
        for name in where.split(" = "):
            shown[title, name] = row
        assert address.endswith(f"-{where.split(' = ')[0].lower()}")
    for i in layer.implementations:
        for device, name in DEVICE.items():
            if absence(i, device, "bfloat16"):
                assert (i.title[lang], name) not in shown
                continue
            row = shown[i.title[lang], name]
            for dtype, cell in zip(DTYPES, row, strict=False):
                kept = claimed(i, device, dtype)
                assert cell == "—" if absence(i, device, dtype) else untex(cell) == same(device_bytes(kept))
            for cell, sizes in zip(row[len(DTYPES) :], models.values(), strict=True):
                value, rounded = unhuman(cell)
                assert abs(value - at_sizes(device_bytes(claimed(i, device)), sizes)) <= rounded
    for model, sizes in models.items():
        listed = ", ".join(f"{n} = {v}" for n, v in sizes.items() if n in sizes_in(layer))
        assert f"- {model}: ${listed}$" in tables.nbytes(layer, lang)


@EACH
def test_what_stands_in_a_line(layer):
    for i in layer.implementations:
        for device in DEVICE:
            for dtype in DTYPES:
                if absence(i, device, dtype):
                    continue
                kept = claimed(i, device, dtype)
                assert untex(tables.form(layer, "en", i.id, device, dtype)) == same(device_bytes(kept))
                for s in kept:
                    assert untex(tables.form(layer, "en", i.id, device, dtype, s.name)) == same(s.nbytes)
                    assert tables.dtype(layer, "en", i.id, device, dtype, s.name) == short(s.dtype)
                    for model, sizes in models_of(layer).items():
                        value, rounded = unhuman(tables.size(layer, "en", i.id, device, dtype, model, s.name))
                        assert abs(value - at_sizes(s.nbytes, sizes)) <= rounded
    for pair in layer.pairs:
        for name, i in pair.inputs.items():
            assert unshape(tables.shape(layer, "en", name, pair.id), "en") == tuple(map(same, i.shape))


# --- the table of all -----------------------------------------------------------------------------------------------

HEADS = {
    "zh": ["层", "实现", "", "需要", "保存", "字节", "实测"],
    "en": ["Layer", "Implementation", "", "Needed", "Saved", "Bytes", "Measured"],
}


@LANGS
@EACH
def test_summary(layer, lang):
    head, body = cells(tables.summary(lang, [layer]))
    assert head == HEADS[lang]
    shown = {}
    for row in body:
        for name in row[2].split(", "):
            shown[re.search(r"#saved-([\w-]+)\)", row[1])[1], name] = row
    wanted = {(i.id, n) for i in layer.implementations for d, n in DEVICE.items() if not absence(i, d, "bfloat16")}
    assert shown.keys() == wanted
    for i in layer.implementations:
        for device, name in DEVICE.items():
            if (i.id, name) not in shown:
                continue
            row = shown[i.id, name]
            pair = i.saves(device).pair
            kept = [s for s in claimed(i, device) if s.cls != "parameter"]
            assert row[0] == f"[{layer.title[lang]}](layers/{layer.id}.md)"
            assert re.findall(r"`(\w+)`", row[3]) == [
                n for n in pair.needed if n not in pair.inputs or pair.inputs[n].cls != "parameter"
            ]
            found = re.findall(r"`(\w+)`\{ \.saved \} (\w+) (\$.*?\$|\S+?)(?=<br>|$)", row[4])
            assert [(n, t, unshape(s, lang)) for n, t, s in found] == [
                (s.name, short(s.dtype), tuple(map(same, s.shape))) for s in kept
            ]
            assert untex(row[5]) == same(device_bytes(kept))


@LANGS
@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.id)
def test_block(block, device, lang):
    claim = block.implementations[0].claim(device, "bfloat16")
    kept = {s.name: s for s in claim if device_bytes([s]) != 0}
    shown_table, _, total = tables.block(lang, block.id, device).rpartition("\n\n")
    _, body = cells(shown_table)
    shown = [row for row in body if row[1] != WORDS[lang]["nothing"]]
    assert [re.match(r"`(\w+)`", row[1])[1] for row in shown] == [*kept]
    for row, s in zip(shown, kept.values(), strict=True):
        assert (unshape(row[2], lang), row[3]) == (tuple(map(same, s.shape)), short(s.dtype))
        assert untex(row[4]) == same(s.nbytes)
    (total,) = re.findall(r"\$.*\$", total)
    assert untex(total) == same(device_bytes(kept.values())) == same(sum(untex(row[4]) for row in body))
    assert untex(tables.block_form(lang, block.id, device)) == untex(total)
    assert untex(tables.block_form(lang, block.id, device, minus="2*B*T*D")) == untex(total) - same(2 * B * T * D)
    for model, sizes in MODELS.items():
        value, rounded = unhuman(tables.block_size(lang, block.id, model, device))
        assert abs(value - at_sizes(device_bytes(kept.values()), sizes)) <= rounded


# --- what stands behind it ------------------------------------------------------------------------------------------

SOFTMAX = next(layer for layer in LAYERS if layer.id == "softmax")


@pytest.fixture
def records(monkeypatch):
    """Other records than the committed ones; what was worked out from those is forgotten before and after."""

    def put(found):
        rows.supported.cache_clear()
        for module in (rows, tables):
            monkeypatch.setattr(module, "records", lambda: found)

    yield put
    rows.supported.cache_clear()


def test_only_what_agrees_stands_behind_a_row(records):
    known = read_all()
    assert {d: bool(names) for d, names in rows.supported(SOFTMAX).items()} == {
        d: any(r.environment.device == d for r in known.values()) for d in ("cpu", "cuda-trace", "cuda")
    }
    stale = {n: replace(r, rows=tuple(replace(row, source="0") for row in r.rows)) for n, r in known.items()}
    records(stale)
    assert not any(rows.supported(SOFTMAX).values())
    assert tables.summary("en", [SOFTMAX]).count(" missing") >= 3 * len(SOFTMAX.implementations)


FUSED = next(layer for layer in LAYERS if layer.id == "linear-cross-entropy")


@LANGS
def test_a_record_of_a_torch_that_lacks_an_implementation_says_so(lang):
    eager, reference, chunked, *_ = FUSED.implementations
    old = {n for n, r in read_all().items() if r.environment.torch < "2.13" or r.environment.torch.startswith("2.9.")}
    new = {n for n, r in read_all().items() if r.environment.device == "cpu"} - old
    assert old and set(rows.behind(FUSED, eager, "cpu", "bfloat16")) == old | new
    assert set(rows.behind(FUSED, chunked, "cpu", "bfloat16")) == new
    _, body = cells(tables.evidence(FUSED, lang).partition("\n<span")[0])
    for row in body:
        lacks = row[1].partition(WORDS[lang]["lacks"])[2]
        assert (reference.title[lang] in lacks and chunked.title[lang] in lacks) == (
            re.search(r"torch-[\d.]+-[\w.-]+", row[4])[0].removesuffix(".json") in old
        )
        assert eager.title[lang] not in lacks.split(WORDS[lang]["lacks"])


def test_a_record_that_lacks_an_implementation_stands_not_behind_it(records):
    records({n: r for n, r in read_all().items() if r.environment.torch.startswith("2.9.")})
    shown = {i.id: tables._badges(FUSED, i, "cpu") for i in FUSED.implementations[:3]}
    assert {name for name, badge in shown.items() if " missing" in badge} == {"reference", "chunked"}


def on_a_gpu(layer):
    """A record as a GPU would have to write it, so that it agrees with what is claimed."""
    trace = next(r for r in read_all().values() if r.environment.device == "cuda-trace")
    found = []
    for case in check.cases([layer], "cuda"):
        _, implementation, dtype = case
        runs = []
        for sizes in sizes_of(implementation, "cuda"):
            saved = tuple(
                replace(s, shape=tuple(Integer(at_sizes(n, sizes)) for n in s.shape), nbytes=at_sizes(s.nbytes, sizes))
                for s in implementation.claim("cuda", dtype)
            )
            kept = sum(s.nbytes for s in on("cuda", saved))
            runs.append(Run(sizes, saved, allocator=Allocated(kept, 512 * len(saved))))
        found.append(Row(*check.key(*case), source_hash(layer), tuple(runs)))
    return Record(replace(trace.environment, device="cuda", gpu="GPU"), tuple(found))


@LANGS
def test_what_was_not_measured_on_a_gpu_says_so(records, lang):
    known = {n: r for n, r in read_all().items() if r.environment.device != "cuda"}
    records(known)
    assert WORDS[lang]["not on a GPU"] in tables.evidence(SOFTMAX, lang)
    records(known | {"gpu": on_a_gpu(SOFTMAX)})
    assert WORDS[lang]["not on a GPU"] not in tables.evidence(SOFTMAX, lang)


def test_the_words_for_what_is_missing():
    assert (WORDS["zh"]["not on a GPU"], WORDS["en"]["not on a GPU"]) == (
        "尚未在 GPU 上实测",
        "not yet measured on a GPU",
    )
    assert SHORT == {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
    assert DEVICE == {"cuda": "CUDA", "cpu": "CPU"}


@LANGS
def test_the_citation_has_the_newest_date_and_the_version(lang):
    text = cite.cite(SOFTMAX, lang)
    newest = max(r.environment.date for r in read_all().values())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"year = {{{newest[:4]}}}" in text and f"{CITE[lang]['version']} {version}" in text
    assert ("en/" if lang == "en" else "") + "layers/softmax/" in text


# --- for programs ---------------------------------------------------------------------------------------------------


def test_rows_are_the_claims():
    for row in rows.rows():
        (layer,) = (x for x in (*LAYERS, *BLOCKS) if x.id == row["layer"])
        (i,) = (x for x in layer.implementations if x.id == row["implementation"])
        device = row["environment"]
        kept = claimed(i, device, row["dtype"])
        assert row["absent"] == absence(i, device, row["dtype"])
        assert [(s["name"], s["dtype"], s["class"]) for s in row["saved"]] == [(s.name, s.dtype, s.cls) for s in kept]
        assert [parse(s["bytes"]) for s in row["saved"]] == [expand(s.nbytes) for s in kept]
        if not row["absent"]:
            assert row["needed"] == list(i.needed(device))
            assert parse(row["bytes"]) == expand(device_bytes(kept))
            assert parse(row["host_bytes"]) == expand(host_bytes(kept))

"""Claims and records as what people and programs read: rows of JSON, CSV, and the Markdown of the pages.

A page calls the functions whose first parameters are ``(layer, lang)`` or ``(lang)``; see `refcheck.site`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from sympy import Expr, sympify

from refcheck import errata as article
from refcheck.block import Block
from refcheck.blocks import BLOCKS
from refcheck.evidence import ROOT, parse
from refcheck.layers import LAYERS
from refcheck.notation import chip, chips, human, shape_of, table, tex
from refcheck.rows import records, supported
from refcheck.saved import ON_DEVICE, Saved, device_bytes
from refcheck.sizes import DTYPES, B, D, M, T, V, at_sizes, d, h
from refcheck.spec import Implementation, Layer, Pair, absence, claim
from refcheck.words import DEVICE, SHORT, WORDS

# One sequence of full length.  Llama 3: Grattafiori et al. 2024, table 3; GPT-3: Brown et al. 2020, table 2.1.
MODELS: Mapping[str, Mapping[str, int]] = {
    "Llama-3-8B": {"B": 1, "T": 8192, "D": 4096, "h": 32, "d": 128, "M": 14336, "V": 128256},
    "GPT-3": {"B": 1, "T": 2048, "D": 12288, "h": 96, "d": 128, "M": 49152, "V": 50257},
}


def _badges(layer: Layer | Block, device: str) -> str:
    """Which of the three environments stand behind a row: cpu; or traced and GPU."""
    found = supported(layer)
    shown = (("cpu", "cpu", "cpu"),) if device == "cpu" else (("cuda-trace", "trace", "traced"), ("cuda", "gpu", "GPU"))
    return " ".join(f'<span class="env {css}{"" if found[d] else " missing"}">{text}</span>' for d, css, text in shown)


# --- for a layer's page ---------------------------------------------------------------------------------------------


def _implementation(layer: Layer, name: str) -> Implementation:
    return next(i for i in layer.implementations if i.id == name)


def _pair(layer: Layer, name: str | None) -> Pair:
    return layer.pairs[0] if name is None else next(p for p in layer.pairs if p.id == name)


def source(layer: Layer, lang: str, pair: str | None = None) -> str:
    """The text of a pair's two functions, as it is in the module."""
    return f"```python\n{_pair(layer, pair).source.rstrip()}\n```"


def needed(layer: Layer, lang: str) -> str:
    """Each pair of formulas, and the tensors that its backward reads."""
    words = WORDS[lang]
    body = []
    for pair in layer.pairs:
        saved = pair.symbolic[1]
        users = ", ".join(_user(i, pair, lang) for i in layer.implementations if pair in i.pairs)
        tensors = "、" if lang == "zh" else ", "
        listed = tensors.join(f"{chip(n, 'needed')} {shape_of(saved[n].shape, lang)}" for n in pair.needed)
        body.append([f"`{pair.id}`", listed or words["nothing"], users])
    return table([words["pair"], words["needed"], words["implementation"]], body)


def _user(implementation: Implementation, pair: Pair, lang: str) -> str:
    """An implementation that uses this pair, with the device where it is only one of them."""
    only = [DEVICE[d] for d in DEVICE if implementation.saves(d).pair is pair]
    return implementation.title[lang] + (f" ({only[0]})" if len(implementation.pairs) > 1 else "")


def saved(layer: Layer, lang: str) -> str:
    """What each implementation keeps, on CUDA and on the CPU, with the place that holds it and the evidence."""
    parts = []
    for n, implementation in enumerate(layer.implementations):
        parts.append(f"### {implementation.title[lang]} {{ #saved-{implementation.id} }}\n\n")
        parts.append(
            _saved_table(layer, implementation, lang, prefix="saved" if n == 0 else f"saved-{implementation.id}")
        )
    return "\n".join(parts)


def _saved_table(layer: Layer, implementation: Implementation, lang: str, prefix: str) -> str:
    words = WORDS[lang]
    claims = {device: {s.name: s for s in _claim(implementation, device)} for device in DEVICE}
    names = list(dict.fromkeys(name for kept in claims.values() for name in kept))
    extras = {e.name: e for d in DEVICE for e in implementation.saves(d).without_need}
    body = []
    for name in names:
        cells = []
        for kept in claims.values():
            s = kept.get(name)
            cells.append(f"{SHORT.get(s.dtype, s.dtype)} · ${tex(s.nbytes)}$" if s else "—")
        s = next(kept[name] for kept in claims.values() if name in kept)
        kinds = list(dict.fromkeys(_kind(kept[name], lang) for kept in claims.values() if name in kept))
        places = list(
            dict.fromkeys(f"`{kept[name].node}.{kept[name].attr}`" for kept in claims.values() if name in kept)
        )
        label = chip(name, "unneeded" if name in extras else "saved", f"{prefix}-{name}")
        body.append([label, shape_of(s.shape, lang), *cells, " · ".join(kinds), " · ".join(places)])
    totals = [
        "—" if absence(implementation, device, "bfloat16") else f"${tex(device_bytes(kept.values()))}$"
        for device, kept in claims.items()
    ]
    body.append(
        [
            words["total"],
            "",
            *totals,
            "",
            " ".join(_badges(layer, d) for d in DEVICE if not absence(implementation, d, "bfloat16")),
        ]
    )
    head = [words["tensor"], words["shape"], "CUDA (bf16)", "CPU (bf16)", words["class"], words["place"]]
    notes = "".join(f"\n- {chip(e.name, 'unneeded')} {e.reason[lang]}" for e in extras.values())
    return table(head, body, right=(2, 3)) + (f"\n{words['without need']}:\n{notes}\n" if notes else "")


def _kind(s: Saved, lang: str) -> str:
    """What a kept tensor is, and whether it is the output too; a copy in another dtype is no input any more."""
    words = WORDS[lang]
    also = ("，" if lang == "zh" else ", ") + words["output"] if "output" in s.shared_with else ""
    return words[s.cls] + also


def _claim(implementation: Implementation, device: str, dtype: str = "bfloat16") -> tuple[Saved, ...]:
    """The claim, empty where the implementation can't run."""
    return () if absence(implementation, device, dtype) else claim(implementation, device, dtype)


def form(
    layer: Layer,
    lang: str,
    implementation: str,
    device: str,
    dtype: str,
    tensor: str | None = None,
    of: str | None = None,
) -> str:
    """A closed form in bytes, inline: of everything an implementation keeps, or of one tensor; `of` another layer."""
    return f"${tex(_bytes(_layer(layer, of), implementation, device, dtype, tensor))}$"


def size(
    layer: Layer,
    lang: str,
    implementation: str,
    device: str,
    dtype: str,
    model: str,
    tensor: str | None = None,
    of: str | None = None,
) -> str:
    """The same at a model's sizes, with a binary unit."""
    return human(at_sizes(_bytes(_layer(layer, of), implementation, device, dtype, tensor), MODELS[model]))


def dtype(
    layer: Layer, lang: str, implementation: str, device: str, activation: str, tensor: str, of: str | None = None
) -> str:
    """The dtype in which a tensor is kept where activations have dtype `activation`, inline."""
    kept = claim(_implementation(_layer(layer, of), implementation), device, activation)
    return next(SHORT.get(s.dtype, s.dtype) for s in kept if s.name == tensor)


def shape(layer: Layer, lang: str, tensor: str, pair: str | None = None, of: str | None = None) -> str:
    """The shape of a tensor that the pair takes, saves or returns, inline."""
    chosen = _pair(_layer(layer, of), pair)
    output, kept, inputs = chosen.symbolic
    return shape_of({**chosen.outputs(output), **inputs, **kept}[tensor].shape, lang)


def _layer(layer: Layer, of: str | None) -> Layer:
    return layer if of is None else next(other for other in LAYERS if other.id == of)


def _bytes(layer: Layer, implementation: str, device: str, dtype: str, tensor: str | None) -> Expr:
    kept = claim(_implementation(layer, implementation), device, dtype)
    return device_bytes(kept) if tensor is None else next(s.nbytes for s in kept if s.name == tensor)


def nbytes(layer: Layer, lang: str) -> str:
    """Closed forms in each dtype, and worked out at two models' sizes in bf16."""
    words = WORDS[lang]
    body = []
    for implementation in layer.implementations:
        forms = {
            d: [None if absence(implementation, d, t) else device_bytes(claim(implementation, d, t)) for t in DTYPES]
            for d in DEVICE
            if not absence(implementation, d, "bfloat16")
        }
        same = len({str(f) for f in forms.values()}) < len(forms)
        for device in ["cuda"] if same else forms:
            worked = [human(at_sizes(forms[device][0] or 0, sizes)) for sizes in MODELS.values()]
            where = "CUDA = CPU" if same else DEVICE[device]
            cells = ["—" if f is None else f"${tex(f)}$" for f in forms[device]]
            body.append([implementation.title[lang], where, *cells, *worked])
    head = [words["implementation"], "", *(SHORT[t] for t in DTYPES), *(f"{m}, bf16" for m in MODELS)]
    return table(head, body, right=range(2, 2 + len(DTYPES) + len(MODELS))) + "\n" + models(lang)


def models(lang: str) -> str:
    """The sizes of the worked examples."""
    sizes = {m: ", ".join(f"{n} = {v}" for n, v in at.items()) for m, at in MODELS.items()}
    return "\n".join(f"- {m}: ${s}$" for m, s in sizes.items()) + "\n"


def evidence(layer: Layer, lang: str) -> str:
    """The records that hold this layer and agree with it, and plainly what is missing."""
    words = WORDS[lang]
    body = []
    for device, names in supported(layer).items():
        for name in names:
            e = records()[name].environment
            runs = records()[name].by_key[(layer.id, layer.implementations[0].id, DTYPES[0])].runs
            sizes = (
                words["symbols"]
                if not runs[0].sizes
                else "; ".join(
                    ", ".join(f"{n}={v}" for n, v in run.sizes.items() if n in _sizes_of(layer)) for run in runs
                )
            )
            css = {"cpu": "cpu", "cuda-trace": "trace", "cuda": "gpu"}[device]
            where = f'<span class="env {css}">{device}</span>'
            body.append([where, f"torch {e.torch}", sizes, e.date, f"[`{name}.json`](../evidence/{name}.json)"])
    text = table([words["environment"], "PyTorch", words["sizes"], words["date"], words["record"]], body)
    return (
        text
        if supported(layer)["cuda"]
        else f'{text}\n<span class="env gpu missing">GPU</span> {words["not on a GPU"]}\n'
    )


def _sizes_of(layer: Layer) -> set[str]:
    return {
        str(s) for pair in layer.pairs for i in pair.inputs.values() for n in i.shape for s in sympify(n).free_symbols
    }


# --- for the summary table ------------------------------------------------------------------------------------------


def summary(lang: str, layers: Iterable[Layer] = LAYERS, dtype: str = "bfloat16", link: str = "layers/{}.md") -> str:
    """The table: layer, implementation, needed, saved and bytes on CUDA and on the CPU, and what stands behind them."""
    words = WORDS[lang]
    body = []
    for layer in layers:
        for implementation in layer.implementations:
            by_device = {d: claim(implementation, d, dtype) for d in DEVICE if not absence(implementation, d, dtype)}
            same = len(by_device) == 2 and _same(*by_device.values())
            for device, kept in by_device.items():
                if device == "cpu" and same:
                    continue
                both = device == "cuda" and same
                body.append(_summary_row(layer, implementation, device, kept, both, lang, link))
    head = ["layer", "implementation", "", "needed", "saved", "bytes", "measured"]
    return table([words.get(h, h) for h in head], body, right=(5,))


def _same(a: Iterable[Saved], b: Iterable[Saved]) -> bool:
    return [(s.name, s.shape, s.dtype) for s in a] == [(s.name, s.shape, s.dtype) for s in b]


def _summary_row(
    layer: Layer, implementation: Implementation, device: str, kept: Iterable[Saved], both: bool, lang: str, link: str
) -> list[str]:
    page = link.format(layer.id)
    kept = [s for s in kept if s.cls != "parameter"]
    tensors = "<br>".join(
        f"{chip(s.name, 'saved')} {SHORT.get(s.dtype, s.dtype)} {shape_of(s.shape, lang)}" for s in kept
    )
    parameters = {n for n, i in implementation.saves(device).pair.inputs.items() if i.cls == "parameter"}
    wanted = [n for n in implementation.saves(device).pair.needed if n not in parameters]
    return [
        f"[{layer.title[lang]}]({page})",
        f"[{implementation.title[lang]}]({page}#saved-{implementation.id})",
        "CUDA, CPU" if both else DEVICE[device],
        chips(wanted, "needed", lang),
        tensors or WORDS[lang]["nothing"],
        f"${tex(device_bytes(kept))}$",
        " ".join(_badges(layer, d) for d in (DEVICE if both else [device])),
    ]


# --- for the page of blocks -----------------------------------------------------------------------------------------


def block(lang: str, name: str, device: str = "cuda", dtype: str = "bfloat16") -> str:
    """A block as the sum of its rows: part, tensor, shape, bytes; then the total, and what was measured of it."""
    words, found = WORDS[lang], _block(name)
    body: list[list[str]] = []
    seen: set[str] = set()
    for part in found.implementations[0].parts:
        link = f"[{part.layer.title[lang]}](layers/{part.layer.id}.md)"
        new = [s for s in part.claim(device, dtype) if s.cls in ON_DEVICE and s.name not in seen]
        seen.update(s.name for s in new)
        body += [
            [link, chip(s.name, "saved"), shape_of(s.shape, lang), SHORT.get(s.dtype, s.dtype), f"${tex(s.nbytes)}$"]
            for s in new
        ] or [[link, words["nothing"], "", "", "$0$"]]
    total = f"${tex(_kept(name, device, dtype))}$"
    body.append([words["total"], "", "", _badges(found, device), total])
    return table([words[w] for w in ("layer", "tensor", "shape", "dtype", "bytes")], body, right=(4,))


def block_form(
    lang: str, name: str, device: str = "cuda", dtype: str = "bfloat16", minus: str = "0", **sizes: str
) -> str:
    """What a block keeps, in bytes, less another closed form, with some sizes expressed by others (M="4*D")."""
    given = {symbol: parse(sizes[symbol.name]) for symbol in (B, T, D, h, d, M, V) if symbol.name in sizes}
    left = (_kept(name, device, dtype) - parse(minus)).subs(h * d, D).subs(given)
    return f"${tex(left)}$"


def block_size(lang: str, name: str, model: str, device: str = "cuda", dtype: str = "bfloat16") -> str:
    """What a block keeps at a model's sizes, with a binary unit."""
    return human(at_sizes(_kept(name, device, dtype), MODELS[model]))


def _block(name: str) -> Block:
    return next(b for b in BLOCKS if b.id == name)


def _kept(name: str, device: str, dtype: str) -> Expr:
    return device_bytes(claim(_block(name).implementations[0], device, dtype))


# --- for the errata -------------------------------------------------------------------------------------------------


def errata(lang: str, part: str) -> str:
    """The entries of the `principle`, of each `section` or of each row (`cell`) of the article, every one checked."""
    if article.mistakes():
        raise ValueError("; ".join(map(str, article.mistakes())))
    return "\n".join(_errata_group(group, lang) for group in article.GROUPS if group.id.partition("-")[0] == part)


def _errata_group(group: article.Group, lang: str) -> str:
    words, titles = WORDS[lang], {layer.id: layer.title[lang] for layer in LAYERS}
    body = []
    for entry in group.entries:
        name = f"[{words[entry.part]}](#{entry.id}){{ #{entry.id} .entry }}"
        shown = " ".join(f"`{statement.text}`" for statement in entry.shown)
        quote = f'<span lang="zh">{entry.quote}</span>'
        body.append([f"{name}<br>{_verdict(entry.verdict, lang)}", quote, getattr(entry, lang), shown])
    see = ("、" if lang == "zh" else ", ").join(f"[{titles[n]}](layers/{n}.md)" for n in group.layers.split())
    entries = table(["", *(words[w] for w in ("quote", "correction", "shown by"))], body)
    return f"### {getattr(group, lang)} {{ #{group.id} }}\n\n{words['see']} {see}\n{{ .see }}\n\n{entries}"


def errata_counts(lang: str) -> str:
    """How many entries have each verdict."""
    found = article.counts()
    body = [[*(str(n) for n in found.values()), str(sum(found.values()))]]
    return table([*(_verdict(v, lang) for v in found), WORDS[lang]["entries"]], body, right=range(len(found) + 1))


def _verdict(verdict: str, lang: str) -> str:
    return f'<span class="tag {verdict}">{WORDS[lang][verdict]}</span>'


# --- citing ---------------------------------------------------------------------------------------------------------


@cache
def _citation() -> dict[str, Any]:
    """CITATION.cff: title, version and authors stand there and nowhere else."""
    import yaml

    found: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    return found


def cite(layer: Layer, lang: str) -> str:
    """How to cite this page: as text, and as BibTeX."""
    title = f"{layer.title[lang]} · {_citation()['title']}"
    newest = max((r.environment.date for r in records().values()), default="")
    year, version = newest[:4], _citation()["version"]
    author = ", ".join(a["name"] for a in _citation()["authors"])
    path = ("" if lang == "zh" else "en/") + f"layers/{layer.id}/"
    entry = [f"@misc{{saved-for-backward-{layer.id},", f"  title = {{{title}}},", f"  author = {{{{{author}}}}},"]
    entry += [f"  year = {{{year}}},", f"  note = {{Version {version}, page {path}}}", "}"]
    return f"{author}. {title}. {version}, {year}, `{path}`.\n\n```bibtex\n" + "\n".join(entry) + "\n```\n"

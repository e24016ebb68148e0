"""Claims and records as what people and programs read: rows of JSON, CSV, and the Markdown of the pages.

A page calls the functions whose first parameters are ``(layer, lang)`` or ``(lang)``; see `refcheck.site`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from sympy import Expr, sympify

from refcheck import errata as article
from refcheck import models, score
from refcheck.block import Block
from refcheck.blocks import BLOCKS
from refcheck.draw import block_picture, layer_picture
from refcheck.evidence import parse
from refcheck.layers import LAYERS
from refcheck.notation import chip, chips, human, shape_of, table, tex
from refcheck.rows import behind, records, supported
from refcheck.saved import ON_DEVICE, Saved, device_bytes
from refcheck.sizes import DEVICES, DTYPES, D, at_sizes, d, h
from refcheck.spec import Implementation, Layer, Measured, Pair, absence, claim
from refcheck.words import CALCULATOR, DEVICE, MUTANTS, SHORT, WORDS

# Where forms are worked out, at one sequence of full length.  R is no size of a model: 16 is chosen.
MODELS: Mapping[str, Mapping[str, int]] = {
    name: dict(B=1, **{n: v for n, v in models.MODELS[name].items() if n != "L"}, R=16)
    for name in ("Llama-3-8B", "GPT-3", "Mixtral-8x7B")
}


def _badges(layer: Layer | Block, implementation: Measured, device: str) -> str:
    """Which of the three environments stand behind a row: cpu; or traced and GPU."""
    found = {d: behind(layer, implementation, d, "bfloat16") for d in DEVICES}
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
        body.append([f"`{pair.id}`{{ #needed-{pair.id} }}", listed or words["nothing"], users])
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
        parts += _pictures(layer, lang) if n == 0 else []
        parts.append(_saved_table(layer, implementation, lang, short=n == 0))
    return "\n".join(parts)


def _pictures(layer: Layer, lang: str) -> list[str]:
    """Pictures of a layer's first implementation: on CUDA, and on the CPU where it has other formulas there."""
    implementation = layer.implementations[0]
    (model, sizes), *_ = _models_of(layer).items()
    devices = [d for d in DEVICE if not absence(implementation, d, "bfloat16")]
    shown = {implementation.saves(d).pair.id: d for d in reversed(devices)}
    return [layer_picture(layer, lang, d, "bfloat16", model, sizes) for d in devices if d in shown.values()]


def _saved_table(layer: Layer, implementation: Implementation, lang: str, short: bool) -> str:
    """A row's address is `saved-IMPLEMENTATION-TENSOR`; the first implementation's have a short one too."""
    words, at = WORDS[lang], f"saved-{implementation.id}"
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
        places = list(dict.fromkeys(_places(kept[name]) for kept in claims.values() if name in kept))
        label = f'<span id="saved-{name}"></span>' if short else ""
        label += chip(name, "unneeded" if name in extras else "saved", f"{at}-{name}")
        body.append([label, shape_of(s.shape, lang), *cells, " · ".join(kinds), " · ".join(places)])
    totals = [
        "—" if absence(implementation, device, "bfloat16") else f"${tex(device_bytes(kept.values()))}$"
        for device, kept in claims.items()
    ]
    body.append(
        [
            f'<b id="{at}-total">{words["total"]}</b>',
            "",
            *totals,
            "",
            " ".join(_badges(layer, implementation, d) for d in DEVICE if not absence(implementation, d, "bfloat16")),
        ]
    )
    head = [words["tensor"], words["shape"], "CUDA (bf16)", "CPU (bf16)", words["class"], words["place"]]
    notes = "".join(f"\n- {chip(e.name, 'unneeded')} {e.reason[lang]}" for e in extras.values())
    return table(head, body, right=(2, 3)) + (f"\n{words['without need']}:\n{notes}\n" if notes else "")


def _places(s: Saved) -> str:
    """Every node and attribute that holds a storage, and how often."""
    held = Counter(place for place in (f"{s.node}.{s.attr}", *s.shared_with) if place != "output")
    return " · ".join(f"`{place}`" + (f" ×{n}" if n > 1 else "") for place, n in held.items())


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


def least(layer: Layer, lang: str, implementation: str) -> str:
    """The sizes of the layer for which an implementation is measured only from a certain length on, inline."""
    chosen = _implementation(layer, implementation)
    own = {s.name for i in chosen.cpu.pair.inputs.values() for n in i.shape for s in sympify(n).free_symbols}
    found = [f"${name} = {number}$" for name, number in chosen.multiples.items() if name in own]
    return (" 与 " if lang == "zh" else " and ").join(found)


def _layer(layer: Layer, of: str | None) -> Layer:
    return layer if of is None else next(other for other in LAYERS if other.id == of)


def _bytes(layer: Layer, implementation: str, device: str, dtype: str, tensor: str | None) -> Expr:
    kept = claim(_implementation(layer, implementation), device, dtype)
    return device_bytes(kept) if tensor is None else next(s.nbytes for s in kept if s.name == tensor)


def nbytes(layer: Layer, lang: str) -> str:
    """Closed forms in each dtype, and worked out at two models' sizes in bf16."""
    words, shown = WORDS[lang], _models_of(layer)
    body = []
    for implementation in layer.implementations:
        forms = {
            d: [None if absence(implementation, d, t) else device_bytes(claim(implementation, d, t)) for t in DTYPES]
            for d in DEVICE
            if not absence(implementation, d, "bfloat16")
        }
        same = len({str(f) for f in forms.values()}) < len(forms)
        for device in ["cuda"] if same else forms:
            worked = [human(at_sizes(forms[device][0] or 0, sizes)) for sizes in shown.values()]
            where = "CUDA = CPU" if same else DEVICE[device]
            cells = ["—" if f is None else f"${tex(f)}$" for f in forms[device]]
            title = f'<span id="bytes-{implementation.id}-{device}">{implementation.title[lang]}</span>'
            body.append([title, where, *cells, *worked])
    head = [words["implementation"], "", *(SHORT[t] for t in DTYPES), *(f"{m}, bf16" for m in shown)]
    return table(head, body, right=range(2, 2 + len(DTYPES) + len(shown))) + "\n" + _sizes(shown)


def _models_of(layer: Layer) -> dict[str, dict[str, int]]:
    """The models at which a layer is worked out, with those of their sizes that it has: Mixtral if it has experts."""
    mine = _sizes_of(layer)
    names = ["Mixtral-8x7B"] if "E" in mine else ["Llama-3-8B", "GPT-3"]
    return {name: {n: v for n, v in MODELS[name].items() if n in mine} for name in names}


def _sizes(models: Mapping[str, Mapping[str, int]]) -> str:
    """The sizes of the worked examples."""
    sizes = {m: ", ".join(f"{n} = {v}" for n, v in at.items()) for m, at in models.items()}
    return "\n".join(f"- {m}: ${s}$" for m, s in sizes.items()) + "\n"


def evidence(layer: Layer, lang: str) -> str:
    """The records that hold this layer and agree with it, and plainly what is missing."""
    words = WORDS[lang]
    body = []
    for device, names in supported(layer).items():
        for name in names:
            e = records()[name].environment
            runs = next(row.runs for row in records()[name].rows if row.layer == layer.id)
            sizes = (
                words["symbols"]
                if not runs[0].sizes
                else "; ".join(
                    ", ".join(f"{n}={v}" for n, v in run.sizes.items() if n in _sizes_of(layer)) for run in runs
                )
            )
            css = {"cpu": "cpu", "cuda-trace": "trace", "cuda": "gpu"}[device]
            where = f'<span class="env {css}">{device}</span>'
            body.append(
                [
                    where,
                    f"torch {e.torch}{_lacking(layer, device, e.torch, lang)}",
                    sizes,
                    e.date,
                    f"[`{name}.json`](../evidence/{name}.json)",
                ]
            )
    text = table([words["environment"], "PyTorch", words["sizes"], words["date"], words["record"]], body)
    return (
        text
        if supported(layer)["cuda"]
        else f'{text}\n<span class="env gpu missing">GPU</span> {words["not on a GPU"]}\n'
    )


def _lacking(layer: Layer, device: str, torch: str, lang: str) -> str:
    """The implementations that this version of torch can't have, and so its record hasn't."""
    here = [i for i in layer.implementations if not absence(i, device, DTYPES[0])]
    lacking = [i.title[lang] for i in here if absence(i, device, DTYPES[0], torch)]
    words = ("；", "、", "：") if lang == "zh" else ("; ", "; ", ": ")
    return f"{words[0]}{WORDS[lang]['lacks']}{words[2]}{words[1].join(lacking)}" if lacking else ""


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


def calculator(lang: str) -> str:
    """Where the page's script puts the calculator; until then, and without it, a line that says what it needs."""
    words = CALCULATOR[lang]
    return f'<div id="calculate" data-failed="{words["failed"]}">{words["no script"]}</div>\n'


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
    at = f"{layer.id}-{implementation.id}-{device}"
    return [
        f"[{layer.title[lang]}]({page})",
        f"[{implementation.title[lang]}]({page}#saved-{implementation.id}){{ #{at} }}",
        "CUDA, CPU" if both else DEVICE[device],
        chips(wanted, "needed", lang),
        tensors or WORDS[lang]["nothing"],
        f"${tex(device_bytes(kept))}$",
        " ".join(_badges(layer, implementation, d) for d in (DEVICE if both else [device])),
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
    badges = _badges(found, found.implementations[0], device)
    rows = table([words[w] for w in ("layer", "tensor", "shape", "dtype", "bytes")], body, right=(4,))
    return f"{rows}\n\n{words['total']} {badges} {total}\n{{ .total }}"  # under the table, so that it never widens it


def stairs(lang: str, name: str, model: str, device: str = "cuda", dtype: str = "bfloat16") -> str:
    """A picture of a block: what each part keeps, as wide as its bytes at a model's sizes."""
    return block_picture(_block(name).implementations[0], lang, device, dtype, model, dict(B=1, **models.MODELS[model]))


def block_form(
    lang: str, name: str, device: str = "cuda", dtype: str = "bfloat16", minus: str = "0", **sizes: str
) -> str:
    """What a block keeps, in bytes, less another closed form, with some sizes expressed by others (M="4*D")."""
    given = {parse(name): parse(form) for name, form in sizes.items()}
    left = (_kept(name, device, dtype) - parse(minus)).subs(h * d, D).subs(given)
    return f"${tex(left)}$"


def depth(lang: str, name: str, device: str = "cuda", dtype: str = "bfloat16") -> str:
    """What a model of L such blocks keeps, in bytes: L times what each keeps, and what is kept once."""
    each, once = (form.subs(h * d, D) for form in _block(name).in_depth(device, dtype))
    return rf"$L\,({tex(each)}) + {tex(once)}$"


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


# --- for the page on verifying ---------------------------------------------------------------------------------------


def mutants(lang: str) -> str:
    """The score of `make mutate`: of each kind of change how many were made and caught; and what has changed since."""
    words = MUTANTS[lang]
    if not score.FILE.exists():
        return words["none"]
    found = score.read(score.FILE)
    body = [[words[kind], str(made), str(made - found.alive(kind))] for kind, made in found.made.items()]
    total = sum(found.made.values())
    body.append([words["all"], str(total), str(total - len(found.survivors))])
    when = words["of"].format(date=found.date, commit=found.commit or words["no git"])
    since = words["stale"].format(parts=words["sep"].join(words[part] for part in found.stale)) if found.stale else ""
    return (
        table([words["kind"], words["made"], words["caught"]], body, right=(1, 2))
        + f"\n{when} {since} [`{score.FILE.name}`](assets/{score.FILE.name})\n"
    )

"""Published counts beside the claims: what a source leaves out, what it counts and nobody keeps, what it sizes wrong.

The difference is accounted for tensor by tensor, never balanced: a source's terms must add up to the form that it
publishes, and a block's tensors to what it keeps, so nothing is left over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sympy import Add, Expr, Integer, expand

from refcheck.block import Composed
from refcheck.blocks import BLOCKS
from refcheck.notation import chip, human, table, tex
from refcheck.saved import ON_DEVICE, device_bytes
from refcheck.sizes import D, at_sizes, d, h
from refcheck.sources import SOURCES, STANDS, Source
from refcheck.tables import MODELS
from refcheck.words import RECONCILE

# Each source beside the blocks that people use it for: (source, block, implementation), the case it was made for first.
BESIDE = (
    ("korthikanti", "gpt2", "eager"),
    ("korthikanti", "gpt2", "no-dropout"),
    ("korthikanti", "article", "eager"),
    ("korthikanti", "llama3", "flash"),
    ("megatron", "gpt2", "eager"),
    ("llm-analysis", "gpt2", "eager"),
    ("llm-analysis-flash", "llama3", "flash"),
    ("llm-analysis-flash", "qwen3", "flash"),
    ("simumax", "llama3", "flash"),
    ("simumax", "qwen3", "flash"),
)
AT = {"gpt2": "GPT-3", "article": "GPT-3", "llama3": "Llama-3-8B", "qwen3": "Llama-3-8B"}
DEVICE, DTYPE = "cuda", "bfloat16"


@dataclass(frozen=True)
class Item:
    """One tensor on which a source and a block differ, in bytes; the source's name for it where nothing is kept."""

    tensor: str
    kept: Expr
    counted: Expr

    @property
    def difference(self) -> Expr:
        return expand(self.kept - self.counted)


def implementation(block: str, name: str) -> Composed:
    return next(i for b in BLOCKS if b.id == block for i in b.implementations if i.id == name)


def source(name: str) -> Source:
    return next(s for s in SOURCES if s.id == name)


def reconcile(of: Source, block: str, composed: Composed) -> tuple[Item, ...]:
    """Every tensor that the block keeps or the source counts, in the block's order.

    Raises ValueError if the source's terms don't add up to what it publishes, or the items not to the difference.
    """
    stands, given = STANDS.get(block, {}), assumed(of, block)
    counted = {stands.get(name, name): _sized(size) for name, size in of.terms.items()}
    kept = {s.name: _sized(s.nbytes.subs(given)) for s in composed.claim(DEVICE, DTYPE) if s.cls in ON_DEVICE}
    names = [*kept, *(name for name in counted if name not in kept)]
    items = tuple(Item(n, kept.get(n, Integer(0)), counted.get(n, Integer(0))) for n in names)
    if expand(Add(*counted.values()) - _sized(of.published)) != 0:
        raise ValueError(f"{of.id}: its terms add up to {Add(*counted.values())}, it publishes {of.published}")
    left = truth(of, block, composed) - _sized(of.published) - Add(*(item.difference for item in items))
    if expand(left) != 0:
        raise ValueError(f"{of.id} beside {block}: {expand(left)} bytes are left over")
    return items


def assumed(of: Source, block: str) -> Mapping[Expr, Expr]:
    """The sizes that a source assumes, where the block has its FFN: GPT's is four times as wide as the model."""
    return {} if block in STANDS else of.assumes


def truth(of: Source, block: str, composed: Composed) -> Expr:
    """What the block keeps, in bytes, at the sizes that the source assumes."""
    return _sized(device_bytes(composed.claim(DEVICE, DTYPE)).subs(assumed(of, block)))


def _sized(form: Expr) -> Expr:
    return expand(form.subs(D, h * d))


# --- for the page ----------------------------------------------------------------------------------------------------


def published(lang: str) -> str:
    """Each source beside its blocks: its form, and at a model's sizes its bytes, those kept, and their ratio."""
    words, body = RECONCILE[lang], []
    for name, block, which in BESIDE:
        of, composed = source(name), implementation(block, which)
        reconcile(of, block, composed)
        sizes = MODELS[AT[block]]
        form, kept = _sized(of.published), truth(of, block, composed)
        says, is_kept = at_sizes(form, sizes), at_sizes(kept, sizes)
        title = f"[{of.title}](#{name.removesuffix('-flash')})"
        where = f"{_block_title(block, lang)}{words['comma']}{composed.title[lang]}"
        numbers = [human(says), human(is_kept), f"{says / is_kept:.3f}"]
        body.append([title, where, f"${tex(form)}$", AT[block], *numbers])
    heads = [words[w] for w in ("source", "block", "formula", "at", "says", "is", "ratio")]
    return table(heads, body, right=(4, 5, 6))


def difference(lang: str, name: str, block: str, which: str) -> str:
    """The tensors on which a source and a block differ, in bytes, and their sum; how many agree."""
    words = RECONCILE[lang]
    of, composed = source(name), implementation(block, which)
    items = reconcile(of, block, composed)
    differ = [item for item in items if item.difference != 0]
    body = [
        [_name(item, words), f"${tex(item.counted)}$", f"${tex(item.kept)}$", f"${tex(item.difference)}$"]
        for item in differ
    ]
    total = expand(Add(*(item.difference for item in differ)))
    sums = (_sized(of.published), truth(of, block, composed), total)
    body.append([f"**{words['together']}**", *(f"${tex(form)}$" for form in sums)])
    heads = [words[w] for w in ("tensor", "counted", "kept", "difference")]
    return f"{table(heads, body, right=(1, 2, 3))}\n{words['alike'].format(len(items) - len(differ))}\n"


def _name(item: Item, words: Mapping[str, str]) -> str:
    return chip(item.tensor, "saved") if item.kept != 0 else f"`{item.tensor}` {words['not kept']}"


def _block_title(block: str, lang: str) -> str:
    return next(b.title[lang] for b in BLOCKS if b.id == block)

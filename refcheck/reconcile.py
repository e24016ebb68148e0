"""Published counts of a block's activations, each beside what the block keeps, and every byte between them named.

A case is a count and a block.  Its items say, by name, which claimed tensors the count leaves out and which of its
terms the block doesn't keep.  What no item names must agree tensor by tensor, so that no two mistakes can cancel:

    count + bytes of tensors left out - terms not kept = what is kept, with nothing left over, for all sizes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from sympy import Add, Expr, expand, simplify

from refcheck.block import Block, Composed
from refcheck.blocks import BLOCKS
from refcheck.models import MODELS
from refcheck.notation import chip, human, table, tex
from refcheck.saved import ON_DEVICE, device_bytes
from refcheck.sizes import ITEMSIZE, at_sizes
from refcheck.sources import (
    ANALYSIS_EAGER,
    ANALYSIS_FLASH,
    ANALYSIS_NO_DROPOUT,
    COOKBOOK,
    CORE,
    COUNTS,
    KORTHIKANTI,
    MEGATRON,
    PLAYBOOK,
    SELECTIVE,
    SIMUMAX,
    Count,
    p,
)
from refcheck.words import RECONCILE, SHORT


@dataclass(frozen=True)
class Item:
    """One named difference: tensors that are kept and not counted, terms that are counted and not kept."""

    id: str
    why: Mapping[str, str]
    kept: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Case:
    """A count beside a block that it is used for, on CUDA, worked out at a model's sizes for one sequence."""

    count: Count
    name: str  # the block's id
    implementation: str
    model: str
    items: tuple[Item, ...]
    dtype: str = "bfloat16"
    given: Mapping[Expr, Expr] | None = None  # None: what the count takes for granted

    @property
    def id(self) -> str:
        parts = [self.count.id, self.name]
        parts += [self.implementation] if self.whole is not self.block.implementations[0] else []
        return "-".join([*parts, *([SHORT[self.dtype]] if self.dtype != "bfloat16" else [])])

    @property
    def block(self) -> Block:
        return next(block for block in BLOCKS if block.id == self.name)

    @property
    def whole(self) -> Composed:
        return next(i for i in self.block.implementations if i.id == self.implementation)

    def sized(self, form: Expr) -> Expr:
        """A closed form in bytes of this dtype, with the sizes that the count takes for granted."""
        given = self.count.given if self.given is None else self.given
        return expand(form.subs(p, ITEMSIZE[self.dtype]).subs(given))

    @cached_property
    def tensors(self) -> Mapping[str, Expr]:
        """What the block is claimed to keep on the device, parameters apart: bytes by name."""
        kept = self.whole.claim("cuda", self.dtype)
        return {s.name: self.sized(s.nbytes) for s in kept if s.cls in ON_DEVICE}

    @cached_property
    def terms(self) -> Mapping[str, Expr]:
        return {term.id: self.sized(term.form) for term in self.count.terms}

    @cached_property
    def published(self) -> Expr:
        return self.sized(expand(self.count.published))

    @cached_property
    def truth(self) -> Expr:
        return self.sized(device_bytes(self.whole.claim("cuda", self.dtype)))

    def difference(self, item: Item) -> Expr:
        """What an item adds to the count: bytes of its tensors, less its terms."""
        kept, counted = ([of[name] for name in names] for of, names in self._sides(item))
        return expand(Add(*kept) - Add(*counted))

    def _sides(self, item: Item) -> tuple[tuple[Mapping[str, Expr], tuple[str, ...]], ...]:
        return (self.tensors, item.kept), (self.terms, item.counted)

    @property
    def left_over(self) -> Expr:
        """Bytes that no item accounts for."""
        return expand(self.published + Add(*map(self.difference, self.items)) - self.truth)

    def faults(self) -> list[str]:
        """What is wrong with this case, one line each; the empty list if every byte has its name."""
        unknown = [*self._unknown()]
        return unknown or [*self._unpaired()] + ([f"{self.left_over} bytes left over"] if self.left_over != 0 else [])

    def _unknown(self) -> Iterator[str]:
        """Names that aren't there, or are used twice."""
        for item in self.items:
            for of, names in self._sides(item):
                yield from (f"{item.id}: there is no {name}" for name in names if name not in of)
        used = Counter(name for item in self.items for name in item.kept)
        terms = Counter(name for item in self.items for name in item.counted)
        yield from (f"{name} is in {n} items" for name, n in (*used.items(), *terms.items()) if n > 1)
        if simplify(self.count.sum - self.count.published) != 0:
            yield f"{self.count.id}: its terms don't add up to it"

    def _unpaired(self) -> Iterator[str]:
        """Terms that no item names and that aren't exactly the tensors they are about, and tensors of neither."""
        named = {name for item in self.items for name in item.kept}
        dropped = {name for item in self.items for name in item.counted}
        for term in self.count.terms:
            if term.id in dropped:
                continue
            wrong = [name for name in term.tensors if name not in self.tensors or name in named]
            bytes_of = Add(*(self.tensors[name] for name in term.tensors if name not in wrong))
            if wrong or expand(bytes_of - self.terms[term.id]) != 0:
                yield f"{term.id}: counted as {self.terms[term.id]}, and {', '.join(term.tensors)} are {bytes_of}"
            named.update(term.tensors)
        yield from (f"{name} is kept, and in no item" for name in self.tensors if name not in named)


# --- what the differences are -----------------------------------------------------------------------------------------

STATISTICS = Item(
    "statistics",
    dict(zh="两个 LayerNorm 的均值和 rstd，fp32", en="mean and rstd of the two LayerNorms, fp32"),
    kept=("mean_1", "rstd_1", "mean_2", "rstd_2"),
)
RSTD = Item(
    "rstd", dict(zh="两个 RMSNorm 的 rstd，fp32", en="rstd of the two RMSNorms, fp32"), kept=("rstd_1", "rstd_2")
)
NO_ATTENTION_DROPOUT = Item(
    "no-attention-dropout",
    dict(zh="这个块在注意力之后没有 dropout", en="this block has no dropout after attention"),
    counted=("attention-mask",),
)
NO_FFN_DROPOUT = Item(
    "no-ffn-dropout",
    dict(zh="这个块在 FFN 之后没有 dropout", en="this block has no dropout after the FFN"),
    counted=("ffn-mask",),
)
FFN_DROPOUT = Item(
    "ffn-dropout",
    dict(zh="FFN 之后的 dropout 掩码，计算器没有算", en="dropout mask after the FFN, which the calculator leaves out"),
    kept=("m_ffn",),
)
NO_SOFTMAX_DROPOUT = Item(
    "no-softmax-dropout",
    dict(
        zh="softmax 之后没有 dropout：没有掩码，dropout 的输出就是 P 本身",
        en="no dropout after the softmax: no mask, and P itself stands for the output",
    ),
    counted=("softmax-mask", "dropped"),
)
ONE_MATRIX = Item(
    "one-matrix",
    dict(zh="没有 dropout，概率矩阵只有一份", en="without dropout there is one matrix of probabilities, not two"),
    counted=("dropped",),
)
NOT_RECOMPUTED = Item(
    "not-recomputed",
    dict(
        zh="不重算，就要存概率、掩码和 dropout 的输出",
        en="without recomputation: probabilities, mask, dropout's output",
    ),
    kept=("P", "m", "P_dropped"),
)
FUSED = Item(
    "fused",
    dict(zh="融合的注意力不存概率矩阵", en="fused attention keeps no matrix of probabilities"),
    counted=CORE,
)
LSE = Item(
    "lse", dict(zh="融合的注意力存的 log-sum-exp，fp32", en="log-sum-exp of the fused attention, fp32"), kept=("lse",)
)
GROUPED = Item(
    "grouped",
    dict(zh="K、V 只有 $g$ 个头；Q、K 是旋转之后的", en="K and V have $g$ heads; Q and K are the rotated ones"),
    kept=("Q_rot", "K_rot", "V_g"),
    counted=("q-k", "v"),
)
SWIGLU = Item(
    "swiglu",
    dict(
        zh="SwiGLU：三个中间量和下一层的输入，宽 $M$；而不是 GELU 的一进一出，宽 $4D$",
        en="SwiGLU: three tensors and the next layer's input, $M$ wide; not GELU's input and output, $4D$ wide",
    ),
    kept=("z1", "a", "z2", "g"),
    counted=("gelu-input", "ffn-second-input"),
)
GATE = Item(
    "gate",
    dict(zh="SwiGLU 的三个中间量，而不是 GELU 的一个输入", en="three tensors of SwiGLU, not the one input of GELU"),
    kept=("z1", "a", "z2"),
    counted=("gelu-input",),
)
NORMS = Item(
    "norms",
    dict(
        zh="归一化的输入按激活的类型存，不是 fp32",
        en="the norms keep their inputs in the activations' dtype, not in fp32",
    ),
    kept=("x", "x_2"),
    counted=("norms",),
)
FLASH_WIDE = Item(
    "flash-wide",
    dict(
        zh="FlashAttention 只另存 LSE：Q、K、V 和输出已经算过",
        en="FlashAttention keeps only its log-sum-exp besides: Q, K, V and the output are counted already",
    ),
    counted=("flash-wide",),
)
ROWS = Item(
    "rows",
    dict(zh="每头每行一个 fp32 的 LSE，不是 4 个元素", en="one fp32 log-sum-exp per head and row, not 4 elements"),
    kept=("lse",),
    counted=("flash-rows",),
)
LSE_WIDTH = Item(
    "lse-width",
    dict(zh="LSE 是 fp32，不是激活的类型", en="the log-sum-exp is fp32, not the activations' dtype"),
    kept=("lse",),
    counted=("lse",),
)
RANDOM = Item(
    "rng",
    dict(zh="融合的注意力留下的随机数状态", en="random state that the fused kernel keeps"),
    kept=("rng_state", "unused"),
)
ANGLES = Item(
    "angles",
    dict(zh="旋转用的 cos、sin 表，各块共用一份", en="the tables of cos and sin, one pair for all blocks"),
    kept=("cos", "sin"),
)
QK_NORM = Item(
    "qk-norm",
    dict(zh="Qwen3 对 Q、K 每个头的归一化：输入和 rstd", en="Qwen3's norm of each head of Q and K: inputs and rstd"),
    kept=("Q", "K_g", "rstd_Q", "rstd_K"),
)
ROTARY = (RSTD, LSE, RANDOM, ANGLES)  # of a block of Llama 3, whatever the count
NO_DROPOUT = (NO_ATTENTION_DROPOUT, NO_FFN_DROPOUT)
PLAIN: Mapping[Expr, Expr] = {}  # M is the model's own, whatever the count takes for granted

CASES = (
    Case(KORTHIKANTI, "gpt2", "eager", "GPT-3", (STATISTICS,)),
    Case(KORTHIKANTI, "article", "eager", "GPT-3", (STATISTICS, NO_ATTENTION_DROPOUT)),
    Case(KORTHIKANTI, "gpt2", "no-dropout", "GPT-3", (STATISTICS, NO_SOFTMAX_DROPOUT, *NO_DROPOUT)),
    Case(SELECTIVE, "gpt2", "eager", "GPT-3", (STATISTICS, NOT_RECOMPUTED)),
    Case(SELECTIVE, "article", "eager", "GPT-3", (STATISTICS, NO_ATTENTION_DROPOUT, NOT_RECOMPUTED)),
    Case(MEGATRON, "gpt2", "eager", "GPT-3", (STATISTICS, NOT_RECOMPUTED)),
    Case(MEGATRON, "llama3", "flash", "Llama-3-8B", (*ROTARY, *NO_DROPOUT, GROUPED, GATE)),
    Case(MEGATRON, "qwen3", "flash", "Qwen3-8B", (*ROTARY, *NO_DROPOUT, GROUPED, GATE, QK_NORM)),
    Case(COOKBOOK, "gpt2", "eager", "GPT-3", (STATISTICS,)),
    Case(COOKBOOK, "gpt2", "eager", "GPT-3", (STATISTICS,), "float32"),
    Case(COOKBOOK, "llama3", "flash", "Llama-3-8B", (*ROTARY, *NO_DROPOUT, FUSED, GROUPED, SWIGLU), given=PLAIN),
    Case(PLAYBOOK, "gpt2", "eager", "GPT-3", (STATISTICS,)),
    Case(PLAYBOOK, "llama3", "flash", "Llama-3-8B", (*ROTARY, *NO_DROPOUT, FUSED, GROUPED, SWIGLU), given=PLAIN),
    Case(
        ANALYSIS_FLASH,
        "llama3",
        "flash",
        "Llama-3-8B",
        (NORMS, RSTD, NO_ATTENTION_DROPOUT, GROUPED, FLASH_WIDE, ROWS, GATE, RANDOM, ANGLES),
    ),
    Case(ANALYSIS_EAGER, "gpt2", "eager", "GPT-3", (NORMS, STATISTICS, FFN_DROPOUT)),
    Case(
        ANALYSIS_NO_DROPOUT,
        "gpt2",
        "no-dropout",
        "GPT-3",
        (NORMS, STATISTICS, ONE_MATRIX, NO_ATTENTION_DROPOUT),
    ),
    Case(SIMUMAX, "llama3", "flash", "Llama-3-8B", (RSTD, LSE_WIDTH, RANDOM, ANGLES)),
)


def mistakes() -> list[tuple[str, str]]:
    """What is wrong with any of the cases: the case, and one line."""
    return [(case.id, fault) for case in CASES for fault in case.faults()]


# --- for the page -----------------------------------------------------------------------------------------------------


def counts(lang: str) -> str:
    """Every case in one row: source, block, the published form; at a model's sizes that and what is kept."""
    if wrong := mistakes():
        raise ValueError("; ".join(map(": ".join, wrong)))
    words = RECONCILE[lang]
    body = []
    for case in CASES:
        counted, kept = (_at(form, case) for form in (case.published, case.truth))
        body.append(
            [
                f"[{case.count.title}](#{case.count.id})",
                f"[{_block(case, lang)}](#{case.id})<br>{words['sizes of'].format(case.model)}",
                f"${signed(case.published)}$",
                human(counted),
                human(kept),
                f"{counted / kept:.3f}",
            ]
        )
    head = [words[w] for w in ("source", "block", "count", "counted", "truly", "ratio")]
    return table(head, body, right=(3, 4, 5))


def published(lang: str, source: str) -> str:
    """A source's formula in its own letters, where it stands, and what of it was read."""
    words, count = RECONCILE[lang], _count(source)
    return f"$$\n{count.written}\n$$\n\n{count.at[lang]}{words['stop']}{count.read[lang]}{words['end']}"


def terms(lang: str, source: str) -> str:
    """The terms that a source's formula is made of, in bytes, beside the tensors that they are about."""
    words, count = RECONCILE[lang], _count(source)
    body = [[term.title[lang], _chips(term.tensors, lang), f"${signed(expand(term.form))}$"] for term in count.terms]
    body.append([f"**{words['sum']}**", "", f"${signed(expand(count.published))}$"])
    return table([words[w] for w in ("term", "tensors", "bytes")], body, right=(2,))


def differences(lang: str, source: str) -> str:
    """Each case of a source: the count, what is kept besides, what is counted and not kept, what is kept; 0 over."""
    return "\n".join(_difference(case, lang) for case in CASES if case.count is _count(source))


def _difference(case: Case, lang: str) -> str:
    if wrong := case.faults():
        raise ValueError(f"{case.id}: {'; '.join(wrong)}")
    words = RECONCILE[lang]
    titles = {term.id: term.title[lang] for term in case.count.terms}
    body = [[words["count"], "", "", f"${signed(case.published)}$"]]
    for item in case.items:
        terms = ("；" if lang == "zh" else "; ").join(titles[name] for name in item.counted)
        label = f'<span id="{case.id}-{item.id}">{item.why[lang]}</span>'
        body.append([label, _chips(item.kept, lang), terms or "—", f"${signed(case.difference(item), plus=True)}$"])
    body.append([f"**{words['kept']}**", "", "", f"${signed(case.truth)}$"])
    body.append([words["left over"], "", "", f"${signed(case.left_over)}$"])
    head = [words[w] for w in ("item", "kept, not counted", "counted, not kept", "bytes")]
    return f"### {_block(case, lang)} {{ #{case.id} }}\n\n{table(head, body, right=(3,))}"


def signed(form: Expr, plus: bool = False) -> str:
    """A closed form in TeX, with minus signs; `plus` puts a plus before it if it begins with none."""
    text = re.sub(r"-1(?=[A-Za-z])", "-", tex(form)).replace("+ -", "- ")
    return f"+{text}" if plus and not text.startswith("-") else text


def _at(form: Expr, case: Case) -> int:
    return at_sizes(form, dict(B=1, **MODELS[case.model]))


def _block(case: Case, lang: str) -> str:
    """The block's title, its implementation's and, if it isn't bf16, the dtype."""
    comma = "，" if lang == "zh" else ", "
    dtype = [SHORT[case.dtype]] if case.dtype != "bfloat16" else []
    return comma.join([case.block.title[lang], case.whole.title[lang], *dtype])


def _count(source: str) -> Count:
    return next(count for count in COUNTS if count.id == source)


def _chips(names: Iterable[str], lang: str) -> str:
    return " ".join(chip(name, "saved") for name in names) or "—"

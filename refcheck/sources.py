"""Counts of a block's activations that others have published: as one closed form, and as the terms it is made of.

A count stands here in our sizes: their s is T, b is B, h is D, a is h; `p` is the bytes of one element of an
activation.  `published` is what the source writes, typed apart from the terms, whose sum it must be.  A term says
which tensors it is about, in the names of the blocks.

Read: the code of Megatron-LM, of the calculators and of SimuMax, each at the commit named; the text of the Ultra-Scale
Playbook in a copy.  Not read at first hand: the paper of Korthikanti et al.; its table of terms is known from a copy of
the table in a blog, its sums from that and from the code and texts that cite them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sympy import Add, Expr, Symbol

from refcheck.sizes import B, M, T, d, g, h

D = h * d
TOKENS = B * T  # in a batch
SCORES = B * h * T**2  # elements of the probabilities
p = Symbol("p", integer=True, positive=True)


@dataclass(frozen=True)
class Term:
    """One summand of a count, in bytes, and the tensors that it is about."""

    id: str
    title: Mapping[str, str]
    form: Expr
    tensors: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Count:
    """A published count of what one block keeps: `written` is its formula in the source's own letters, as TeX.

    `given` is what it takes for granted about sizes; `at` says where it stands, `read` what of it has been read.
    """

    id: str
    title: str
    written: str
    published: Expr
    terms: tuple[Term, ...]
    at: Mapping[str, str]
    read: Mapping[str, str]
    given: Mapping[Expr, Expr] = field(default_factory=dict)

    @property
    def sum(self) -> Expr:
        """The terms added up, which must be what is published."""
        return Add(*(term.form for term in self.terms))


def _paper(element: Expr | int, inner: Expr) -> tuple[Term, ...]:
    """The terms of Korthikanti et al. 2022, section 4.1, with elements so long and an FFN so wide; masks are bytes."""
    wide = element * TOKENS * D
    return (
        Term("norms", dict(zh="两个 LayerNorm 的输入", en="inputs of both LayerNorms"), 2 * wide, ("x", "x_2")),
        Term("qkv-input", dict(zh="Q、K、V 投影的输入", en="input of the Q, K, V projections"), wide, ("u",)),
        Term("q-k", dict(zh="$QK^T$ 的两个输入", en="both inputs of $QK^T$"), 2 * wide, ("Q", "K")),
        Term("v", dict(zh="值", en="values"), wide, ("V",)),
        Term("softmax", dict(zh="softmax 的输出", en="output of the softmax"), element * SCORES, ("P",)),
        Term(
            "softmax-mask", dict(zh="softmax 之后的 dropout 掩码", en="dropout mask after the softmax"), SCORES, ("m",)
        ),
        Term("dropped", dict(zh="该 dropout 的输出", en="output of that dropout"), element * SCORES, ("P_dropped",)),
        Term("projection-input", dict(zh="输出投影的输入", en="input of the output projection"), wide, ("c",)),
        Term(
            "attention-mask",
            dict(zh="注意力之后的 dropout 掩码", en="dropout mask after attention"),
            TOKENS * D,
            ("m_attention",),
        ),
        Term("ffn-input", dict(zh="FFN 第一个线性层的输入", en="input of the FFN's first linear layer"), wide, ("v",)),
        Term("gelu-input", dict(zh="GELU 的输入", en="input of the GELU"), element * TOKENS * inner, ("z",)),
        Term(
            "ffn-second-input",
            dict(zh="FFN 第二个线性层的输入", en="input of the FFN's second linear layer"),
            element * TOKENS * inner,
            ("g",),
        ),
        Term("ffn-mask", dict(zh="FFN 之后的 dropout 掩码", en="dropout mask after the FFN"), TOKENS * D, ("m_ffn",)),
    )


def _without(terms: tuple[Term, ...], *ids: str) -> tuple[Term, ...]:
    return tuple(term for term in terms if term.id not in ids)


CORE = ("softmax", "softmax-mask", "dropped")  # what selective recomputation makes anew
FOUR = {M: 4 * D}
PAPER_READ = dict(
    zh="未读到原文；各项取自一篇博客抄录的表，总和由多处引用佐证",
    en="The paper itself not read; terms from a copy of its table in a blog, sums borne out by several that cite them",
)


KORTHIKANTI = Count(
    "korthikanti",
    "Korthikanti et al.",
    r"sbh\left(34 + 5\frac{as}{h}\right)",
    34 * TOKENS * D + 5 * SCORES,
    _paper(2, 4 * D),
    dict(zh="arXiv:2205.05198（2022），4.1 节", en="arXiv:2205.05198 (2022), section 4.1"),
    PAPER_READ,
    FOUR,
)

SELECTIVE = Count(
    "selective",
    "Korthikanti et al., selective",
    r"34\,sbh",
    34 * TOKENS * D,
    _without(_paper(2, 4 * D), *CORE),
    dict(
        zh="arXiv:2205.05198（2022），表 2，选择性重算，不作并行",
        en="arXiv:2205.05198 (2022), table 2, selective recomputation, no parallelism",
    ),
    PAPER_READ,
    FOUR,
)

MEGATRON = Count(
    "megatron",
    "Megatron-LM",
    r"sbh\left(18 + 4\frac{f}{h}\right)",
    TOKENS * D * (18 + 4 * M / D),
    _without(_paper(2, M), *CORE),  # the code cites table 2 and names no terms
    dict(
        zh="`megatron/training/theoretical_memory_usage.py`，`compute_activation_memory`，提交 `00caa53a`",
        en="`megatron/training/theoretical_memory_usage.py`, `compute_activation_memory`, commit `00caa53a`",
    ),
    dict(zh="代码已读；各项按它引用的表 2", en="Code read; terms after table 2, which it cites"),
)

COOKBOOK = Count(
    "cookbook",
    "EleutherAI cookbook",
    r"sbh\left((16p + 2) + (2p + 1)\frac{as}{h}\right)",
    TOKENS * D * ((16 * p + 2) + (2 * p + 1) * (h * T / D)),
    _paper(p, 4 * D),
    dict(
        zh="`calc/calc_transformer_mem.py`，`calc_mem`，不作 checkpoint，提交 `069ae2ef`",
        en="`calc/calc_transformer_mem.py`, `calc_mem`, without checkpointing, commit `069ae2ef`",
    ),
    dict(
        zh="代码已读；注释把出处写成 ZeRO 的论文，各项按 Korthikanti 等人推广到 $p$",
        en="Code read; its comment names the paper on ZeRO, the terms are those of Korthikanti et al. with $p$",
    ),
    FOUR,
)

PLAYBOOK = Count(
    "playbook",
    "Ultra-Scale Playbook",
    r"seq \cdot bs \cdot h \cdot \left(34 + \frac{5 \cdot n_{heads} \cdot seq}{h}\right)",
    34 * TOKENS * D + 5 * SCORES,
    _paper(2, 4 * D),
    dict(
        zh="Hugging Face，*The Ultra-Scale Playbook*，“Memory for activations”一节，每层",
        en="Hugging Face, *The Ultra-Scale Playbook*, “Memory for activations”, per layer",
    ),
    dict(
        zh="读的是一份转录；推导处引 Korthikanti 等人，例子是 Llama",
        en="Read in a copy; it refers to Korthikanti et al. for the derivation, and its example is Llama",
    ),
    FOUR,
)


def _analysis(attention: tuple[Term, ...]) -> tuple[Term, ...]:
    """llm-analysis: norms in fp32, one mask after attention, none after the FFN; `attention` is what differs."""
    common = _without(_paper(p, M), *CORE, "norms", "ffn-mask")
    norms = Term(
        "norms",
        dict(zh="两个归一化的输入，fp32", en="inputs of both norms, fp32"),
        8 * TOKENS * D,
        ("x", "x_2"),
    )
    return (norms, *common, *attention)


ANALYSIS_AT = dict(
    zh="`llm_analysis/analysis.py`，`get_activation_memory_per_layer`，提交 `08d7f8f6`",
    en="`llm_analysis/analysis.py`, `get_activation_memory_per_layer`, commit `08d7f8f6`",
)
ANALYSIS_READ = dict(
    zh="代码已读；它不给各项命名，名字按其文档串与 Korthikanti 等人",
    en="Code read; it names no terms, the names are after its docstrings and Korthikanti et al.",
)
ANALYSIS_FLASH = Count(
    "llm-analysis",
    "llm-analysis, flash",
    r"5sbh\,p + (2sbh + 4as b)\,p + sbh + (1 + 2\frac{f}{h})\,sbh\,p + 2 \cdot 4sbh",
    5 * TOKENS * D * p
    + (2 * TOKENS * D + 4 * h * TOKENS) * p
    + TOKENS * D
    + (1 + 2 * M / D) * TOKENS * D * p
    + 8 * TOKENS * D,
    _analysis(
        (
            Term(
                "flash-wide",
                dict(zh="FlashAttention：$2sbh$ 个元素", en="FlashAttention: $2sbh$ elements"),
                2 * TOKENS * D * p,
                (),
            ),
            Term(
                "flash-rows",
                dict(zh="FlashAttention：每头每行 4 个元素", en="FlashAttention: 4 elements per head and row"),
                4 * h * TOKENS * p,
                ("lse",),
            ),
        )
    ),
    ANALYSIS_AT,
    ANALYSIS_READ,
)


def _analysis_eager(id: str, title: str, written: str, softmax: Expr, options: str, core: tuple[str, ...]) -> Count:
    """llm-analysis without FlashAttention: two matrices of probabilities, and a mask if softmax_dropout is set."""
    return Count(
        id,
        title,
        rf"5sbh\,p + {written} + sbh + (1 + 2\frac{{f}}{{h}})\,sbh\,p + 2 \cdot 4sbh",
        5 * TOKENS * D * p + softmax + TOKENS * D + (1 + 2 * M / D) * TOKENS * D * p + 8 * TOKENS * D,
        _analysis(tuple(term for term in _paper(p, M) if term.id in core)),
        dict(zh=f"{ANALYSIS_AT['zh']}，{options}", en=f"{ANALYSIS_AT['en']}, {options}"),
        ANALYSIS_READ,
    )


ANALYSIS_EAGER = _analysis_eager(
    "llm-analysis-eager",
    "llm-analysis, eager",
    r"2as^2b\,p + as^2b",
    2 * SCORES * p + SCORES,
    "`flash_attn=False`, `softmax_dropout=True`",
    CORE,
)
ANALYSIS_NO_DROPOUT = _analysis_eager(
    "llm-analysis-no-dropout",
    "llm-analysis, eager, no softmax dropout",
    r"2as^2b\,p",
    2 * SCORES * p,
    "`flash_attn=False`",
    ("softmax", "dropped"),
)

_RMSNORM = dict(zh="两个 RMSNorm 的输入", en="inputs of both RMSNorms")
SIMUMAX = Count(
    "simumax",
    "SimuMax",
    r"10sbh + 2sb\,(a + 2k)\,d + 2asb + 8sbf",
    2 * (2 + 1 + 1 + 1) * TOKENS * D + 2 * TOKENS * (h * d + 2 * g * d + h) + 2 * (3 + 1) * TOKENS * M,
    (
        Term("norms", _RMSNORM, 4 * TOKENS * D, ("x", "x_2")),
        Term("qkv-input", dict(zh="Q、K、V 投影的输入", en="input of the Q, K, V projections"), 2 * TOKENS * D, ("u",)),
        Term(
            "q-k-v",
            dict(zh="注意力的 Q、K、V，后两者为 $g$ 个头", en="Q, K, V of attention, the latter two of $g$ heads"),
            2 * TOKENS * (h + 2 * g) * d,
            ("Q_rot", "K_rot", "V_g"),
        ),
        Term("lse", dict(zh="LSE，按 2 字节计", en="log-sum-exp, in 2-byte elements"), 2 * TOKENS * h, ("lse",)),
        Term(
            "projection-input", dict(zh="输出投影的输入", en="input of the output projection"), 2 * TOKENS * D, ("c",)
        ),
        Term(
            "ffn-input",
            dict(zh="FFN 第一个线性层的输入", en="input of the FFN's first linear layer"),
            2 * TOKENS * D,
            ("v",),
        ),
        Term("swiglu", dict(zh="SwiGLU 的三个中间量", en="three tensors of SwiGLU"), 6 * TOKENS * M, ("z1", "a", "z2")),
        Term(
            "ffn-second-input",
            dict(zh="FFN 第二个线性层的输入", en="input of the FFN's second linear layer"),
            2 * TOKENS * M,
            ("g",),
        ),
    ),
    dict(
        zh="`simumax/core/transformer/dense_module.py`，各处 `activation_mem_cache`，"
        "`use_fused_swiglu=False`，提交 `acdbb667`",
        en="`simumax/core/transformer/dense_module.py`, each `activation_mem_cache`, "
        "`use_fused_swiglu=False`, commit `acdbb667`",
    ),
    dict(
        zh="代码已读（归一化、线性层、注意力、SwiGLU）；它逐模块累加，总式由各模块相加写出",
        en="Code read (norm, linear layers, attention, SwiGLU); it adds module by module, the sum is written out here",
    ),
)

COUNTS = (
    KORTHIKANTI,
    SELECTIVE,
    MEGATRON,
    COOKBOOK,
    PLAYBOOK,
    ANALYSIS_FLASH,
    ANALYSIS_EAGER,
    ANALYSIS_NO_DROPOUT,
    SIMUMAX,
)

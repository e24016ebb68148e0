"""Published counts of what a block keeps, term by term, in bytes with two per activation, on one GPU.

Each term names the tensor that it stands for, as our blocks call it; where a block keeps another in its place, `stands`
says which.  Only what the source itself says is written here; what is kept is the claims' business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sympy import Expr

from refcheck.sizes import B, D, M, T, h


@dataclass(frozen=True)
class Source:
    """A published count: its terms (tensor -> bytes), the closed form it publishes for them, and where that stands."""

    id: str
    title: str
    where: str  # the paper's equation, or the function of a program, and its commit
    terms: Mapping[str, Expr]
    published: Expr
    assumes: Mapping[Expr, Expr] = field(default_factory=dict)  # sizes that it has given up in its form


ACTIVATION = 2 * B * T * D  # 2sbh
SCORES = B * h * T**2  # as²b

# Korthikanti et al. 2022, section 4.1: attention 11sbh + 5as²b, MLP 19sbh, two LayerNorms 4sbh.
ATTENTION = dict(
    u=ACTIVATION,
    Q=ACTIVATION,
    K=ACTIVATION,
    P=2 * SCORES,
    m=SCORES,
    P_dropped=2 * SCORES,
    V=ACTIVATION,
    c=ACTIVATION,
    m_attention=B * T * D,
)
NORMS = dict(x=ACTIVATION, x_2=ACTIVATION)
RECOMPUTED = ("P", "m", "P_dropped")


def _mlp(width: Expr) -> dict[str, Expr]:
    """Inputs of the first linear layer, of GELU and of the second, and the mask of dropout."""
    return dict(v=ACTIVATION, z=2 * B * T * width, g=2 * B * T * width, m_ffn=B * T * D)


KORTHIKANTI = Source(
    "korthikanti",
    "Korthikanti et al. 2022",
    "arXiv 2205.05198, section 4.1, equation 2",
    {**ATTENTION, **_mlp(4 * D), **NORMS},
    34 * B * T * D + 5 * B * h * T**2,
    {M: 4 * D},
)
MEGATRON = Source(
    "megatron",
    "Megatron-LM",
    "megatron/training/theoretical_memory_usage.py, compute_activation_memory, at 00caa53",
    {n: size for n, size in {**ATTENTION, **_mlp(M), **NORMS}.items() if n not in RECOMPUTED},
    B * T * D * (18 + 4 * M / D),
)
WIDE_NORMS = dict(x=2 * ACTIVATION, x_2=2 * ACTIVATION)  # in fp32
LLM_ANALYSIS = Source(
    "llm-analysis",
    "llm-analysis",
    "llm_analysis/analysis.py, get_activation_memory_per_layer, at 08d7f8f, with flash_attn=False and softmax_dropout",
    {
        **ATTENTION,
        **{n: size for n, size in _mlp(M).items() if n != "m_ffn"},
        **WIDE_NORMS,
    },
    21 * B * T * D + 5 * B * h * T**2 + 4 * B * T * M,
)
LLM_ANALYSIS_FLASH = Source(
    "llm-analysis-flash",
    "llm-analysis, FlashAttention",
    "llm_analysis/analysis.py, get_activation_memory_per_layer, at 08d7f8f, as it is by default",
    {
        **{n: size for n, size in ATTENTION.items() if n not in RECOMPUTED},
        "flash": 2 * ACTIVATION,
        "lse": 8 * B * h * T,
        **{n: size for n, size in _mlp(M).items() if n != "m_ffn"},
        **WIDE_NORMS,
    },
    25 * B * T * D + 8 * B * h * T + 4 * B * T * M,
)
SIMUMAX = Source(
    "simumax",
    "SimuMax",
    "simumax/core/transformer/dense_module.py, at 2127d7d, with FlashAttention and neither norm recomputed",
    dict(
        x=ACTIVATION,
        u=ACTIVATION,
        Q=ACTIVATION,
        K=ACTIVATION,
        V=ACTIVATION,
        lse=2 * B * h * T,
        c=ACTIVATION,
        x_2=ACTIVATION,
        v=ACTIVATION,
        z1=2 * B * T * M,
        a=2 * B * T * M,
        z2=2 * B * T * M,
        g=2 * B * T * M,
    ),
    16 * B * T * D + 2 * B * h * T + 8 * B * T * M,
)
SOURCES = (KORTHIKANTI, MEGATRON, LLM_ANALYSIS, LLM_ANALYSIS_FLASH, SIMUMAX)

# What stands in a block for a term of a source: after rotation, with fewer heads, or of another FFN.
TODAY = dict(Q="Q_rot", K="K_rot", V="V_g", z="z1")
STANDS: Mapping[str, Mapping[str, str]] = {"llama3": TODAY, "qwen3": TODAY}

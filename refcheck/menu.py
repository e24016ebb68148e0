"""What the calculator offers: the parts of a model, one line each, with the choices that call for them.

`totals` adds up the claims; the page does the same with what refcheck.calculator exports, and knows no formula itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Mul

from refcheck.block import Composed, Part
from refcheck.layers import (
    attention_dropout,
    attention_value,
    cross_entropy,
    dropout,
    embedding,
    ffn_dropout,
    ffn_gelu,
    ffn_swiglu,
    final_norm,
    gqa,
    layernorm,
    linear,
    lm_head,
    mask,
    out_proj,
    qk_norm,
    qkv,
    relu,
    residual,
    rmsnorm,
    rope,
    scores,
    sdpa,
    softmax,
)
from refcheck.saved import ON_DEVICE, Saved, device_bytes
from refcheck.sizes import DTYPES, ITEMSIZE, B, D, M, T, at_sizes, d, g, h
from refcheck.spec import Input, Layer, absence, activation
from refcheck.words import DEVICE

QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "device": tuple(DEVICE),
    "dtype": DTYPES,
    "heads": ("plain", "rope", "qk-norm"),
    "attention": ("eager", "flash", "cudnn"),
    "dropout": ("off", "branches", "everywhere"),
    "norm": ("layernorm", "rmsnorm"),
    "ffn": ("gelu", "relu", "swiglu", "swiglu-recomputing"),
    "recompute": ("none", "attention", "block"),
    "loss": ("eager", "float32"),
}
SIZES = ("B", "T", "L", "D", "h", "d", "g", "M", "V")
LIMIT = 10**9  # of a size
REPEATED = ("eager", "cudnn")  # where each head has keys and values of its own, copied if there are fewer
GPT = dict(heads="plain", attention="eager", dropout="everywhere", norm="layernorm", ffn="gelu", loss="eager")
LLAMA = dict(heads="rope", attention="flash", dropout="off", norm="rmsnorm", ffn="swiglu", loss="float32")
QWEN = LLAMA | dict(heads="qk-norm")
DEFAULT = "Llama-3-8B", dict(device="cuda", dtype="bfloat16", recompute="none", **LLAMA)


@dataclass(frozen=True, eq=False)
class Recomputed:
    """Layers that torch.utils.checkpoint runs again in the backward: what goes into them is all that is kept."""

    inputs: Mapping[str, Input]

    def claim(self, device: str, dtype: str) -> tuple[Saved, ...]:
        return tuple(
            Saved(n, "checkpoint", "args", i.shape, dtype, Mul(ITEMSIZE[dtype], *i.shape), "activation")
            for n, i in self.inputs.items()
        )


@dataclass(frozen=True, eq=False)
class Line:
    """A part of a model, the stage that it belongs to, and the choices that call for it: ids apart by blanks."""

    stage: str
    part: Part | Recomputed
    when: Mapping[str, str]

    def called(self, choices: Mapping[str, str]) -> bool:
        return all(choices[question] in ids.split() for question, ids in self.when.items())


def outside(part: Part, **when: str) -> Line:
    return Line("outside", part, when)


def block(stage: str, part: Part | Recomputed, **when: str) -> Line:
    """A part of a block; when the whole block is recomputed, it keeps nothing."""
    return Line(stage, part, {"recompute": "none attention", **when})


def core(part: Part, **when: str) -> Line:
    """A part of attention between the projections."""
    return block("attention", part, recompute="none", **when)


def norms(x: str, n: str, layer: Layer = layernorm.LAYER) -> tuple[tuple[Part, str], ...]:
    names = dict(x=x, mean=f"mean_{n}", rstd=f"rstd_{n}", x_hat=f"x_hat_{n}", w=f"w_{n}", b=f"b_{n}")
    return (Part(layer, "eager", names), "layernorm"), (Part(rmsnorm.LAYER, "eager", names), "rmsnorm")


MANY, FEW = activation(B, h, T, d), activation(B, g, T, d)
TURNED = dict(Q="Q_rot", K_g="K_rot")  # rotated
NO_DROPOUT = dict(P_dropped="P")
IS_C = dict(O="c")  # fused attention lays its output out as the projection after it reads it
LINES: tuple[Line, ...] = (
    outside(Part(embedding.LAYER, "eager")),
    outside(Part(dropout.LAYER, "eager", dict(m="m_embedding", n="n_embedding")), dropout="branches everywhere"),
    block("recomputed", Recomputed(dict(x=activation(B, T, h * d))), recompute="block"),
    *(block("norm", part, norm=norm) for part, norm in norms("x", "1")),
    block("attention", Part(qkv.LAYER, "eager")),
    block("attention", Part(qk_norm.LAYER, "eager"), heads="qk-norm"),
    block("attention", Part(rope.LAYER, "eager"), heads="rope qk-norm"),
    block("attention", Part(rope.LAYER, "eager", sizes={h: g}), heads="rope qk-norm"),  # K, with the same tables
    block("recomputed", Recomputed(dict(Q=MANY, K_g=FEW, V_g=FEW)), recompute="attention", heads="plain"),
    block("recomputed", Recomputed(dict(Q_rot=MANY, K_rot=FEW, V_g=FEW)), recompute="attention", heads="rope qk-norm"),
    core(Part(scores.LAYER, "eager"), attention="eager", heads="plain"),
    core(Part(scores.LAYER, "eager", TURNED), attention="eager", heads="rope qk-norm"),
    core(Part(mask.LAYER, "additive"), attention="eager"),
    core(Part(softmax.LAYER, "eager"), attention="eager"),
    core(Part(attention_dropout.LAYER, "eager"), attention="eager", dropout="everywhere"),
    core(Part(attention_value.LAYER, "eager"), attention="eager", dropout="everywhere"),
    core(Part(attention_value.LAYER, "eager", NO_DROPOUT), attention="eager", dropout="off branches"),
    core(Part(gqa.LAYER, "native", IS_C), attention="flash", heads="plain"),
    core(Part(gqa.LAYER, "native", TURNED | IS_C), attention="flash", heads="rope qk-norm"),
    core(Part(sdpa.LAYER, "cudnn", IS_C), attention="cudnn", heads="plain"),
    core(Part(sdpa.LAYER, "cudnn", TURNED | IS_C), attention="cudnn", heads="rope qk-norm"),
    block("attention", Part(out_proj.LAYER, "no-bias")),
    block(
        "attention",
        Part(dropout.LAYER, "eager", dict(m="m_attention", n="n_attention")),
        dropout="branches everywhere",
    ),
    block("attention", Part(residual.LAYER, "eager")),
    *(block("norm", part, norm=norm) for part, norm in norms("x_2", "2")),
    block("ffn", Part(ffn_gelu.LAYER, "eager"), ffn="gelu"),
    block("ffn", Part(linear.LAYER, "eager", dict(x="v", W="W1", b="b1")), ffn="relu"),
    block("ffn", Part(relu.LAYER, "eager"), ffn="relu"),
    block("ffn", Part(linear.LAYER, "eager", dict(x="g", W="W2", b="b2"), {D: M, M: D}), ffn="relu"),
    block("ffn", Part(ffn_swiglu.LAYER, "eager"), ffn="swiglu"),
    block("ffn", Part(ffn_swiglu.LAYER, "recomputing"), ffn="swiglu-recomputing"),
    block("ffn", Part(ffn_dropout.LAYER, "eager", dict(m="m_ffn", n="n_ffn")), dropout="branches everywhere"),
    block("ffn", Part(residual.LAYER, "eager")),
    *(outside(part, norm=norm) for part, norm in norms("x_last", "last", final_norm.LAYER)),
    outside(Part(lm_head.LAYER, "no-bias", dict(x="x_final"))),
    outside(Part(cross_entropy.LAYER, "eager"), loss="eager"),
    outside(Part(cross_entropy.LAYER, "float32"), loss="float32"),
)
# What no line claims yet; the message stands beside the first choice that is named.
UNCLAIMED = (dict(dropout="everywhere", attention="flash cudnn", recompute="none"),)


# --- computed from the claims ---------------------------------------------------------------------------------------


def kept(choices: Mapping[str, str], within: bool) -> tuple[Saved, ...]:
    """What a block keeps (`within`), or the model outside its blocks, each storage once."""
    parts: Any = tuple(line.part for line in LINES if line.called(choices) and (line.stage != "outside") == within)
    union = Composed("model", {}, lambda: None, {}, parts).claim(choices["device"], choices["dtype"])
    return tuple(s for s in union if s.cls in ON_DEVICE)


def totals(choices: Mapping[str, str], sizes: Mapping[str, int]) -> tuple[int, int]:
    """Bytes that one block keeps, and that the model keeps: buffers, which all blocks share, once."""
    inside = kept(choices, True)
    shared = device_bytes(s for s in inside if s.cls == "buffer")
    one, once, rest = (at_sizes(n, sizes) for n in (device_bytes(inside), shared, device_bytes(kept(choices, False))))
    return one, sizes["L"] * (one - once) + once + rest


def refused() -> Iterator[tuple[dict[str, str], str, tuple[Part, str, str] | None]]:
    """Choices that don't go together: which, the question to say so at, and the part that can't run where, if any."""
    yield from ((dict(when), next(iter(when)), None) for when in UNCLAIMED)
    for line in LINES:
        for device in DEVICE:
            for dtype in DTYPES:
                if isinstance(line.part, Part) and absence(line.part.of, device, dtype):
                    when = {q: ids for q, ids in line.when.items() if q != "recompute"}
                    yield {**when, "device": device, "dtype": dtype}, "dtype", (line.part, device, dtype)

"""The block of Llama 3: RMSNorm before each branch, rotary positions, grouped-query flash attention, a SwiGLU FFN."""

from refcheck.block import Block, Composed, Part
from refcheck.layers import (
    cross_entropy,
    embedding,
    ffn_swiglu,
    gqa,
    linear,
    lm_head,
    out_proj,
    residual,
    rmsnorm,
    rope,
)
from refcheck.sizes import B, M, T, d, g, h
from refcheck.spec import activation, buffer, parameter

TABLE = (T, 2, d / 2)  # of cosines or sines


def project(u, W):
    """(B, T, D) -> (B, T, heads, d); W is (D, heads, d)."""
    return linear.no_bias(u, W.flatten(1)).unflatten(-1, W.shape[1:])


def turned(Q, cos, sin):
    return rope.eager(Q.unflatten(-1, cos.shape[1:]), cos, sin).flatten(-2)


def attend(Q, K, V, cos, sin):
    """Flash attention on rotated queries and keys, (B, T, heads, d) all; its heads side by side: (B, T, D)."""
    Q, K, V = turned(Q.transpose(1, 2), cos, sin), turned(K.transpose(1, 2), cos, sin), V.transpose(1, 2)
    O = gqa.native(Q.unflatten(1, (K.shape[1], -1)), K, V)
    return O.flatten(1, 2).transpose(1, 2).flatten(2)


def feed_forward(x_2, w_2, W_gate, W_up, W_down, eps):
    return x_2 + ffn_swiglu.eager(rmsnorm.eager(x_2, w_2, eps), W_gate, W_up, W_down)


def run(x, w_1, W_Q, W_K_g, W_V_g, cos, sin, W_O, w_2, W_gate, W_up, W_down, eps):
    u = rmsnorm.eager(x, w_1, eps)
    Q, K, V = (project(u, W) for W in (W_Q, W_K_g, W_V_g))
    x_2 = x + linear.no_bias(attend(Q, K, V, cos, sin), W_O)
    return feed_forward(x_2, w_2, W_gate, W_up, W_down, eps)


NORM_1 = dict(rstd="rstd_1", x_hat="x_hat_1", w="w_1")
NORM_2 = dict(x="x_2", rstd="rstd_2", x_hat="x_hat_2", w="w_2")
PROJECTIONS = (
    Part(linear.LAYER, "no-bias", dict(x="u", W="W_Q"), {M: h * d}),
    Part(linear.LAYER, "no-bias", dict(x="u", W="W_K_g"), {M: g * d}),
    Part(linear.LAYER, "no-bias", dict(x="u", W="W_V_g"), {M: g * d}),
)
ROTATED = dict(Q="Q_rot", K_g="K_rot", O="c")  # flash lays its output out as the projection reads it
AFTER = (
    Part(rope.LAYER, "eager"),
    Part(rope.LAYER, "eager", sizes={h: g}),  # K, with the same tables
    Part(gqa.LAYER, "native", ROTATED),
    Part(out_proj.LAYER, "no-bias"),
    Part(residual.LAYER, "eager"),
    Part(rmsnorm.LAYER, "eager", NORM_2),
    Part(ffn_swiglu.LAYER, "eager"),
    Part(residual.LAYER, "eager"),
)
INPUTS = dict(
    x=activation(B, T, h * d),
    w_1=parameter(h * d),
    W_Q=parameter(h * d, h, d),
    W_K_g=parameter(h * d, g, d),
    W_V_g=parameter(h * d, g, d),
    cos=buffer(*TABLE, dtype=None),
    sin=buffer(*TABLE, dtype=None),
    W_O=parameter(h * d, h * d),
    w_2=parameter(h * d),
    W_gate=parameter(h * d, M),
    W_up=parameter(h * d, M),
    W_down=parameter(M, h * d),
)
OUTSIDE = (
    Part(embedding.LAYER, "eager"),
    Part(rmsnorm.LAYER, "eager"),
    Part(lm_head.LAYER, "no-bias", dict(x="x_final")),
    Part(cross_entropy.LAYER, "float32"),
)
TITLE = dict(zh="融合注意力", en="with flash attention")
ABSENT = {"cuda/float32": "FlashAttention on CUDA takes fp16 and bf16 only"}

BLOCK = Block(
    __name__,
    title=dict(zh="Llama 3 的一层", en="A block of Llama 3"),
    implementations=(
        Composed(
            "flash",
            TITLE,
            run,
            INPUTS,
            (Part(rmsnorm.LAYER, "eager", NORM_1), *PROJECTIONS, *AFTER),
            scalars=dict(eps=1e-5),
            absent=ABSENT,
        ),
    ),
    outside=OUTSIDE,
)

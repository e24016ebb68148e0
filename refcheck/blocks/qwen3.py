"""The block of Qwen3: that of Llama 3, with an RMSNorm of each head of Q and of K before they are rotated."""

from refcheck.block import Block, Composed, Part
from refcheck.blocks.llama3 import (
    ABSENT,
    AFTER,
    INPUTS,
    NORM_1,
    OUTSIDE,
    PROJECTIONS,
    TITLE,
    attend,
    feed_forward,
    project,
)
from refcheck.layers import linear, qk_norm, rmsnorm
from refcheck.sizes import d
from refcheck.spec import parameter


def run(x, w_1, W_Q, W_K_g, W_V_g, w_Q, w_K, cos, sin, W_O, w_2, W_gate, W_up, W_down, eps):
    u = rmsnorm.eager(x, w_1, eps)
    Q, K, V = (project(u, W) for W in (W_Q, W_K_g, W_V_g))
    normed = qk_norm.eager(Q, K, w_Q, w_K, eps)  # before the heads are transposed, so that flash returns c
    x_2 = x + linear.no_bias(attend(normed["Q_norm"], normed["K_norm"], V, cos, sin), W_O)
    return feed_forward(x_2, w_2, W_gate, W_up, W_down, eps)


BLOCK = Block(
    __name__,
    title=dict(zh="Qwen3 的一层", en="A block of Qwen3"),
    implementations=(
        Composed(
            "flash",
            TITLE,
            run,
            INPUTS | dict(w_Q=parameter(d), w_K=parameter(d)),
            (Part(rmsnorm.LAYER, "eager", NORM_1), *PROJECTIONS, Part(qk_norm.LAYER, "eager"), *AFTER),
            scalars=dict(eps=1e-6),
            absent=ABSENT,
        ),
    ),
    outside=OUTSIDE,
)

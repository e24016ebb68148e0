"""The block of GPT-2: LayerNorm before each branch, eager attention with an additive mask, a GELU FFN, dropout."""

from refcheck.block import Block, Composed, Part
from refcheck.layers import (
    attention_dropout,
    attention_value,
    cross_entropy,
    dropout,
    embedding,
    ffn_dropout,
    ffn_gelu,
    final_norm,
    layernorm,
    lm_head,
    mask,
    out_proj,
    positions,
    qkv,
    residual,
    scores,
    softmax,
)
from refcheck.sizes import B, M, T, d, h
from refcheck.spec import activation, buffer, parameter

D = h * d


def run(x, w_1, b_1, W_Q, W_K, W_V, A, W_O, w_2, b_2, W1, b1, W2, b2, p, eps):
    import torch.nn.functional as F

    u = F.layer_norm(x, x.shape[-1:], w_1, b_1, eps)
    heads = qkv.eager(u, W_Q, W_K, W_V)
    S = mask.additive(scores.eager(heads["Q"], heads["K"]), A)
    P_dropped = F.dropout(F.softmax(S, dim=-1), p, training=True)
    c = attention_value.eager(P_dropped, heads["V"]).transpose(1, 2).flatten(2)
    a = F.dropout(F.linear(c, W_O.mT), p, training=True)
    x_2 = x + a
    v = F.layer_norm(x_2, x.shape[-1:], w_2, b_2, eps)
    y = F.dropout(ffn_gelu.eager(v, W1, b1, W2, b2), p, training=True)
    return x_2 + y


NORM_1 = dict(mean="mean_1", rstd="rstd_1", w="w_1", b="b_1")
NORM_2 = dict(x="x_2", mean="mean_2", rstd="rstd_2", w="w_2", b="b_2")
PARTS = (
    Part(layernorm.LAYER, "eager", NORM_1),
    Part(qkv.LAYER, "eager"),
    Part(scores.LAYER, "eager"),
    Part(mask.LAYER, "additive"),
    Part(softmax.LAYER, "eager"),
    Part(attention_dropout.LAYER, "eager"),
    Part(attention_value.LAYER, "eager"),
    Part(out_proj.LAYER, "no-bias"),
    Part(ffn_dropout.LAYER, "eager", dict(m="m_attention", n="n_attention")),
    Part(residual.LAYER, "eager"),
    Part(layernorm.LAYER, "eager", NORM_2),
    Part(ffn_gelu.LAYER, "eager"),
    Part(ffn_dropout.LAYER, "eager", dict(m="m_ffn", n="n_ffn")),
    Part(residual.LAYER, "eager"),
)
# With p = 0 the probabilities are what values are weighted by: P is held twice, one storage.
NO_DROPOUT = tuple(
    Part(part.layer, part.implementation, dict(P_dropped="P")) if part.layer is attention_value.LAYER else part
    for part in PARTS
    if part.layer not in (attention_dropout.LAYER, ffn_dropout.LAYER)
)
INPUTS = dict(
    x=activation(B, T, D),
    w_1=parameter(D),
    b_1=parameter(D),
    W_Q=parameter(D, h, d),
    W_K=parameter(D, h, d),
    W_V=parameter(D, h, d),
    A=buffer(T, T, dtype=None),
    W_O=parameter(D, D),
    w_2=parameter(D),
    b_2=parameter(D),
    W1=parameter(D, M),
    b1=parameter(M),
    W2=parameter(M, D),
    b2=parameter(D),
)

BLOCK = Block(
    __name__,
    title=dict(zh="GPT-2 的一层", en="A block of GPT-2"),
    implementations=(
        Composed(
            "eager",
            dict(zh="朴素实现，带 dropout", en="eager, with dropout"),
            run,
            INPUTS,
            PARTS,
            scalars=dict(p=0.1, eps=1e-5),
        ),
        Composed(
            "no-dropout",
            dict(zh="朴素实现，p = 0", en="eager, p = 0"),
            run,
            INPUTS,
            NO_DROPOUT,
            scalars=dict(p=0.0, eps=1e-5),
        ),
    ),
    outside=(
        Part(embedding.LAYER, "eager"),
        Part(positions.LAYER, "eager"),
        Part(dropout.LAYER, "eager", dict(m="m_embedding", n="n_embedding")),
        Part(final_norm.LAYER, "eager"),
        Part(lm_head.LAYER, "no-bias", dict(x="x_final")),
        Part(cross_entropy.LAYER, "eager"),
    ),
)

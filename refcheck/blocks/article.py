"""The block of the article: that of GPT-2, less one dropout.

Biases stand in the FFN alone, and dropout after the softmax and after the FFN; the output of attention a = cW_O goes
straight into x' = x + a.  Of what the article marks as optional this has the mask and both dropouts; its GELU FFN is
the one that it doesn't mark so.
"""

from refcheck.block import Block, Composed, Part
from refcheck.blocks.gpt2 import INPUTS, PARTS
from refcheck.layers import attention_value, cross_entropy, embedding, ffn_gelu, lm_head, mask, qkv, scores


def run(x, w_1, b_1, W_Q, W_K, W_V, A, W_O, w_2, b_2, W1, b1, W2, b2, p, eps):
    import torch.nn.functional as F

    u = F.layer_norm(x, x.shape[-1:], w_1, b_1, eps)
    heads = qkv.eager(u, W_Q, W_K, W_V)
    P = F.softmax(mask.additive(scores.eager(heads["Q"], heads["K"]), A), dim=-1)
    O = attention_value.eager(F.dropout(P, p, training=True), heads["V"])
    x_2 = x + F.linear(O.transpose(1, 2).flatten(2), W_O.mT)
    v = F.layer_norm(x_2, x.shape[-1:], w_2, b_2, eps)
    return x_2 + F.dropout(ffn_gelu.eager(v, W1, b1, W2, b2), p, training=True)


BLOCK = Block(
    __name__,
    title=dict(zh="文中的一层", en="The article's block"),
    implementations=(
        Composed(
            "eager",
            dict(zh="朴素实现，带 dropout", en="eager, with dropout"),
            run,
            INPUTS,
            tuple(part for part in PARTS if "m_attention" not in part.names.values()),
            scalars=dict(p=0.1, eps=1e-5),
        ),
    ),
    outside=(
        Part(embedding.LAYER, "eager"),
        Part(lm_head.LAYER, "no-bias", dict(x="x_final")),
        Part(cross_entropy.LAYER, "eager"),
    ),
)

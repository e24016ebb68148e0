"""The head: logits ℓ = xW, one for every token of the vocabulary; its weight may be the embedding's."""

from dataclasses import replace

from refcheck.arrays import einsum, one_hot
from refcheck.instance import instance
from refcheck.layers import linear
from refcheck.sizes import B, D, T, V
from refcheck.spec import Implementation, Pair, Saves, activation, parameter, tokens


def forward_tied(tokens, x, W_embed):
    outputs = dict(x_0=W_embed[tokens], logits=einsum("btd,vd->btv", x, W_embed))  # the blocks lie between
    return outputs, dict(tokens=tokens, x=x, W_embed=W_embed)


def backward_tied(d, s):
    tokens, x, W = s["tokens"], s["x"], s["W_embed"]
    from_head = einsum("btv,btd->vd", d["logits"], x)
    from_embedding = einsum("btv,btd->vd", one_hot(tokens, W.shape[0]), d["x_0"])
    return dict(x=einsum("btv,vd->btd", d["logits"], W), W_embed=from_head + from_embedding)


TIED = Pair(
    "tied",
    forward_tied,
    backward_tied,
    dict(tokens=tokens(B, T, below=V), x=activation(B, T, D), W_embed=parameter(V, D)),
)


def tied(tokens, x, W_embed):
    import torch.nn.functional as F

    return dict(x_0=F.embedding(tokens, W_embed), logits=F.linear(x, W_embed))


BOTH = Saves(TIED, at=dict(tokens="EmbeddingBackward0.indices", x="MmBackward0.self", W_embed="MmBackward0.mat2"))

HEAD = instance(
    __name__,
    title=dict(zh="LM head", en="LM head"),
    of=linear.LAYER,
    names=dict(W="W_vocab", y="logits"),
    inputs=dict(x=activation(B, T, D), W_vocab=parameter(D, V)),
    only={"no-bias": dict(zh="F.linear", en="F.linear")},
)
LAYER = replace(
    HEAD,
    implementations=(
        *HEAD.implementations,
        Implementation(
            "tied",
            dict(zh="和词嵌入共享权重，两层合计", en="tied to the embedding, both layers"),
            tied,
            cpu=BOTH,
            cuda=BOTH,
        ),
    ),
)

"""Token embedding: x = W[tokens]."""

from refcheck.arrays import einsum, one_hot
from refcheck.sizes import B, D, T, V
from refcheck.spec import Implementation, Layer, Pair, Saves, parameter, tokens


def forward(tokens, W):
    return W[tokens], dict(tokens=tokens, V=W.shape[0])


def backward(dx, s):
    return dict(W=einsum("btv,btd->vd", one_hot(s["tokens"], s["V"]), dx))  # row v collects the dx of its tokens


LOOKUP = Pair("lookup", forward, backward, dict(tokens=tokens(B, T, below=V), W=parameter(V, D)), output="x")


def eager(tokens, W):
    import torch.nn.functional as F

    return F.embedding(tokens, W)


EAGER = Saves(LOOKUP, at=dict(tokens="EmbeddingBackward0.indices"))

LAYER = Layer(
    __name__,
    title=dict(zh="词嵌入 Embedding", en="Embedding"),
    implementations=(Implementation("eager", dict(zh="F.embedding", en="F.embedding"), eager, cpu=EAGER, cuda=EAGER),),
)

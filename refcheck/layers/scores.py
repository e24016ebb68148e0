"""Attention scores: S = QKᵀ/√d."""

from refcheck.arrays import einsum, rsqrt
from refcheck.sizes import B, T, d, h
from refcheck.spec import Implementation, Layer, Pair, Saves, activation


def forward(Q, K):
    return einsum("bhid,bhjd->bhij", Q, K) * rsqrt(Q.shape[-1]), dict(Q=Q, K=K)


def backward(dS, s):
    scale = rsqrt(s["Q"].shape[-1])
    return dict(
        Q=einsum("bhij,bhjd->bhid", dS, s["K"]) * scale,
        K=einsum("bhij,bhid->bhjd", dS, s["Q"]) * scale,
    )


INPUTS = dict(Q=activation(B, h, T, d), K=activation(B, h, T, d))
SCORES = Pair("scores", forward, backward, INPUTS, output="S")


def eager(Q, K):
    return Q @ K.mT * Q.shape[-1] ** -0.5


EAGER = Saves(
    SCORES,
    at=dict(Q="BmmBackward0.self", K="BmmBackward0.mat2"),
    numbers=dict(scale="MulBackward0.other"),
)

LAYER = Layer(
    __name__,
    title=dict(zh="注意力打分", en="Attention scores"),
    implementations=(
        Implementation("eager", dict(zh="Q @ K.mT / √d", en="Q @ K.mT / √d"), eager, cpu=EAGER, cuda=EAGER),
    ),
)

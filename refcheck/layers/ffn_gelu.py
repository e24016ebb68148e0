"""The FFN of GPT-2: z = vW1 + b1, g = GELU(z), y = gW2 + b2."""

from refcheck.arrays import einsum
from refcheck.compiled import as_compiled, places
from refcheck.layers import gelu
from refcheck.sizes import B, D, M, T
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, parameter


def forward(v, W1, b1, W2, b2):
    z = einsum("btd,dm->btm", v, W1) + b1
    g, _ = gelu.forward(z)
    return einsum("btm,md->btd", g, W2) + b2, dict(v=v, z=z, g=g, W1=W1, W2=W2)


def backward(dy, s):
    dg = einsum("btd,md->btm", dy, s["W2"])
    dz = gelu.backward(dg, dict(z=s["z"]))["z"]
    return dict(
        v=einsum("btm,dm->btd", dz, s["W1"]),
        W1=einsum("btd,btm->dm", s["v"], dz),
        b1=dz.sum(axis=(0, 1)),
        W2=einsum("btm,btd->md", s["g"], dy),
        b2=dy.sum(axis=(0, 1)),
    )


INPUTS = dict(v=activation(B, T, D), W1=parameter(D, M), b1=parameter(M), W2=parameter(M, D), b2=parameter(D))
TWO_LINEAR = Pair("three-tensors", forward, backward, INPUTS)


def eager(v, W1, b1, W2, b2):
    import torch.nn.functional as F

    return F.linear(F.gelu(F.linear(v, W1.mT, b1)), W2.mT, b2)


EAGER = Saves(
    TWO_LINEAR,
    at=dict(
        v="AddmmBackward0.mat1",
        z="GeluBackward0.self",
        g="AddmmBackward0.mat1",
        W1="AddmmBackward0.mat2",
        W2="AddmmBackward0.mat2",
    ),
)
COMPILED = Saves(TWO_LINEAR, at=places("z", "W2", "g", "W1", "v"))

LAYER = Layer(
    __name__,
    title=dict(zh="GELU 前馈网络", en="FFN with GELU"),
    implementations=(
        Implementation(
            "eager",
            dict(zh="F.linear, F.gelu, F.linear", en="F.linear, F.gelu, F.linear"),
            eager,
            cpu=EAGER,
            cuda=EAGER,
        ),
        as_compiled(eager, COMPILED),
    ),
)

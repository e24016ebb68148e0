"""Linear layer: y = xW + b, or y = xW."""

from refcheck.arrays import einsum
from refcheck.sizes import B, D, M, T
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, parameter


def forward(x, W, b):
    return einsum("btd,dm->btm", x, W) + b, dict(x=x, W=W)


def backward(dy, s):
    return dict(
        x=einsum("btm,dm->btd", dy, s["W"]),
        W=einsum("btd,btm->dm", s["x"], dy),
        b=dy.sum(axis=(0, 1)),
    )


def forward_without_bias(x, W):
    return einsum("btd,dm->btm", x, W), dict(x=x, W=W)


def backward_without_bias(dy, s):
    return dict(x=einsum("btm,dm->btd", dy, s["W"]), W=einsum("btd,btm->dm", s["x"], dy))


INPUTS = dict(x=activation(B, T, D), W=parameter(D, M), b=parameter(M))
WITH_BIAS = Pair("with-bias", forward, backward, INPUTS)
WITHOUT_BIAS = Pair("without-bias", forward_without_bias, backward_without_bias, dict(x=INPUTS["x"], W=INPUTS["W"]))


def eager(x, W, b):
    import torch.nn.functional as F

    return F.linear(x, W.mT, b)  # nn.Linear stores W transposed: (M, D)


def no_bias(x, W):
    import torch.nn.functional as F

    return F.linear(x, W.mT)


EAGER = Saves(WITH_BIAS, at=dict(x="AddmmBackward0.mat1", W="AddmmBackward0.mat2"))
NO_BIAS = Saves(WITHOUT_BIAS, at=dict(x="MmBackward0.self", W="MmBackward0.mat2"))

LAYER = Layer(
    __name__,
    title=dict(zh="线性层 Linear", en="Linear"),
    implementations=(
        Implementation("eager", dict(zh="F.linear，有偏置", en="F.linear with a bias"), eager, cpu=EAGER, cuda=EAGER),
        Implementation(
            "no-bias", dict(zh="F.linear，无偏置", en="F.linear without a bias"), no_bias, cpu=NO_BIAS, cuda=NO_BIAS
        ),
    ),
)

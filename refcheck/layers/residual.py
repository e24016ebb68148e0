"""Residual connection: y = x + a, with a the output of the branch."""

from refcheck.sizes import B, D, T
from refcheck.spec import Implementation, Layer, Pair, Saves, activation


def forward(x, a):
    return x + a, {}


def backward(dy, s):
    return dict(x=dy, a=dy)


ADD = Pair("add", forward, backward, dict(x=activation(B, T, D), a=activation(B, T, D)))


def eager(x, a):
    return x + a


NOTHING = Saves(ADD, at={})

LAYER = Layer(
    __name__,
    title=dict(zh="残差连接", en="Residual connection"),
    implementations=(Implementation("eager", dict(zh="x + a", en="x + a"), eager, cpu=NOTHING, cuda=NOTHING),),
)

"""Dropout: y = x ⊙ m / (1 - p), with m drawn as 1 with probability 1 - p, else 0."""

from refcheck.compiled import as_compiled, places
from refcheck.sizes import B, D, T
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, mask


def forward(x, m, p):
    return x * m / (1 - p), dict(m=m, p=p)


def backward(dy, s):
    return dict(x=dy * s["m"] / (1 - s["p"]))


def forward_from_noise(x, m, p):
    n = (x * 0 + 1) * m / (1 - p)  # the scaled mask, in the dtype of x
    return x * n, dict(n=n)


def backward_from_noise(dy, s):
    return dict(x=dy * s["n"])


def forward_off(x):
    return x, {}


def backward_off(dy, s):
    return dict(x=dy)


INPUTS = dict(x=activation(B, T, D), m=mask(B, T, D))
SCALARS = dict(p=0.1)
FROM_MASK = Pair("from-mask", forward, backward, INPUTS, SCALARS)
FROM_NOISE = Pair("from-noise", forward_from_noise, backward_from_noise, INPUTS, SCALARS)
OFF = Pair("off", forward_off, backward_off, dict(x=INPUTS["x"]))


def eager(x, p):
    import torch.nn.functional as F

    return F.dropout(x, p, training=True)


def inplace(x, p):
    import torch.nn.functional as F

    return F.dropout(x, p, training=True, inplace=True)


def off(x):
    import torch.nn.functional as F

    return F.dropout(F.dropout(x, 0.1, training=False), 0.0, training=True)


def recover(y, x):
    return dict(m=y != 0)  # x has no entry that is 0


MASK = Saves(FROM_MASK, at=dict(m="NativeDropoutBackward0.result1"), dtypes=dict(m="bool"))
NOISE = Saves(FROM_NOISE, at=dict(n="MulBackward0.other"))
NOTHING = Saves(OFF, at={})
COMPILED = Saves(FROM_MASK, at=places("m"), dtypes=dict(m="bool"))

LAYER = Layer(
    __name__,
    title=dict(zh="Dropout", en="Dropout"),
    implementations=(
        Implementation("eager", dict(zh="F.dropout", en="F.dropout"), eager, cpu=NOISE, cuda=MASK, recover=recover),
        Implementation(
            "inplace",
            dict(zh="F.dropout(inplace=True)", en="F.dropout(inplace=True)"),
            inplace,
            cpu=NOISE,
            cuda=NOISE,
            recover=recover,
        ),
        Implementation("off", dict(zh="eval 模式，或 p = 0", en="eval mode, or p = 0"), off, cpu=NOTHING, cuda=NOTHING),
        as_compiled(eager, COMPILED, recover=recover),
    ),
)

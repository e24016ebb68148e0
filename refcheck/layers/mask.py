"""Attention mask: hides some scores, by adding a large negative number or by writing one."""

from refcheck.sizes import B, T, h
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, buffer


def forward(S, A):
    return S + A, {}


def backward(dS_masked, s):
    return dict(S=dS_masked)


def forward_fill(S, keep, fill):
    return S * keep + fill * (1 - keep * 1), dict(keep=keep)


def backward_fill(dS_masked, s):
    return dict(S=dS_masked * s["keep"])


S = activation(B, h, T, T)
ADDED = Pair("added", forward, backward, dict(S=S, A=buffer(T, T, dtype=None)), output="S_masked")
FILLED = Pair(
    "filled", forward_fill, backward_fill, dict(S=S, keep=buffer(T, T)), dict(fill=-10000.0), output="S_masked"
)


def additive(S, A):
    return S + A


def where(S, keep, fill):
    import torch

    return torch.where(keep, S, fill)


NOTHING = Saves(ADDED, at={})
WHERE = Saves(FILLED, at=dict(keep="WhereBackward0.condition"))

LAYER = Layer(
    __name__,
    title=dict(zh="注意力掩码", en="Attention mask"),
    implementations=(
        Implementation("additive", dict(zh="S + A", en="S + A"), additive, cpu=NOTHING, cuda=NOTHING),
        Implementation("where", dict(zh="torch.where", en="torch.where"), where, cpu=WHERE, cuda=WHERE),
    ),
)

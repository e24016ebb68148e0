"""Attention's weighted sum of values: O = P̃V, and c, the heads of O side by side."""

from refcheck.arrays import einsum
from refcheck.sizes import B, T, d, h
from refcheck.spec import Implementation, Layer, Pair, Saves, activation


def forward(P_dropped, V):
    return einsum("bhij,bhjd->bhid", P_dropped, V), dict(P_dropped=P_dropped, V=V)


def backward(dO, s):
    return dict(
        P_dropped=einsum("bhid,bhjd->bhij", dO, s["V"]),
        V=einsum("bhij,bhid->bhjd", s["P_dropped"], dO),
    )


INPUTS = dict(P_dropped=activation(B, h, T, T), V=activation(B, h, T, d))
WEIGHTED_SUM = Pair("weighted-sum", forward, backward, INPUTS, output="O")


def eager(P_dropped, V):
    return P_dropped @ V


EAGER = Saves(WEIGHTED_SUM, at=dict(P_dropped="BmmBackward0.self", V="BmmBackward0.mat2"))

LAYER = Layer(
    __name__,
    title=dict(zh="对 V 加权求和", en="Weighted sum of values"),
    implementations=(Implementation("eager", dict(zh="P̃ @ V", en="P̃ @ V"), eager, cpu=EAGER, cuda=EAGER),),
)

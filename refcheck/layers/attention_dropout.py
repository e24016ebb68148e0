"""Dropout on the attention probabilities: P̃ = P ⊙ m / (1 - p)."""

from refcheck.instance import instance
from refcheck.layers import dropout
from refcheck.sizes import B, T, h
from refcheck.spec import activation, mask

LAYER = instance(
    __name__,
    title=dict(zh="注意力 dropout", en="Attention dropout"),
    of=dropout.LAYER,
    names=dict(x="P", y="P_dropped"),
    inputs=dict(P=activation(B, h, T, T), m=mask(B, h, T, T)),
)

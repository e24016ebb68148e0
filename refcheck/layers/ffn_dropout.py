"""Dropout on the output of the FFN: ỹ = y ⊙ m / (1 - p)."""

from refcheck.instance import instance
from refcheck.layers import dropout
from refcheck.sizes import B, D, T
from refcheck.spec import activation, mask

LAYER = instance(
    __name__,
    title=dict(zh="FFN dropout", en="FFN dropout"),
    of=dropout.LAYER,
    names=dict(x="y", y="y_dropped"),
    inputs=dict(y=activation(B, T, D), m=mask(B, T, D)),
)

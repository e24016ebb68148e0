"""The head: logits ℓ = xW, one for every token of the vocabulary."""

from refcheck.instance import instance
from refcheck.layers import linear
from refcheck.sizes import B, D, T, V
from refcheck.spec import activation, parameter

LAYER = instance(
    __name__,
    title=dict(zh="LM head", en="LM head"),
    of=linear.LAYER,
    names=dict(W="W_vocab", y="logits"),
    inputs=dict(x=activation(B, T, D), W_vocab=parameter(D, V)),
    only={"no-bias": dict(zh="F.linear", en="F.linear")},
)

"""The output projection of attention: a = cW_O, with c the heads of O side by side."""

from refcheck.instance import instance
from refcheck.layers import linear
from refcheck.sizes import B, T, d, h
from refcheck.spec import activation, parameter

LAYER = instance(
    __name__,
    title=dict(zh="注意力输出投影", en="Attention output projection"),
    of=linear.LAYER,
    names=dict(x="c", W="W_O", y="a"),
    inputs=dict(c=activation(B, T, h * d), W_O=parameter(h * d, h * d)),
    only={"no-bias": dict(zh="F.linear", en="F.linear")},
)

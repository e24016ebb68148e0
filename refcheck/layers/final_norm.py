"""The norm after the last block, before the head."""

from refcheck.instance import instance
from refcheck.layers import layernorm

LAYER = instance(
    __name__,
    title=dict(zh="最后的归一化", en="Final norm"),
    of=layernorm.LAYER,
    names=dict(y="x_final"),
    inputs=layernorm.INPUTS,
    only={"eager": dict(zh="F.layer_norm", en="F.layer_norm")},
)

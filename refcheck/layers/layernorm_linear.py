"""LayerNorm and the linear layer behind it, as one: u = LayerNorm(x), y = uW1 + b1."""

from refcheck.arrays import einsum
from refcheck.compiled import as_compiled, places
from refcheck.function import written_out
from refcheck.layers import layernorm, linear
from refcheck.sizes import B, D, M, T
from refcheck.spec import Implementation, Layer, Pair, Saves, Unneeded, activation, parameter


def forward(x, w, b, W1, b1, eps):
    u, norm = layernorm.forward(x, w, b, eps)
    return einsum("btd,dm->btm", u, W1) + b1, dict(norm, u=u, W1=W1)


def backward(dy, s):
    behind = linear.backward(dy, dict(x=s["u"], W=s["W1"]))
    norm = layernorm.backward(behind["x"], s)
    return dict(norm, W1=behind["W"], b1=behind["b"])


def forward_from_output(x, w, b, W1, b1, eps):
    y, s = forward(x, w, b, W1, b1, eps)
    return y, dict(u=s["u"], rstd=s["rstd"], w=w, b=b, W1=W1)


def backward_from_output(dy, s):
    behind = linear.backward(dy, dict(x=s["u"], W=s["W1"]))
    norm = layernorm.backward_from_output(behind["x"], dict(y=s["u"], rstd=s["rstd"], w=s["w"], b=s["b"]))
    return dict(norm, W1=behind["W"], b1=behind["b"])


INPUTS = dict(x=activation(B, T, D), w=parameter(D), b=parameter(D), W1=parameter(D, M), b1=parameter(M))
BOTH = Pair("both", forward, backward, INPUTS, layernorm.SCALARS)
FROM_OUTPUT = Pair("from-output", forward_from_output, backward_from_output, INPUTS, layernorm.SCALARS)


def eager(x, w, b, W1, b1, eps):
    import torch.nn.functional as F

    return F.linear(F.layer_norm(x, x.shape[-1:], w, b, eps), W1.mT, b1)


AT = dict(layernorm.AT, u="AddmmBackward0.mat1", W1="AddmmBackward0.mat2")
BIAS = Unneeded(
    "b",
    at="NativeLayerNormBackward0.bias",
    reason=dict(
        zh="没有一个梯度用到 b；LayerNorm 的节点照样留着它。它是参数，不另占激活显存。",
        en="No gradient uses b; LayerNorm's node holds it all the same. It is a parameter, so it adds no memory.",
    ),
)
CPU = Saves(BOTH, AT, without_need=(BIAS,))
CUDA = Saves(BOTH, AT, dtypes=dict(mean="float32", rstd="float32"), without_need=(BIAS,))
COMPILED = Saves(BOTH, at=places("x", "w", "mean", "rstd", "W1", "u"))

LAYER = Layer(
    __name__,
    title=dict(zh="LayerNorm 接线性层", en="LayerNorm, then a linear layer"),
    implementations=(
        Implementation(
            "eager", dict(zh="F.layer_norm, F.linear", en="F.layer_norm, F.linear"), eager, cpu=CPU, cuda=CUDA
        ),
        as_compiled(eager, COMPILED),
        written_out(
            FROM_OUTPUT,
            "LayerNormLinearFromOutput",
            dict(zh="只存 u 与 rstd，两步共用", en="keeps u, which both use, and rstd"),
            like=eager,
        ),
    ),
)

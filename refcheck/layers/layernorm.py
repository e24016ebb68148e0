"""LayerNorm over the last axis, with weight and bias: y = (x - mean) · rstd · w + b."""

from refcheck.arrays import rsqrt
from refcheck.function import written_out
from refcheck.sizes import B, D, T
from refcheck.spec import Implementation, Layer, Pair, Saves, Unneeded, activation, parameter


def forward(x, w, b, eps):
    mean = x.mean(axis=-1, keepdims=True)  # (B, T, 1)
    rstd = rsqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + eps)  # (B, T, 1)
    return (x - mean) * rstd * w + b, dict(x=x, mean=mean, rstd=rstd, w=w)


def backward(dy, s):
    x_hat = (s["x"] - s["mean"]) * s["rstd"]  # recomputed, not saved
    return gradients(dy, x_hat, s["rstd"], s["w"])


def gradients(dy, x_hat, rstd, w):
    dx_hat = dy * w
    along_1 = dx_hat.mean(axis=-1, keepdims=True)  # what moving the mean takes back
    along_x_hat = x_hat * (dx_hat * x_hat).mean(axis=-1, keepdims=True)  # what moving the variance takes back
    dx = rstd * (dx_hat - along_1 - along_x_hat)
    return dict(x=dx, w=(dy * x_hat).sum(axis=(0, 1)), b=dy.sum(axis=(0, 1)))


def forward_from_input(x, w, b, eps):
    return forward(x, w, b, eps)[0], dict(x=x, w=w, eps=eps)


def backward_from_input(dy, s):
    return backward(dy, forward(s["x"], s["w"], 0, s["eps"])[1])  # mean and rstd are recomputed; b plays no part


def forward_from_normalized(x, w, b, eps):
    y, s = forward(x, w, b, eps)
    return y, dict(x_hat=(x - s["mean"]) * s["rstd"], rstd=s["rstd"], w=w)


def backward_from_normalized(dy, s):
    return gradients(dy, s["x_hat"], s["rstd"], s["w"])


def forward_from_output(x, w, b, eps):
    y, s = forward(x, w, b, eps)
    return y, dict(y=y, rstd=s["rstd"], w=w, b=b)


def backward_from_output(dy, s):
    x_hat = (s["y"] - s["b"]) / s["w"]  # no entry of w may be 0
    return gradients(dy, x_hat, s["rstd"], s["w"])


INPUTS = dict(x=activation(B, T, D), w=parameter(D), b=parameter(D))
SCALARS = dict(eps=1e-5)
WITH_STATISTICS = Pair("with-statistics", forward, backward, INPUTS, SCALARS)
FROM_INPUT = Pair("from-input", forward_from_input, backward_from_input, INPUTS, SCALARS)
FROM_NORMALIZED = Pair("from-normalized", forward_from_normalized, backward_from_normalized, INPUTS, SCALARS)
FROM_OUTPUT = Pair("from-output", forward_from_output, backward_from_output, INPUTS, SCALARS)


def eager(x, w, b, eps):
    import torch.nn.functional as F

    return F.layer_norm(x, x.shape[-1:], w, b, eps)


AT = dict(
    x="NativeLayerNormBackward0.input",
    mean="NativeLayerNormBackward0.result1",
    rstd="NativeLayerNormBackward0.result2",
    w="NativeLayerNormBackward0.weight",
)
BIAS = Unneeded(
    "b",
    at="NativeLayerNormBackward0.bias",
    reason=dict(
        zh="db = Σ dy，用不到 b；反向只看 b 是否存在，决定要不要算 db。它是参数，不另占激活显存。",
        en="db = Σ dy doesn't use b; backward only asks whether there is one. It is a parameter, so it adds no memory.",
    ),
)
CPU = Saves(WITH_STATISTICS, AT, without_need=(BIAS,))
CUDA = Saves(WITH_STATISTICS, AT, dtypes=dict(mean="float32", rstd="float32"), without_need=(BIAS,))

LAYER = Layer(
    __name__,
    title=dict(zh="层归一化 LayerNorm", en="LayerNorm"),
    implementations=(
        Implementation("eager", dict(zh="F.layer_norm", en="F.layer_norm"), eager, cpu=CPU, cuda=CUDA),
        written_out(
            FROM_INPUT,
            "LayerNormFromInput",
            dict(zh="只存 x，反向时重算统计量", en="keeps x, recomputes its statistics in the backward"),
            like=eager,
        ),
        written_out(
            FROM_NORMALIZED,
            "LayerNormFromNormalized",
            dict(zh="存 x̂ 与 rstd", en="keeps x̂ and rstd"),
            like=eager,
        ),
        written_out(
            FROM_OUTPUT,
            "LayerNormFromOutput",
            dict(zh="存输出 y 与 rstd", en="keeps the output y and rstd"),
            like=eager,
        ),
    ),
)

"""RMSNorm over the last axis, with weight: y = x · rstd · w."""

from refcheck.arrays import rsqrt
from refcheck.sizes import B, D, T
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, parameter


def forward(x, w, eps):
    rstd = rsqrt((x**2).mean(axis=-1, keepdims=True) + eps)  # (B, T, 1)
    return x * rstd * w, dict(x=x, rstd=rstd, w=w)


def backward(dy, s):
    return dict(x=through_norm(dy * s["w"], s["x"], s["rstd"]), w=(dy * s["x"] * s["rstd"]).sum(axis=(0, 1)))


def through_norm(dx_hat, x, rstd):
    along_x = x * rstd**2 * (dx_hat * x).mean(axis=-1, keepdims=True)  # what moving the mean square takes back
    return rstd * (dx_hat - along_x)


def forward_composed(x, w, eps):
    rstd = rsqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    x_hat = x * rstd
    return x_hat * w, dict(x=x, rstd=rstd, x_hat=x_hat, w=w)


def backward_composed(dy, s):
    return dict(x=through_norm(dy * s["w"], s["x"], s["rstd"]), w=(dy * s["x_hat"]).sum(axis=(0, 1)))


INPUTS = dict(x=activation(B, T, D), w=parameter(D))
WITH_RSTD = Pair("with-rstd", forward, backward, INPUTS, dict(eps=1e-6))
COMPOSED = Pair("composed", forward_composed, backward_composed, INPUTS, dict(eps=1e-6))


def eager(x, w, eps):
    import torch.nn.functional as F

    return F.rms_norm(x, x.shape[-1:], w, eps)


def by_hand(x, w, eps):
    import torch

    x32 = x.to(torch.float32)
    rstd = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return w * (x32 * rstd).to(x.dtype)


CUDA = Saves(
    WITH_RSTD,
    at=dict(x="FusedRmsNormBackward0.input", rstd="FusedRmsNormBackward0.result1", w="FusedRmsNormBackward0.weight"),
    dtypes=dict(rstd="float32"),
)
CPU = Saves(
    COMPOSED,
    at=dict(
        x=("MulBackward0.self", "PowBackward0.self"),
        rstd=("MulBackward0.other", "RsqrtBackward0.result"),
        x_hat="MulBackward0.self",
        w="MulBackward0.other",
    ),
    dtypes=dict(x="float32", rstd="float32", x_hat="float32"),
)
BY_HAND = Saves(
    COMPOSED,
    at=dict(
        x=("MulBackward0.self", "PowBackward0.self"),
        rstd=("MulBackward0.other", "RsqrtBackward0.result"),
        x_hat="MulBackward0.other",
        w="MulBackward0.self",
    ),
    dtypes=dict(x="float32", rstd="float32"),  # x_hat was cast back before it is multiplied by w
)

LAYER = Layer(
    __name__,
    title=dict(zh="RMSNorm", en="RMSNorm"),
    implementations=(
        Implementation("eager", dict(zh="F.rms_norm", en="F.rms_norm"), eager, cpu=CPU, cuda=CUDA),
        Implementation(
            "by-hand",
            dict(zh="手写，如 LlamaRMSNorm", en="by hand, as LlamaRMSNorm"),
            by_hand,
            cpu=BY_HAND,
            cuda=BY_HAND,
            like=eager,
        ),
    ),
)

"""GELU: g = z · Φ(z), exact or with its tanh approximation."""

from refcheck.arrays import erf, exact, exp, tanh
from refcheck.sizes import B, M, T
from refcheck.spec import Implementation, Layer, Pair, Saves, activation

RSQRT_2 = exact("1/sqrt(2)")
RSQRT_2PI = exact("1/sqrt(2*pi)")
SQRT_2_OVER_PI = exact("sqrt(2/pi)")
CUBIC = exact("0.044715")


def forward(z):
    Phi = (1 + erf(z * RSQRT_2)) / 2  # the normal distribution function
    return z * Phi, dict(z=z)


def backward(dg, s):
    z = s["z"]
    Phi = (1 + erf(z * RSQRT_2)) / 2
    phi = exp(-(z**2) / 2) * RSQRT_2PI  # its density
    return dict(z=dg * (Phi + z * phi))


def forward_tanh(z):
    t = tanh((z + z**3 * CUBIC) * SQRT_2_OVER_PI)
    return z * (1 + t) / 2, dict(z=z)


def backward_tanh(dg, s):
    z = s["z"]
    t = tanh((z + z**3 * CUBIC) * SQRT_2_OVER_PI)
    dt = (1 - t**2) * (1 + z**2 * CUBIC * 3) * SQRT_2_OVER_PI
    return dict(z=dg * ((1 + t) / 2 + z * dt / 2))


def forward_by_hand(z):
    half_z, one_plus_tanh = z / 2, tanh((z + z**3 * CUBIC) * SQRT_2_OVER_PI) + 1
    return half_z * one_plus_tanh, dict(z=z, tanh=one_plus_tanh - 1, half_z=half_z, one_plus_tanh=one_plus_tanh)


def backward_by_hand(dg, s):
    dtanh = dg * s["half_z"] * (1 - s["tanh"] ** 2)  # through the second factor, and on through tanh
    return dict(z=dg * s["one_plus_tanh"] / 2 + dtanh * (1 + s["z"] ** 2 * CUBIC * 3) * SQRT_2_OVER_PI)


def forward_by_hand_erf(z):
    half_z, z_scaled = z / 2, z * RSQRT_2
    one_plus_erf = erf(z_scaled) + 1
    return half_z * one_plus_erf, dict(z_scaled=z_scaled, half_z=half_z, one_plus_erf=one_plus_erf)


def backward_by_hand_erf(dg, s):
    derf = dg * s["half_z"] * exp(-(s["z_scaled"] ** 2)) * RSQRT_2PI * 2  # erf'(u) = 2/sqrt(pi) exp(-u²), u = z/sqrt(2)
    return dict(z=dg * s["one_plus_erf"] / 2 + derf)


INPUTS = dict(z=activation(B, T, M))
EXACT = Pair("exact", forward, backward, INPUTS, output="g")
TANH = Pair("tanh", forward_tanh, backward_tanh, INPUTS, output="g")
BY_HAND = Pair("by-hand", forward_by_hand, backward_by_hand, INPUTS, output="g")
BY_HAND_ERF = Pair("by-hand-erf", forward_by_hand_erf, backward_by_hand_erf, INPUTS, output="g")


def eager(z):
    import torch.nn.functional as F

    return F.gelu(z)


def eager_tanh(z):
    import torch.nn.functional as F

    return F.gelu(z, approximate="tanh")


def by_hand(z):
    import math

    import torch

    return 0.5 * z * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * torch.pow(z, 3.0))))


def by_hand_erf(z):
    import math

    import torch

    return z * 0.5 * (1.0 + torch.erf(z / math.sqrt(2.0)))


SAVES = Saves(EXACT, at=dict(z="GeluBackward0.self"))
SAVES_TANH = Saves(TANH, at=dict(z="GeluBackward0.self"))
SAVES_BY_HAND = Saves(
    BY_HAND,
    at=dict(
        z="PowBackward0.self",
        tanh="TanhBackward0.result",
        half_z="MulBackward0.self",
        one_plus_tanh="MulBackward0.other",
    ),
    numbers=dict(half="MulBackward0.other", cubic="MulBackward0.other", scale="MulBackward0.other"),
)
SAVES_BY_HAND_ERF = Saves(
    BY_HAND_ERF,
    at=dict(z_scaled="ErfBackward0.self", half_z="MulBackward0.self", one_plus_erf="MulBackward0.other"),
    numbers=dict(half="MulBackward0.other", sqrt_2="DivBackward0.other"),
)

LAYER = Layer(
    __name__,
    title=dict(zh="GELU", en="GELU"),
    implementations=(
        Implementation("eager", dict(zh="F.gelu", en="F.gelu"), eager, cpu=SAVES, cuda=SAVES),
        Implementation(
            "tanh",
            dict(zh='F.gelu(approximate="tanh")', en='F.gelu(approximate="tanh")'),
            eager_tanh,
            cpu=SAVES_TANH,
            cuda=SAVES_TANH,
        ),
        Implementation(
            "by-hand",
            dict(zh="手写 tanh 近似，如 gelu_new", en="tanh by hand, as gelu_new"),
            by_hand,
            cpu=SAVES_BY_HAND,
            cuda=SAVES_BY_HAND,
            like=eager_tanh,
        ),
        Implementation(
            "by-hand-erf",
            dict(zh="手写精确式", en="exact, by hand"),
            by_hand_erf,
            cpu=SAVES_BY_HAND_ERF,
            cuda=SAVES_BY_HAND_ERF,
            like=eager,
        ),
    ),
)

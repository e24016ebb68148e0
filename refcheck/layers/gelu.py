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


INPUTS = dict(z=activation(B, T, M))
EXACT = Pair("exact", forward, backward, INPUTS, output="g")
TANH = Pair("tanh", forward_tanh, backward_tanh, INPUTS, output="g")


def eager(z):
    import torch.nn.functional as F

    return F.gelu(z)


def eager_tanh(z):
    import torch.nn.functional as F

    return F.gelu(z, approximate="tanh")


SAVES = Saves(EXACT, at=dict(z="GeluBackward0.self"))
SAVES_TANH = Saves(TANH, at=dict(z="GeluBackward0.self"))

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
    ),
)

"""SwiGLU: g = SiLU(z1) ⊙ z2, with SiLU(z) = z · σ(z)."""

from refcheck.arrays import sigmoid
from refcheck.compiled import as_compiled, places
from refcheck.function import written_out
from refcheck.sizes import B, M, T
from refcheck.spec import Implementation, Layer, Pair, Saves, activation


def forward(z1, z2):
    a = z1 * sigmoid(z1)
    return a * z2, dict(z1=z1, a=a, z2=z2)


def backward(dg, s):
    return dict(z1=dg * s["z2"] * slope(s["z1"]), z2=dg * s["a"])


def slope(z):
    sigma = sigmoid(z)
    return sigma * (1 + z * (1 - sigma))


def forward_recomputing(z1, z2):
    return forward(z1, z2)[0], dict(z1=z1, z2=z2)


def backward_recomputing(dg, s):
    return backward(dg, forward(s["z1"], s["z2"])[1])  # SiLU(z1) is recomputed


INPUTS = dict(z1=activation(B, T, M), z2=activation(B, T, M))
EAGER_PAIR = Pair("three", forward, backward, INPUTS, output="g")
TWO = Pair("recomputing", forward_recomputing, backward_recomputing, INPUTS, output="g")


def eager(z1, z2):
    import torch.nn.functional as F

    return F.silu(z1) * z2


EAGER = Saves(EAGER_PAIR, at=dict(z1="SiluBackward0.self", a="MulBackward0.self", z2="MulBackward0.other"))
COMPILED = Saves(TWO, at=places("z1", "z2"))

LAYER = Layer(
    __name__,
    title=dict(zh="SwiGLU", en="SwiGLU"),
    implementations=(
        Implementation("eager", dict(zh="F.silu(z1) * z2", en="F.silu(z1) * z2"), eager, cpu=EAGER, cuda=EAGER),
        written_out(
            TWO,
            "SwiGLURecomputing",
            dict(zh="融合写法：反向时重算 SiLU(z1)", en="as fused kernels do: SiLU(z1) recomputed in the backward"),
            like=eager,
        ),
        as_compiled(eager, COMPILED),
    ),
)

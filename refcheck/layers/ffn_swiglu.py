"""The FFN of Llama: z1 = vW_gate, z2 = vW_up, g = SiLU(z1) ⊙ z2, y = gW_down."""

from refcheck.arrays import einsum
from refcheck.function import written_out
from refcheck.layers import swiglu
from refcheck.sizes import B, D, M, T
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, parameter


def forward(v, W_gate, W_up, W_down):
    z1, z2 = einsum("btd,dm->btm", v, W_gate), einsum("btd,dm->btm", v, W_up)
    g, kept = swiglu.forward(z1, z2)
    y = einsum("btm,md->btd", g, W_down)
    return y, dict(v=v, **kept, g=g, W_gate=W_gate, W_up=W_up, W_down=W_down)


def backward(dy, s):
    dz = swiglu.backward(einsum("btd,md->btm", dy, s["W_down"]), s)
    return dict(
        v=einsum("btm,dm->btd", dz["z1"], s["W_gate"]) + einsum("btm,dm->btd", dz["z2"], s["W_up"]),
        W_gate=einsum("btd,btm->dm", s["v"], dz["z1"]),
        W_up=einsum("btd,btm->dm", s["v"], dz["z2"]),
        W_down=einsum("btm,btd->md", s["g"], dy),
    )


def forward_recomputing(v, W_gate, W_up, W_down):
    y, s = forward(v, W_gate, W_up, W_down)
    return y, {name: s[name] for name in ("v", "z1", "z2", "W_gate", "W_up", "W_down")}


def backward_recomputing(dy, s):
    g, kept = swiglu.forward(s["z1"], s["z2"])  # SiLU(z1) and g are recomputed
    weights = {name: s[name] for name in ("W_gate", "W_up", "W_down")}
    return backward(dy, dict(v=s["v"], **kept, g=g, **weights))


INPUTS = dict(v=activation(B, T, D), W_gate=parameter(D, M), W_up=parameter(D, M), W_down=parameter(M, D))
FIVE = Pair("five-tensors", forward, backward, INPUTS)
THREE = Pair("recomputing", forward_recomputing, backward_recomputing, INPUTS)


def eager(v, W_gate, W_up, W_down):
    import torch.nn.functional as F

    return F.linear(F.silu(F.linear(v, W_gate.mT)) * F.linear(v, W_up.mT), W_down.mT)


EAGER = Saves(
    FIVE,
    at=dict(
        v=("MmBackward0.self", "MmBackward0.self"),
        z1="SiluBackward0.self",
        a="MulBackward0.self",
        z2="MulBackward0.other",
        g="MmBackward0.self",
        W_gate="MmBackward0.mat2",
        W_up="MmBackward0.mat2",
        W_down="MmBackward0.mat2",
    ),
)

LAYER = Layer(
    __name__,
    title=dict(zh="SwiGLU 前馈网络", en="FFN with SwiGLU"),
    implementations=(
        Implementation(
            "eager",
            dict(zh="F.silu(gate) * up", en="F.silu(gate) * up"),
            eager,
            cpu=EAGER,
            cuda=EAGER,
        ),
        written_out(
            THREE,
            "SwiGLUFeedForwardRecomputing",
            dict(zh="反向时重算 SiLU(z1) 与 g", en="SiLU(z1) and g recomputed in the backward"),
            like=eager,
        ),
    ),
)

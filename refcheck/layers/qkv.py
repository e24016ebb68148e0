"""The projections to Q, K and V: three linear layers of one input u, split into heads."""

from refcheck.arrays import einsum
from refcheck.sizes import B, T, d, h
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, parameter


def forward(u, W_Q, W_K, W_V):
    Q = einsum("btc,chd->bhtd", u, W_Q)
    K = einsum("btc,chd->bhtd", u, W_K)
    V = einsum("btc,chd->bhtd", u, W_V)
    return dict(Q=Q, K=K, V=V), dict(u=u, W_Q=W_Q, W_K=W_K, W_V=W_V)


def backward(upstream, s):
    dQ, dK, dV = upstream["Q"], upstream["K"], upstream["V"]
    du_Q = einsum("bhtd,chd->btc", dQ, s["W_Q"])
    du_K = einsum("bhtd,chd->btc", dK, s["W_K"])
    du_V = einsum("bhtd,chd->btc", dV, s["W_V"])
    return dict(
        u=du_Q + du_K + du_V,
        W_Q=einsum("btc,bhtd->chd", s["u"], dQ),
        W_K=einsum("btc,bhtd->chd", s["u"], dK),
        W_V=einsum("btc,bhtd->chd", s["u"], dV),
    )


def forward_fused(u, W):
    return einsum("btc,cnhd->nbhtd", u, W), dict(u=u, W=W)


def backward_fused(dQKV, s):
    return dict(u=einsum("nbhtd,cnhd->btc", dQKV, s["W"]), W=einsum("btc,nbhtd->cnhd", s["u"], dQKV))


U = activation(B, T, h * d)
ONE = parameter(h * d, h, d)
SEPARATE = Pair("separate", forward, backward, dict(u=U, W_Q=ONE, W_K=ONE, W_V=ONE))
FUSED = Pair("fused", forward_fused, backward_fused, dict(u=U, W=parameter(h * d, 3, h, d)), output="QKV")


def project(u, W):
    """(B, T, D) -> (B, h, T, d); W is (D, h, d)."""
    import torch.nn.functional as F

    return F.linear(u, W.flatten(1).mT).unflatten(-1, W.shape[1:]).transpose(1, 2)


def eager(u, W_Q, W_K, W_V):
    return dict(Q=project(u, W_Q), K=project(u, W_K), V=project(u, W_V))


def fused(u, W):
    import torch.nn.functional as F

    return F.linear(u, W.flatten(1).mT).unflatten(-1, W.shape[1:]).permute(2, 0, 3, 1, 4)


INPUT, WEIGHT = "MmBackward0.self", "MmBackward0.mat2"
PLACES: dict[str, str | tuple[str, ...]] = dict(u=(INPUT, INPUT, INPUT), W_Q=WEIGHT, W_K=WEIGHT, W_V=WEIGHT)
EAGER = Saves(SEPARATE, at=PLACES)
ONE_LINEAR = Saves(FUSED, at=dict(u=INPUT, W=WEIGHT))

LAYER = Layer(
    __name__,
    title=dict(zh="QKV 投影", en="QKV projections"),
    implementations=(
        Implementation("eager", dict(zh="三个线性层", en="three linear layers"), eager, cpu=EAGER, cuda=EAGER),
        Implementation(
            "fused", dict(zh="一个合并的线性层", en="one fused linear layer"), fused, cpu=ONE_LINEAR, cuda=ONE_LINEAR
        ),
    ),
)

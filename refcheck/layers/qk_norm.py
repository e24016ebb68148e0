"""QK-Norm: RMSNorm over the d components of each head of Q and of K, before their products."""

from refcheck.arrays import rsqrt
from refcheck.layers import rmsnorm
from refcheck.sizes import B, T, d, g, h
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, parameter


def forward(Q, K_g, w_Q, w_K, eps):
    rstd_Q, rstd_K = rstd(Q, eps), rstd(K_g, eps)  # (B, h, T, 1) and (B, g, T, 1)
    normed = dict(Q_norm=Q * rstd_Q * w_Q, K_norm=K_g * rstd_K * w_K)
    return normed, dict(Q=Q, rstd_Q=rstd_Q, w_Q=w_Q, K_g=K_g, rstd_K=rstd_K, w_K=w_K)


def rstd(x, eps):
    return rsqrt((x**2).mean(axis=-1, keepdims=True) + eps)


def backward(upstream, s):
    dQ, dK = upstream["Q_norm"], upstream["K_norm"]
    return dict(
        Q=rmsnorm.through_norm(dQ * s["w_Q"], s["Q"], s["rstd_Q"]),
        K_g=rmsnorm.through_norm(dK * s["w_K"], s["K_g"], s["rstd_K"]),
        w_Q=(dQ * s["Q"] * s["rstd_Q"]).sum(axis=(0, 1, 2)),  # all heads of all tokens share w
        w_K=(dK * s["K_g"] * s["rstd_K"]).sum(axis=(0, 1, 2)),
    )


def forward_composed(Q, K_g, w_Q, w_K, eps):
    normed, s = forward(Q, K_g, w_Q, w_K, eps)
    return normed, s | dict(Q_hat=Q * s["rstd_Q"], K_hat=K_g * s["rstd_K"])


def backward_composed(upstream, s):
    dQ, dK = upstream["Q_norm"], upstream["K_norm"]
    return dict(
        Q=rmsnorm.through_norm(dQ * s["w_Q"], s["Q"], s["rstd_Q"]),
        K_g=rmsnorm.through_norm(dK * s["w_K"], s["K_g"], s["rstd_K"]),
        w_Q=(dQ * s["Q_hat"]).sum(axis=(0, 1, 2)),
        w_K=(dK * s["K_hat"]).sum(axis=(0, 1, 2)),
    )


INPUTS = dict(Q=activation(B, h, T, d), K_g=activation(B, g, T, d), w_Q=parameter(d), w_K=parameter(d))
EPS = dict(eps=1e-6)
WITH_RSTD = Pair("with-rstd", forward, backward, INPUTS, EPS)
COMPOSED = Pair("composed", forward_composed, backward_composed, INPUTS, EPS)


def eager(Q, K_g, w_Q, w_K, eps):
    return dict(Q_norm=rmsnorm.eager(Q, w_Q, eps), K_norm=rmsnorm.eager(K_g, w_K, eps))


def by_hand(Q, K_g, w_Q, w_K, eps):
    return dict(Q_norm=rmsnorm.by_hand(Q, w_Q, eps), K_norm=rmsnorm.by_hand(K_g, w_K, eps))


def places(x, rstd, w, x_hat=None):
    """Where one norm keeps its tensors; the other keeps its own in the same places."""
    first = dict(Q=x, rstd_Q=rstd, w_Q=w, K_g=x, rstd_K=rstd, w_K=w)
    return first | (dict(Q_hat=x_hat, K_hat=x_hat) if x_hat else {})


FUSED = "FusedRmsNormBackward0"
SELF, OTHER = "MulBackward0.self", "MulBackward0.other"
X, RSTD = (SELF, "PowBackward0.self"), (OTHER, "RsqrtBackward0.result")
FP32 = dict.fromkeys(("Q", "rstd_Q", "K_g", "rstd_K"), "float32")
CUDA = Saves(
    WITH_RSTD,
    at=places(f"{FUSED}.input", f"{FUSED}.result1", f"{FUSED}.weight"),
    dtypes=dict(rstd_Q="float32", rstd_K="float32"),
)
CPU = Saves(COMPOSED, at=places(X, RSTD, OTHER, SELF), dtypes=FP32 | dict(Q_hat="float32", K_hat="float32"))
BY_HAND = Saves(COMPOSED, at=places(X, RSTD, SELF, OTHER), dtypes=FP32)

LAYER = Layer(
    __name__,
    title=dict(zh="QK-Norm", en="QK-Norm"),
    implementations=(
        Implementation("eager", dict(zh="F.rms_norm", en="F.rms_norm"), eager, cpu=CPU, cuda=CUDA),
        Implementation(
            "by-hand",
            dict(zh="手写，内部用 fp32", en="written by hand, fp32 inside"),
            by_hand,
            cpu=BY_HAND,
            cuda=BY_HAND,
        ),
    ),
)

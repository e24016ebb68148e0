"""Autocast: parameters and inputs in fp32, matrix products in bf16 or fp16, and the copies that this keeps."""

from refcheck.arrays import einsum
from refcheck.layers import cross_entropy, linear, qkv
from refcheck.sizes import B, D, T, V, d, h
from refcheck.spec import COMPUTED, Implementation, Input, Layer, Pair, Saves, Unneeded, tokens


def forward(u, W):
    return linear.forward_without_bias(u, W)[0], dict(u=u, W=W)


def backward(dy, s):
    through = linear.backward_without_bias(dy, dict(x=s["u"], W=s["W"]))
    return dict(u=through["x"], W=through["W"])


def forward_qkv(u, W_Q, W_K, W_V):
    heads, s = qkv.forward(u, W_Q, W_K, W_V)
    return heads, dict(u_Q=u, u_K=u, u_V=u, W_Q=s["W_Q"], W_K=s["W_K"], W_V=s["W_V"])  # a copy of u for each


def backward_qkv(upstream, s):
    du, gradients = 0, {}
    for n in ("Q", "K", "V"):
        du = einsum("bhtd,chd->btc", upstream[n], s[f"W_{n}"]) + du
        gradients[f"W_{n}"] = einsum("btc,bhtd->chd", s[f"u_{n}"], upstream[n])
    return dict(u=du, **gradients)


def forward_twice(u, W):
    y_1 = forward(u, W)[0]
    return forward(y_1, W)[0], dict(u=u, y_1=y_1, W=W)


def backward_twice(dy, s):
    second = backward(dy, dict(u=s["y_1"], W=s["W"]))
    first = backward(second["u"], dict(u=s["u"], W=s["W"]))
    return dict(u=first["u"], W=first["W"] + second["W"])


def forward_two_copies(u, W):
    y, s = forward_twice(u, W)
    return y, dict(u=u, y_1=s["y_1"], W_1=W, W_2=W)


def backward_two_copies(dy, s):
    second = backward(dy, dict(u=s["y_1"], W=s["W_2"]))
    first = backward(second["u"], dict(u=s["u"], W=s["W_1"]))
    return dict(u=first["u"], W=first["W"] + second["W"])


def forward_loss(x, W_vocab, t, ignore):
    logits, _ = forward(x, W_vocab)
    loss, s = cross_entropy.forward(logits, t, ignore)
    return loss, dict(x=x, W_vocab=W_vocab, **s)


def backward_loss(dloss, s):
    dlogits = cross_entropy.backward(dloss, s)["logits"]
    through = backward(dlogits, dict(u=s["x"], W=s["W_vocab"]))
    return dict(x=through["u"], W_vocab=through["W"])


def single(*shape, cls="input"):
    """An input that stays in fp32."""
    return Input(shape, cls=cls, dtype="float32")


U = single(B, T, D)
W = single(D, D, cls="parameter")
LINEAR = Pair("linear", forward, backward, dict(u=U, W=W))
HEADS = single(h * d, h, d, cls="parameter")
QKV = Pair("qkv", forward_qkv, backward_qkv, dict(u=single(B, T, h * d), W_Q=HEADS, W_K=HEADS, W_V=HEADS))
TWICE = Pair("twice", forward_twice, backward_twice, dict(u=U, W=W))
TWO_COPIES = Pair("two-copies", forward_two_copies, backward_two_copies, dict(u=U, W=W))
LOSS = Pair(
    "loss",
    forward_loss,
    backward_loss,
    dict(x=U, W_vocab=single(D, V, cls="parameter"), t=tokens(B, T, below=V)),
    dict(ignore=0),
    output="loss",
)


def autocast(x, dtype, cache=True):
    """``torch.autocast`` on x's device; in float64, where the proof runs, there is none."""
    import warnings
    from unittest.mock import patch

    import torch

    # where CUDA is traced there is no GPU, and autocast would switch itself off
    gpu = patch.multiple("torch.cuda", is_available=lambda: True, is_bf16_supported=lambda: True)
    with gpu, warnings.catch_warnings(action="error"):  # it only warns where it switches itself off, as in fp32
        return torch.autocast(x.device.type, getattr(torch, dtype), enabled=dtype != "float64", cache_enabled=cache)


def once(u, W, dtype):
    import torch.nn.functional as F

    with autocast(u, dtype):
        return F.linear(u, W.mT)


def projections(u, W_Q, W_K, W_V, dtype):
    with autocast(u, dtype):
        return qkv.eager(u, W_Q, W_K, W_V)


def twice(u, W, dtype, cache=True):
    import torch

    with autocast(u, dtype, cache):  # matmul, for autocast caches the copy of W itself, not of a view
        return torch.matmul(torch.matmul(u, W), W)


def twice_without_cache(u, W, dtype):
    return twice(u, W, dtype, cache=False)


def loss(x, W_vocab, t, ignore, dtype):
    import torch.nn.functional as F

    with autocast(x, dtype):
        logits = F.linear(x, W_vocab.mT)
        return F.cross_entropy(logits.flatten(0, 1), t.flatten(), ignore_index=ignore)


X, W_AT = "MmBackward0.self", "MmBackward0.mat2"
LOW = COMPUTED
ONE = Saves(LINEAR, at=dict(u=X, W=W_AT), dtypes=dict(u=LOW, W=LOW))
THREE = Saves(
    QKV,
    at=dict(u_Q=X, u_K=X, u_V=X, W_Q=W_AT, W_K=W_AT, W_V=W_AT),
    dtypes=dict.fromkeys(("u_Q", "u_K", "u_V", "W_Q", "W_K", "W_V"), LOW),
)
CACHED = Saves(TWICE, at=dict(u=X, y_1=X, W=(W_AT, W_AT)), dtypes=dict(u=LOW, W=LOW))
NOT_CACHED = Saves(TWO_COPIES, at=dict(u=X, y_1=X, W_1=W_AT, W_2=W_AT), dtypes=dict(u=LOW, W_1=LOW, W_2=LOW))
RESULT, NLL = "LogSoftmaxBackward0.result", "NllLossBackward0.self"
COMMON = dict(x=X, W_vocab=W_AT, t="NllLossBackward0.target", n="NllLossBackward0.total_weight")
LOSS_DTYPES = dict(x=LOW, W_vocab=LOW, n="float32")
ON_CPU = Saves(LOSS, at=dict(COMMON, logp=(NLL, RESULT)), dtypes=dict(LOSS_DTYPES, logp="float32"))
ON_CUDA = Saves(
    LOSS,
    at=dict(COMMON, logp=RESULT),
    dtypes=LOSS_DTYPES,
    without_need=(
        Unneeded(
            "logp_float32",
            NLL,
            dict(
                zh="NLL 在 CUDA 上按 fp32 算，先把 log p 转一份；反向只看它的形状。",
                en="On CUDA NLL runs in fp32 and first makes a copy of log p; backward only looks at its shape.",
            ),
            Input((B, T, V), cls="activation", dtype="float32"),
        ),
    ),
)
NO_AUTOCAST = {"float32": "autocast computes in bf16 or fp16; in fp32 there is nothing to cast"}


def implementation(name, zh, en, run, cpu, cuda):
    return Implementation(name, dict(zh=zh, en=en), run, cpu=cpu, cuda=cuda, absent=NO_AUTOCAST)


LAYER = Layer(
    __name__,
    title=dict(zh="自动混合精度 Autocast", en="Autocast"),
    implementations=(
        implementation("linear", "一个线性层", "a linear layer", once, ONE, ONE),
        implementation("qkv", "同一个 u 的三个线性层", "three linear layers of one u", projections, THREE, THREE),
        implementation("cached", "同一个 W 用两次", "one W used twice", twice, CACHED, CACHED),
        implementation(
            "not-cached",
            "同一个 W 用两次，cache_enabled=False",
            "one W used twice, cache_enabled=False",
            twice_without_cache,
            NOT_CACHED,
            NOT_CACHED,
        ),
        implementation("loss", "LM head 与交叉熵", "LM head and cross entropy", loss, ON_CPU, ON_CUDA),
    ),
)

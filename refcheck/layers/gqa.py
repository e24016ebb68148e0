"""Grouped-query attention: h heads of queries share g heads of keys and values, each of which serves h/g of them.

Q is seen as (B, g, h/g, T, d), `r` counting the query heads of one group.
"""

from refcheck.arrays import copies, einsum, exp, log, rsqrt
from refcheck.layers import sdpa, softmax
from refcheck.sizes import B, T, d, g, h
from refcheck.spec import Implementation, Layer, Pair, Saves, activation

ONE, EACH = "bgjd", "bgrjd"  # K and V: one for a group, or a copy for each of its query heads


def forward(Q, K_g, V_g):
    P, _ = softmax.forward(scores(Q, K_g, ONE))
    return einsum("bgrij,bgjd->bgrid", P, V_g), dict(Q=Q, K_g=K_g, V_g=V_g, P=P)


def backward(dO, s):
    dP = einsum("bgrid,bgjd->bgrij", dO, s["V_g"])
    dS = softmax.backward(dP, s)["S"]
    return gradients(dO, s["P"], dS, s["Q"], s["K_g"], ONE)


def scores(Q, K, axes):
    return einsum(f"bgrid,{axes}->bgrij", Q, K) * rsqrt(Q.shape[-1])


def gradients(dO, P, dS, Q, K, axes):
    scale = rsqrt(Q.shape[-1])
    return dict(
        Q=einsum(f"bgrij,{axes}->bgrid", dS, K) * scale,
        K_g=einsum("bgrij,bgrid->bgjd", dS, Q) * scale,  # a sum over r too: all that share it
        V_g=einsum("bgrij,bgrid->bgjd", P, dO),
    )


def forward_repeated(Q, K_g, V_g):
    K, V = copies(K_g, Q.shape[2], axis=2), copies(V_g, Q.shape[2], axis=2)  # (B, g, h/g, T, d)
    P, _ = softmax.forward(scores(Q, K, EACH))
    return einsum("bgrij,bgrjd->bgrid", P, V), dict(Q=Q, V=V, K=K, P=P)


def backward_repeated(dO, s):
    dP = einsum("bgrid,bgrjd->bgrij", dO, s["V"])
    dS = softmax.backward(dP, s)["S"]
    return gradients(dO, s["P"], dS, s["Q"], s["K"], EACH)


def forward_fused(Q, K_g, V_g):
    S = scores(Q, K_g, ONE)
    lse = log(exp(S).sum(axis=-1, keepdims=True))  # (B, g, h/g, T, 1)
    O = einsum("bgrij,bgjd->bgrid", exp(S - lse), V_g)
    return O, dict(Q=Q, K_g=K_g, V_g=V_g, O=O, lse=lse)


def backward_fused(dO, s):
    P = exp(scores(s["Q"], s["K_g"], ONE) - s["lse"])
    dP = einsum("bgrid,bgjd->bgrij", dO, s["V_g"])
    dS = P * (dP - (dO * s["O"]).sum(axis=-1, keepdims=True))
    return gradients(dO, P, dS, s["Q"], s["K_g"], ONE)


def forward_repeated_fused(Q, K_g, V_g):
    K, V = copies(K_g, Q.shape[2], axis=2), copies(V_g, Q.shape[2], axis=2)
    S = scores(Q, K, EACH)
    lse = log(exp(S).sum(axis=-1, keepdims=True))
    O = einsum("bgrij,bgrjd->bgrid", exp(S - lse), V)
    return O, dict(Q=Q, K=K, V=V, O=O, lse=lse)


def backward_repeated_fused(dO, s):
    P = exp(scores(s["Q"], s["K"], EACH) - s["lse"])
    dP = einsum("bgrid,bgrjd->bgrij", dO, s["V"])
    dS = P * (dP - (dO * s["O"]).sum(axis=-1, keepdims=True))
    return gradients(dO, P, dS, s["Q"], s["K"], EACH)


FEW = activation(B, g, T, d)
INPUTS = dict(Q=activation(B, g, h / g, T, d), K_g=FEW, V_g=FEW)
GROUPED = Pair("grouped", forward, backward, INPUTS, output="O")
REPEATED = Pair("repeated", forward_repeated, backward_repeated, INPUTS, output="O")
GROUPED_LSE = Pair("grouped-lse", forward_fused, backward_fused, INPUTS, output="O")
REPEATED_LSE = Pair("repeated-lse", forward_repeated_fused, backward_repeated_fused, INPUTS, output="O")


def by_groups(Q, K_g, V_g):
    P = (Q.flatten(2, 3) @ K_g.mT * Q.shape[-1] ** -0.5).softmax(-1)  # (B, g, h/g·T, T): the group's rows together
    return (P @ V_g).unflatten(2, Q.shape[2:4])


def repeat_kv(K_g, n):
    """(B, g, T, d) -> (B, h, T, d), as Hugging Face's, but a copy also where there is nothing to repeat."""
    return K_g.repeat_interleave(n, 1)


def eager(Q, K_g, V_g):
    K, V = repeat_kv(K_g, Q.shape[2]), repeat_kv(V_g, Q.shape[2])
    P = (Q.flatten(1, 2) @ K.mT * Q.shape[-1] ** -0.5).softmax(-1)
    return (P @ V).unflatten(1, Q.shape[1:3])


def flash(Q, K_g, V_g):
    K, V = repeat_kv(K_g, Q.shape[2]), repeat_kv(V_g, Q.shape[2])
    return sdpa.flash(Q.flatten(1, 2), K, V).unflatten(1, Q.shape[1:3])


def native(Q, K_g, V_g):
    return sdpa.flash(Q.flatten(1, 2), K_g, V_g, enable_gqa=True).unflatten(1, Q.shape[1:3])


def split(pair, K, V):
    """Each product keeps its two factors, softmax its output; P is one storage."""
    at = {"Q": "BmmBackward0.self", K: "BmmBackward0.mat2", V: "BmmBackward0.mat2"}
    P = ("SoftmaxBackward0.result", "BmmBackward0.self")
    return Saves(pair, at={**at, "P": P}, numbers=dict(scale="MulBackward0.other"))


def fused(like, pair, K, V):
    """As `sdpa` keeps it, under the names of this layer."""
    places = {K: like.at["K"], V: like.at["V"]}
    at = {**places, **{name: like.at[name] for name in ("Q", "O", "lse")}}
    return Saves(pair, at, like.dtypes, without_need=like.without_need)


BY_GROUPS, EAGER = split(GROUPED, "K_g", "V_g"), split(REPEATED, "K", "V")
ABSENT = {"cuda/float32": sdpa.HALF}

LAYER = Layer(
    __name__,
    title=dict(zh="分组查询注意力 GQA", en="Grouped-query attention (GQA)"),
    implementations=(
        Implementation(
            "grouped",
            dict(zh="按组相乘，逐算子", en="products by groups, eager"),
            by_groups,
            cpu=BY_GROUPS,
            cuda=BY_GROUPS,
        ),
        Implementation(
            "repeat-kv", dict(zh="先 repeat_kv，逐算子", en="repeat_kv, eager"), eager, cpu=EAGER, cuda=EAGER
        ),
        Implementation(
            "repeat-kv-flash",
            dict(zh="先 repeat_kv，再 FlashAttention", en="repeat_kv, FlashAttention"),
            flash,
            cpu=fused(sdpa.ON_CPU, REPEATED_LSE, "K", "V"),
            cuda=fused(sdpa.ON_CUDA, REPEATED_LSE, "K", "V"),
            absent=ABSENT,
        ),
        Implementation(
            "native",
            dict(zh="FlashAttention，enable_gqa=True", en="FlashAttention, enable_gqa=True"),
            native,
            cpu=fused(sdpa.ON_CPU, GROUPED_LSE, "K_g", "V_g"),
            cuda=fused(sdpa.ON_CUDA, GROUPED_LSE, "K_g", "V_g"),
            absent=ABSENT,
        ),
    ),
)

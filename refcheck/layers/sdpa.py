"""Scaled dot-product attention in one op: O = softmax(QKᵀ/√d)V, without keeping P."""

from refcheck.arrays import einsum, exp, log, rsqrt
from refcheck.sizes import B, T, d, h
from refcheck.spec import Implementation, Input, Layer, Pair, Saves, Unneeded, activation


def forward(Q, K, V):
    S = einsum("bhid,bhjd->bhij", Q, K) * rsqrt(Q.shape[-1])
    lse = log(exp(S).sum(axis=-1, keepdims=True))  # (B, h, T, 1): one number for each row of S
    O = einsum("bhij,bhjd->bhid", exp(S - lse), V)
    return O, dict(Q=Q, K=K, V=V, O=O, lse=lse)


def backward(dO, s):
    Q, K, V = s["Q"], s["K"], s["V"]
    scale = rsqrt(Q.shape[-1])
    P = exp(einsum("bhid,bhjd->bhij", Q, K) * scale - s["lse"])  # recomputed, block by block
    dP = einsum("bhid,bhjd->bhij", dO, V)
    mean = (dO * s["O"]).sum(axis=-1, keepdims=True)  # = Σ P·dP, without P
    dS = P * (dP - mean) * scale
    return dict(
        Q=einsum("bhij,bhjd->bhid", dS, K),
        K=einsum("bhij,bhid->bhjd", dS, Q),
        V=einsum("bhij,bhid->bhjd", P, dO),
    )


ONE = activation(B, h, T, d)
FROM_LSE = Pair("from-lse", forward, backward, dict(Q=ONE, K=ONE, V=ONE), output="O")


def flash(Q, K, V):
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if Q.device.type == "cuda" and not torch.cuda.is_available():  # traced: SDPA itself would take the math path
        return torch.ops.aten._scaled_dot_product_flash_attention(Q, K, V)[0]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(Q, K, V)


def cudnn(Q, K, V):
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if not torch.cuda.is_available():
        return torch.ops.aten._scaled_dot_product_cudnn_attention(Q, K, V, None, True)[0]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(Q, K, V)


def places(node, lse):
    names = dict(Q="query", K="key", V="value", O="output", lse=lse)
    return {name: f"{node}.{attr}" for name, attr in names.items()}


FLASH = "ScaledDotProductFlashAttentionBackward0"
FLASH_CPU = "ScaledDotProductFlashAttentionForCpuBackward0"
CUDNN = "ScaledDotProductCudnnAttentionBackward0"
RNG = dict(
    zh="dropout 的随机数状态；没有 dropout 时反向用不到，但照样存着。",
    en="The random state for dropout; without dropout backward has no use for it, but it is kept all the same.",
)


EMPTY = dict(
    zh="留给别的内核的空位，这里谁也不读。",
    en="A slot for other kernels; nobody reads it here.",
)


def rng(name, at, *shape, dtype, reason=RNG):
    return Unneeded(name, at, reason, Input(shape, cls="rng", dtype=dtype))


ON_CPU = Saves(FROM_LSE, places(FLASH_CPU, "logsumexp"), dtypes=dict(lse="float32"))
ON_CUDA = Saves(
    FROM_LSE,
    places(FLASH, "logsumexp"),
    dtypes=dict(lse="float32"),
    without_need=(
        rng("rng_state", f"{FLASH}.rng_state", 2, dtype="uint64"),
        rng("unused", f"{FLASH}.unused", dtype="uint64", reason=EMPTY),
    ),
)
BY_CUDNN = Saves(
    FROM_LSE,
    places(CUDNN, "logsumexp"),
    dtypes=dict(lse="float32"),
    without_need=(
        rng("philox_seed", f"{CUDNN}.philox_seed", dtype="int64"),
        rng("philox_offset", f"{CUDNN}.philox_offset", dtype="int64"),
    ),
)
HALF = "the kernels on CUDA take fp16 and bf16 only"

LAYER = Layer(
    __name__,
    title=dict(zh="融合注意力 SDPA", en="Fused attention (SDPA)"),
    implementations=(
        Implementation(
            "flash",
            dict(zh="FlashAttention", en="FlashAttention"),
            flash,
            cpu=ON_CPU,
            cuda=ON_CUDA,
            absent={"cuda/float32": HALF},
        ),
        Implementation(
            "cudnn",
            dict(zh="cuDNN", en="cuDNN"),
            cudnn,
            cpu=BY_CUDNN,
            cuda=BY_CUDNN,
            absent={"cpu": "cuDNN runs on GPUs only", "float32": HALF},
            like=flash,
        ),
    ),
)

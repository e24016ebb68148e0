"""Scaled dot-product attention in one op: O = softmax(QKᵀ/√d)V, without keeping P unless it takes the math path."""

from sympy import ceiling

from refcheck.arrays import drawn, einsum, exp, log, power, rsqrt
from refcheck.layers import dropout, softmax
from refcheck.sizes import B, T, d, h
from refcheck.spec import Implementation, Input, Layer, Pair, Saves, Unneeded, activation, buffer, mask


def forward(Q, K, V):
    S = einsum("bhid,bhjd->bhij", Q, K) * rsqrt(Q.shape[-1])
    lse = log(exp(S).sum(axis=-1, keepdims=True))  # (B, h, T, 1): one number for each row of S
    O = einsum("bhij,bhjd->bhid", exp(S - lse), V)
    return O, dict(Q=Q, K=K, V=V, O=O, lse=lse)


def backward(dO, s):
    P = backward_probabilities(s["Q"], s["K"], s["lse"])  # recomputed, block by block
    return backward_rows(dO, s, P, P, einsum("bhid,bhjd->bhij", dO, s["V"]))


def backward_probabilities(Q, K, lse):
    return exp(einsum("bhid,bhjd->bhij", Q, K) * rsqrt(Q.shape[-1]) - lse)


def backward_rows(dO, s, P, P_dropped, dP):
    mean = (dO * s["O"]).sum(axis=-1, keepdims=True)  # = Σ P·dP, without P
    dS = P * (dP - mean) * rsqrt(s["Q"].shape[-1])
    return dict(
        Q=einsum("bhij,bhjd->bhid", dS, s["K"]),
        K=einsum("bhij,bhid->bhjd", dS, s["Q"]),
        V=einsum("bhij,bhid->bhjd", P_dropped, dO),
    )


def forward_masked(Q, K, V, A):
    S = einsum("bhid,bhjd->bhij", Q, K) * rsqrt(Q.shape[-1]) + A
    lse = log(exp(S).sum(axis=-1, keepdims=True))
    O = einsum("bhij,bhjd->bhid", exp(S - lse), V)
    return O, dict(Q=Q, K=K, V=V, A=A, O=O, lse=lse)


def backward_masked(dO, s):
    P = backward_probabilities(s["Q"], s["K"], s["lse"] - s["A"])
    return backward_rows(dO, s, P, P, einsum("bhid,bhjd->bhij", dO, s["V"]))


def forward_dropped(Q, K, V, rng_state, p):
    S = einsum("bhid,bhjd->bhij", Q, K) * rsqrt(Q.shape[-1])
    lse = log(exp(S).sum(axis=-1, keepdims=True))
    O = einsum("bhij,bhij,bhjd->bhid", exp(S - lse), drawn(rng_state, S.shape), V) / (1 - p)
    return O, dict(Q=Q, K=K, V=V, O=O, lse=lse, rng_state=rng_state, p=p)


def backward_dropped(dO, s):
    P = backward_probabilities(s["Q"], s["K"], s["lse"])
    n = drawn(s["rng_state"], P.shape) / (1 - s["p"])  # the mask, drawn again, and scaled
    return backward_rows(dO, s, P, P * n, einsum("bhid,bhjd->bhij", dO, s["V"]) * n)


def forward_math(Q, K, V):
    P, s = forward_softmax(Q, K)
    return einsum("bhij,bhjd->bhid", P, V), dict(V=V, P=P, **s)


def forward_softmax(Q, K):
    Q_scaled = Q * power(Q.shape[-1], "-1/4")  # d to the power -1/4 on each side: -1/2 in the product
    K_scaled = einsum("bhjd->bhdj", K) * power(Q.shape[-1], "-1/4")
    P, _ = softmax.forward(einsum("bhid,bhdj->bhij", Q_scaled, K_scaled))
    return P, dict(Q_scaled=Q_scaled, K_scaled=K_scaled)


def backward_math(dO, s):
    dV = einsum("bhij,bhid->bhjd", s["P"], dO)
    return dict(V=dV, **backward_softmax(einsum("bhid,bhjd->bhij", dO, s["V"]), s))


def backward_softmax(dP, s):
    dS = softmax.backward(dP, s)["S"] * power(s["Q_scaled"].shape[-1], "-1/4")
    return dict(
        Q=einsum("bhij,bhdj->bhid", dS, s["K_scaled"]),
        K=einsum("bhij,bhid->bhjd", dS, s["Q_scaled"]),
    )


def forward_math_dropped(Q, K, V, m, p):
    P, s = forward_softmax(Q, K)
    P_dropped, drawn_mask = dropout.forward(P, m, p)
    return einsum("bhij,bhjd->bhid", P_dropped, V), dict(V=V, P_dropped=P_dropped, P=P, **drawn_mask, **s)


def backward_math_dropped(dO, s):
    dP = dropout.backward(einsum("bhid,bhjd->bhij", dO, s["V"]), s)["x"]
    return dict(V=einsum("bhij,bhid->bhjd", s["P_dropped"], dO), **backward_softmax(dP, s))


def forward_math_noise(Q, K, V, m, p):
    P, s = forward_softmax(Q, K)
    P_dropped, scaled_mask = dropout.forward_from_noise(P, m, p)
    return einsum("bhij,bhjd->bhid", P_dropped, V), dict(V=V, P_dropped=P_dropped, P=P, **scaled_mask, **s)


def backward_math_noise(dO, s):
    dP = dropout.backward_from_noise(einsum("bhid,bhjd->bhij", dO, s["V"]), s)["x"]
    return dict(V=einsum("bhij,bhid->bhjd", s["P_dropped"], dO), **backward_softmax(dP, s))


ONE = activation(B, h, T, d)
QKV = dict(Q=ONE, K=ONE, V=ONE)
STATE = dict(rng_state=Input((2,), cls="rng", dtype="uint64", drawn=True))
MASK = dict(m=mask(B, h, T, T))
SCALARS = dict(p=0.1)
FROM_LSE = Pair("from-lse", forward, backward, QKV, output="O")
FROM_MASK = Pair("from-lse-masked", forward_masked, backward_masked, dict(A=buffer(T, T, dtype=None)) | QKV, output="O")
FROM_STATE = Pair("from-lse-dropout", forward_dropped, backward_dropped, QKV | STATE, SCALARS, "O")
MATH = Pair("from-probabilities", forward_math, backward_math, QKV, output="O")
DROPPED = Pair("from-probabilities-dropout", forward_math_dropped, backward_math_dropped, QKV | MASK, SCALARS, "O")
NOISE = Pair("from-probabilities-noise", forward_math_noise, backward_math_noise, QKV | MASK, SCALARS, "O")


def attend(Q, K, V, backend, **options):
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(getattr(SDPBackend, backend)):
        return F.scaled_dot_product_attention(Q, K, V, **options)


def without_gpu(Q):
    """Whether this is traced: then SDPA itself would take the math path, and the kernel is called by name."""
    import torch

    return Q.device.type == "cuda" and not torch.cuda.is_available()


def flash(Q, K, V, p=0.0, enable_gqa=False):
    import torch

    if without_gpu(Q):
        return torch.ops.aten._scaled_dot_product_flash_attention(Q, K, V, p)[0]
    return attend(Q, K, V, "FLASH_ATTENTION", dropout_p=p, enable_gqa=enable_gqa)


def cudnn(Q, K, V):
    import torch

    if without_gpu(Q):
        return torch.ops.aten._scaled_dot_product_cudnn_attention(Q, K, V, None, True)[0]
    return attend(Q, K, V, "CUDNN_ATTENTION")


def efficient(Q, K, V, A=None):
    import torch

    if without_gpu(Q):
        A = A if A is None else A.expand(*Q.shape[:-1], Q.shape[-2])
        return torch.ops.aten._scaled_dot_product_efficient_attention(Q, K, V, A, True)[0]
    return attend(Q, K, V, "EFFICIENT_ATTENTION", attn_mask=A)


def flash_masked(Q, K, V, A):
    return attend(Q, K, V, "FLASH_ATTENTION", attn_mask=A)


def math(Q, K, V):
    return attend(Q, K, V, "MATH")


def math_dropout(Q, K, V, p):
    return attend(Q, K, V, "MATH", dropout_p=p)


def recover(O, Q, K, V):
    """The mask, from the P̃ that the math path multiplies by V; a fused kernel doesn't show it."""
    node = O.grad_fn
    while node.next_functions and node.name() != "BmmBackward0":
        node = node.next_functions[0][0]
    return dict(m=node._saved_self.unflatten(0, Q.shape[:2]) != 0) if node.next_functions else {}


def recover_state(O, Q, K, V):
    return dict(zip(["rng_state"], recover(O, Q, K, V).values(), strict=False))


def places(node, lse, *others):
    names = dict(Q="query", K="key", V="value", O="output", lse=lse) | dict(others)
    return {name: f"{node}.{attr}" for name, attr in names.items()}


FLASH = "ScaledDotProductFlashAttentionBackward0"
FLASH_CPU = "ScaledDotProductFlashAttentionForCpuBackward0"
CUDNN = "ScaledDotProductCudnnAttentionBackward0"
EFFICIENT = "ScaledDotProductEfficientAttentionBackward0"
RNG = dict(
    zh="dropout 的随机数状态；没有 dropout 时反向用不到，但照样存着。",
    en="The random state for dropout; without dropout backward has no use for it, but it is kept all the same.",
)
EMPTY = dict(
    zh="反向的参数有两个位置，`rng_state` 占了第一个，它填第二个。",
    en="Backward takes two arguments for the state; `rng_state` is the first of them, and this fills the second.",
)


def rng(name, at, *shape, dtype, reason=RNG):
    return Unneeded(name, at, reason, Input(shape, cls="rng", dtype=dtype))


def philox(node):
    return tuple(rng(name, f"{node}.{name}", dtype="int64") for name in ("philox_seed", "philox_offset"))


LSE = dict(lse="float32")
UNUSED = rng("unused", f"{FLASH}.unused", dtype="uint64", reason=EMPTY)
ON_CPU = Saves(FROM_LSE, places(FLASH_CPU, "logsumexp"), LSE)
ON_CUDA = Saves(
    FROM_LSE,
    places(FLASH, "logsumexp"),
    LSE,
    without_need=(rng("rng_state", f"{FLASH}.rng_state", 2, dtype="uint64"), UNUSED),
)
ON_CUDA_DROPPED = Saves(FROM_STATE, places(FLASH, "logsumexp", ("rng_state", "rng_state")), LSE, without_need=(UNUSED,))
BY_CUDNN = Saves(FROM_LSE, places(CUDNN, "logsumexp"), LSE, without_need=philox(CUDNN))
PADDED = dict(lse=(B, h, 32 * ceiling(T / 32)))
BY_EFFICIENT = Saves(FROM_LSE, places(EFFICIENT, "log_sumexp"), LSE, PADDED, without_need=philox(EFFICIENT))
FLASH_MASKED = Saves(FROM_MASK, places(FLASH_CPU, "logsumexp", ("A", "attn_mask")), LSE)
EFFICIENT_MASKED = Saves(
    FROM_MASK,
    places(EFFICIENT, "log_sumexp", ("A", "attn_bias")),
    LSE,
    PADDED,
    dict(A=(B, h, T, T)),
    without_need=philox(EFFICIENT),
)
FLOAT = dict.fromkeys(("V", "P", "Q_scaled", "K_scaled"), "float32")
SOFTMAX, LEFT, RIGHT = "SafeSoftmaxBackward0.result", "BmmBackward0.self", "BmmBackward0.mat2"
SCALED = dict(V=RIGHT, Q_scaled=LEFT, K_scaled=RIGHT)
BY_MATH = Saves(MATH, SCALED | dict(P=(LEFT, SOFTMAX)), FLOAT)
DROPPED_AT = SCALED | dict(P_dropped=LEFT, P=SOFTMAX)
BY_MATH_DROPPED = Saves(
    DROPPED, DROPPED_AT | dict(m="NativeDropoutBackward0.result1"), FLOAT | dict(P_dropped="float32")
)
BY_MATH_NOISE = Saves(NOISE, DROPPED_AT | dict(n="MulBackward0.other"), FLOAT | dict(P_dropped="float32", n="float32"))
HALF = "the kernels on CUDA take fp16 and bf16 only"
NO_CPU = "this kernel runs on GPUs only"

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
            "flash-dropout",
            dict(zh="FlashAttention，带 dropout", en="FlashAttention with dropout"),
            flash,
            cpu=ON_CUDA_DROPPED,
            cuda=ON_CUDA_DROPPED,
            recover=recover_state,
            absent={"cpu": "the fused kernel for the CPU does no dropout", "float32": HALF},
            like=math_dropout,
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
        Implementation(
            "efficient",
            dict(zh="memory-efficient", en="memory-efficient"),
            efficient,
            cpu=BY_EFFICIENT,
            cuda=BY_EFFICIENT,
            absent={"cpu": NO_CPU},
            like=flash,
        ),
        Implementation(
            "efficient-masked",
            dict(zh="memory-efficient，带掩码 A", en="memory-efficient with a mask A"),
            efficient,
            cpu=EFFICIENT_MASKED,
            cuda=EFFICIENT_MASKED,
            absent={"cpu": NO_CPU},
            like=flash_masked,
        ),
        Implementation(
            "flash-masked",
            dict(zh="FlashAttention，带掩码 A", en="FlashAttention with a mask A"),
            flash_masked,
            cpu=FLASH_MASKED,
            cuda=FLASH_MASKED,
            absent={"cuda": "the kernel on CUDA takes no mask"},
        ),
        Implementation("math", dict(zh="math 路径", en="math path"), math, cpu=BY_MATH, cuda=BY_MATH),
        Implementation(
            "math-dropout",
            dict(zh="math 路径，带 dropout", en="math path with dropout"),
            math_dropout,
            cpu=BY_MATH_NOISE,
            cuda=BY_MATH_DROPPED,
            recover=recover,
        ),
    ),
)

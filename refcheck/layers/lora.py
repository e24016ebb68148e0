"""Frozen weights and LoRA: y = xW + scale · (xW_A)W_B, of which W_A and W_B alone are trained; scale is α/R."""

from refcheck.arrays import einsum
from refcheck.layers import dropout
from refcheck.sizes import B, D, M, R, T
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, detached, mask, parameter, without_grad


def forward_frozen(x, W):
    return einsum("btd,dm->btm", x, W), dict(W=W)


def backward_frozen(dy, s):
    return dict(x=einsum("btm,dm->btd", dy, s["W"]))  # the gradient of W would need x, and nobody wants it


def forward_first(x, W):
    return einsum("btd,dm->btm", x, W), dict(x=x)


def backward_first(dy, s):
    return dict(W=einsum("btd,btm->dm", s["x"], dy))


def adapt(x, W_A, W_B, scale):
    x_A = einsum("btd,dr->btr", x, W_A)
    return einsum("btr,rm->btm", x_A, W_B) * scale, x_A


def through_adapter(dy, x, s):
    """The gradients of the adapter's input x, of W_A and of W_B."""
    dx_A = einsum("btm,rm->btr", dy, s["W_B"]) * s["scale"]
    dx = einsum("btr,dr->btd", dx_A, s["W_A"])
    return dx, einsum("btd,btr->dr", x, dx_A), einsum("btr,btm->rm", s["x_A"], dy) * s["scale"]


def forward_lora(x, W, W_A, W_B, scale):
    y_B, x_A = adapt(x, W_A, W_B, scale)
    y = einsum("btd,dm->btm", x, W) + y_B
    return y, dict(x=x, x_A=x_A, W=W, W_A=W_A, W_B=W_B, scale=scale)


def backward_lora(dy, s):
    dx, dW_A, dW_B = through_adapter(dy, s["x"], s)
    return dict(x=dx + einsum("btm,dm->btd", dy, s["W"]), W_A=dW_A, W_B=dW_B)


def forward_scaled(x, W, W_A, W_B, scale):
    W_scaled = W_B * scale
    y_B, x_A = adapt(x, W_A, W_scaled, 1)
    y = einsum("btd,dm->btm", x, W) + y_B
    return y, dict(x=x, x_A=x_A, W=W, W_A=W_A, W_scaled=W_scaled, scale=scale)


def backward_scaled(dy, s):
    dx_A = einsum("btm,rm->btr", dy, s["W_scaled"])
    return dict(
        x=einsum("btm,dm->btd", dy, s["W"]) + einsum("btr,dr->btd", dx_A, s["W_A"]),
        W_A=einsum("btd,btr->dr", s["x"], dx_A),
        W_B=einsum("btr,btm->rm", s["x_A"], dy) * s["scale"],
    )


def forward_dropout(x, W, W_A, W_B, m, p, scale):
    x_dropped, drawn = dropout.forward(x, m, p)
    y_B, x_A = adapt(x_dropped, W_A, W_B, scale)
    y = einsum("btd,dm->btm", x, W) + y_B
    return y, dict(x_dropped=x_dropped, x_A=x_A, W=W, W_A=W_A, W_B=W_B, scale=scale) | drawn


def backward_dropout(dy, s):
    dx_dropped, dW_A, dW_B = through_adapter(dy, s["x_dropped"], s)
    dx = dropout.backward(dx_dropped, s)["x"] + einsum("btm,dm->btd", dy, s["W"])
    return dict(x=dx, W_A=dW_A, W_B=dW_B)


def forward_noise(x, W, W_A, W_B, m, p, scale):
    x_dropped, drawn = dropout.forward_from_noise(x, m, p)
    y_B, x_A = adapt(x_dropped, W_A, W_B, scale)
    y = einsum("btd,dm->btm", x, W) + y_B
    return y, dict(x_dropped=x_dropped, x_A=x_A, W=W, W_A=W_A, W_B=W_B, scale=scale) | drawn


def backward_noise(dy, s):
    dx_dropped, dW_A, dW_B = through_adapter(dy, s["x_dropped"], s)
    dx = dropout.backward_from_noise(dx_dropped, s)["x"] + einsum("btm,dm->btd", dy, s["W"])
    return dict(x=dx, W_A=dW_A, W_B=dW_B)


def forward_merged(x, W, W_A, W_B, scale):
    W_merged = W + einsum("dr,rm->dm", W_A, W_B) * scale
    return einsum("btd,dm->btm", x, W_merged), dict(x=x, W_merged=W_merged, W_A=W_A, W_B=W_B, scale=scale)


def backward_merged(dy, s):
    dW = einsum("btd,btm->dm", s["x"], dy) * s["scale"]  # as wide as the frozen W, and soon freed
    return dict(
        x=einsum("btm,dm->btd", dy, s["W_merged"]),
        W_A=einsum("dm,rm->dr", dW, s["W_B"]),
        W_B=einsum("dr,dm->rm", s["W_A"], dW),
    )


def forward_dora(x, W, W_A, W_B, mag, norm, scale):
    y_0, x_A, rho = einsum("btd,dm->btm", x, W), einsum("btd,dr->btr", x, W_A), mag / norm
    y_B = einsum("btr,rm->btm", x_A, W_B)
    y = y_0 + (rho - 1) * y_0 + rho * y_B * scale  # = ρ (xW + scale · xW_A W_B), in the steps of PEFT
    saved = dict(x=x, x_A=x_A, y_0=y_0, y_B=y_B, W=W, W_A=W_A, W_B=W_B, norm=norm, rho=rho, rho_1=rho - 1)
    return y, saved | dict(scale=scale)


def backward_dora(dy, s):
    dx, dW_A, dW_B = through_adapter(dy * s["rho"], s["x"], s)
    drho = (dy * s["y_0"]).sum(axis=(0, 1)) + (dy * s["y_B"]).sum(axis=(0, 1)) * s["scale"]
    return dict(x=dx + einsum("btm,dm->btd", dy + dy * s["rho_1"], s["W"]), W_A=dW_A, W_B=dW_B, mag=drho / s["norm"])


def forward_three(x, scale, **W):
    """One x into q_proj, k_proj and v_proj, each with an adapter of its own; `W` holds W_q, W_qA, W_qB, W_k, …"""
    low = {n: adapt(x, W[f"W_{n}A"], W[f"W_{n}B"], scale) for n in "qkv"}
    y = {f"y_{n}": einsum("btd,dm->btm", x, W[f"W_{n}"]) + y_B for n, (y_B, _) in low.items()}
    return y, dict(x=x, scale=scale) | {f"x_{n}A": x_A for n, (_, x_A) in low.items()} | W


def backward_three(dy, s):
    dx, gradients = 0, {}
    for n in "qkv":
        dy_n = dy[f"y_{n}"]
        one = dict(W_A=s[f"W_{n}A"], W_B=s[f"W_{n}B"], x_A=s[f"x_{n}A"], scale=s["scale"])
        dx_B, gradients[f"W_{n}A"], gradients[f"W_{n}B"] = through_adapter(dy_n, s["x"], one)
        dx = einsum("btm,dm->btd", dy_n, s[f"W_{n}"]) + dx_B + dx
    return dict(x=dx) | gradients


X, FROZEN_W = activation(B, T, D), without_grad(parameter(D, M))
INPUTS = dict(x=X, W=FROZEN_W, W_A=parameter(D, R), W_B=parameter(R, M))
SCALE, DROPPED = dict(scale=2.0), dict(p=0.1, scale=2.0)
WITH_MASK = INPUTS | dict(m=mask(B, T, D))
THREE = dict(x=X)
for n in "qkv":
    THREE |= {f"W_{n}": without_grad(parameter(D, D)), f"W_{n}A": parameter(D, R), f"W_{n}B": parameter(R, D)}

FROZEN = Pair("frozen", forward_frozen, backward_frozen, dict(x=X, W=FROZEN_W))
FIRST = Pair("frozen-input", forward_first, backward_first, dict(x=without_grad(X), W=parameter(D, M)))
ADAPTED = Pair("lora", forward_lora, backward_lora, INPUTS, SCALE)
SCALED = Pair("scaled-weight", forward_scaled, backward_scaled, INPUTS, SCALE)
FROM_MASK = Pair("dropout-mask", forward_dropout, backward_dropout, WITH_MASK, DROPPED)
FROM_NOISE = Pair("dropout-noise", forward_noise, backward_noise, WITH_MASK, DROPPED)
MERGED = Pair("merged", forward_merged, backward_merged, INPUTS, SCALE)
DORA = Pair("dora", forward_dora, backward_dora, INPUTS | dict(mag=parameter(M), norm=detached(M)), SCALE)
IN_FLOAT32 = Pair(
    "float32",
    forward_lora,
    backward_lora,
    INPUTS | dict(W_A=parameter(D, R, dtype="float32"), W_B=parameter(R, M, dtype="float32")),
    SCALE,
)
QKV = Pair("qkv", forward_three, backward_three, THREE, SCALE)


def plain(x, W):
    import torch.nn.functional as F

    return F.linear(x, W.mT)


def lora(x, W, W_A, W_B, scale):
    return plain(x, W) + plain(plain(x, W_A), W_B) * scale


def alpha(x, W, W_A, W_B, scale):
    import torch

    return torch.add(plain(x, W), plain(plain(x, W_A), W_B), alpha=scale)


def scaled_weight(x, W, W_A, W_B, scale):
    return plain(x, W) + plain(plain(x, W_A), W_B * scale)


def with_dropout(x, W, W_A, W_B, p, scale):
    import torch.nn.functional as F

    return plain(x, W) + plain(plain(F.dropout(x, p, training=True), W_A), W_B) * scale


def recover(y, **inputs):
    """y doesn't show the mask, but the node of dropout holds it: as it is on CUDA, scaled on the CPU."""
    from refcheck.graph import explore

    held = {str(holder): holder.tensor for holder in explore([y.grad_fn]).holders if holder.tensor.ndim}
    return dict(m=held.get("NativeDropoutBackward0.result1", held.get("MulBackward0.other")) != 0)


def float32(x, W, W_A, W_B, scale):
    return (plain(x, W) + plain(plain(x.to(W_A.dtype), W_A), W_B) * scale).to(x.dtype)


def merged(x, W, W_A, W_B, scale):
    return plain(x, W + W_A @ W_B * scale)


def dora(x, W, W_A, W_B, mag, scale):
    y_0, rho = plain(x, W), mag / length(None, W, W_A, W_B)["norm"]
    return y_0 + ((rho - 1) * y_0 + rho * plain(plain(x, W_A), W_B) * scale)


def length(y, W, W_A, W_B, **others):
    """The length of each column of the adapted weight."""
    return dict(norm=(W + SCALE["scale"] * (W_A @ W_B)).detach().norm(dim=0))


def three(x, scale, **W):
    return {f"y_{n}": lora(x, W[f"W_{n}"], W[f"W_{n}A"], W[f"W_{n}B"], scale) for n in "qkv"}


LEFT, RIGHT = "MmBackward0.self", "MmBackward0.mat2"
NUMBER = dict(scale="MulBackward0.other")
WEIGHTS = dict(W=RIGHT, W_A=RIGHT, W_B=RIGHT)
PLACES = dict(x=LEFT, x_A=LEFT) | WEIGHTS
DROPPED_PLACES = dict(x_dropped=LEFT, x_A=LEFT) | WEIGHTS
DORA_PLACES = PLACES | dict(
    y_0="MulBackward0.other",
    y_B="MulBackward0.other",
    norm="DivBackward0.other",
    rho="MulBackward0.self",
    rho_1="MulBackward0.self",
)
THREE_PLACES: dict[str, str | tuple[str, ...]] = dict(x=(LEFT, LEFT, LEFT))
for n in "qkv":
    THREE_PLACES |= {f"x_{n}A": LEFT, f"W_{n}": RIGHT, f"W_{n}A": RIGHT, f"W_{n}B": RIGHT}

NO_INPUT = Saves(FROZEN, at=dict(W=RIGHT))
NO_WEIGHT = Saves(FIRST, at=dict(x=LEFT))
LORA = Saves(ADAPTED, PLACES, numbers=NUMBER)
ALPHA = Saves(ADAPTED, PLACES)
SCALED_WEIGHT = Saves(SCALED, dict(x=LEFT, x_A=LEFT, W=RIGHT, W_A=RIGHT, W_scaled=RIGHT), numbers=NUMBER)
DROPOUT_CUDA = Saves(
    FROM_MASK, DROPPED_PLACES | dict(m="NativeDropoutBackward0.result1"), dtypes=dict(m="bool"), numbers=NUMBER
)
DROPOUT_CPU = Saves(FROM_NOISE, DROPPED_PLACES | dict(n="MulBackward0.other"), numbers=NUMBER)
FLOAT32 = Saves(IN_FLOAT32, PLACES, dtypes=dict(x="float32", x_A="float32"), numbers=NUMBER)
MERGED_FIRST = Saves(MERGED, dict(x=LEFT, W_merged=RIGHT, W_A=LEFT, W_B=RIGHT), numbers=NUMBER)
WITH_LENGTH = Saves(DORA, DORA_PLACES, numbers=NUMBER)
SHARED = Saves(QKV, THREE_PLACES, numbers={f"scale_{n}": "MulBackward0.other" for n in "qkv"})


def everywhere(name, zh, en, run, saves, recover=None):
    return Implementation(name, dict(zh=zh, en=en), run, cpu=saves, cuda=saves, recover=recover)


LAYER = Layer(
    __name__,
    title=dict(zh="冻结与 LoRA", en="Frozen weights and LoRA"),
    implementations=(
        everywhere("frozen", "权重冻结", "the weight is frozen", plain, NO_INPUT),
        everywhere(
            "frozen-input", "第一层：输入不要梯度", "the first layer: no gradient for its input", plain, NO_WEIGHT
        ),
        everywhere("lora", "LoRA", "LoRA", lora, LORA),
        everywhere("alpha", "LoRA，torch.add(…, alpha=s)", "LoRA, torch.add(…, alpha=s)", alpha, ALPHA),
        everywhere("scaled-weight", "LoRA，先放大 W_B", "LoRA, W_B scaled first", scaled_weight, SCALED_WEIGHT),
        Implementation(
            "dropout",
            dict(zh="LoRA，带 dropout", en="LoRA with dropout"),
            with_dropout,
            cpu=DROPOUT_CPU,
            cuda=DROPOUT_CUDA,
            recover=recover,
        ),
        everywhere("float32", "LoRA，适配器用 fp32", "LoRA, adapters in fp32", float32, FLOAT32),
        everywhere("merged", "LoRA，先把权重合并", "LoRA, weights merged first", merged, MERGED_FIRST),
        everywhere("dora", "DoRA", "DoRA", dora, WITH_LENGTH, recover=length),
        everywhere("qkv", "Q、K、V 各带一个 LoRA", "LoRA on Q, K and V", three, SHARED),
    ),
)

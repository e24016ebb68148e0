"""Activation checkpointing: of a whole FFN the input is kept, and the backward runs the forward again."""

from refcheck.layers import ffn_gelu
from refcheck.spec import Implementation, Input, Layer, Pair, Saves, Unneeded


def forward(v, W1, b1, W2, b2):
    y, _ = ffn_gelu.forward(v, W1, b1, W2, b2)
    return y, dict(v=v, W1=W1, b1=b1, W2=W2)  # z and g are let go


def backward(dy, s):
    _, again = ffn_gelu.forward(s["v"], s["W1"], s["b1"], s["W2"], b2=0)  # z and g, a second time
    return ffn_gelu.backward(dy, again)


RECOMPUTED = Pair("recomputed", forward, backward, ffn_gelu.INPUTS)


def non_reentrant(v, W1, b1, W2, b2):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(ffn_gelu.eager, v, W1, b1, W2, b2, use_reentrant=False)


def reentrant(v, W1, b1, W2, b2):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(ffn_gelu.eager, v, W1, b1, W2, b2, use_reentrant=True)


def without_rng(v, W1, b1, W2, b2):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(ffn_gelu.eager, v, W1, b1, W2, b2, use_reentrant=False, preserve_rng_state=False)


BIAS = dict(
    zh="checkpoint 存下函数的全部参数，不管反向用不用得到。",
    en="A checkpoint keeps every argument of the function, whether or not backward has a use for it.",
)
RNG = dict(
    zh="CPU 的随机数状态，为了重算时 dropout 抽出同样的掩码；这里没有 dropout，照样存着。",
    en="The CPU's random state, so that dropout draws the same mask again; here there is none, and it is kept anyway.",
)
GPU_RNG = dict(
    zh="GPU 的随机数状态，同样用途，存在 CPU 上。",
    en="The GPU's random state, for the same purpose; it is kept on the CPU.",
)
CPU_STATE, GPU_STATE = 5056, 16  # bytes: a Mersenne Twister and its bookkeeping; seed and offset of Philox


def keeps(args, rng="", cpu=False, gpu=False):
    """Arguments at ``args[n]``, random states under `rng`; away from the CPU those lie on the host."""
    cls = "rng" if cpu else "host"
    extras = [Unneeded("b2", f"{args}[4]", BIAS)]
    if rng:
        state = Input((CPU_STATE,), cls=cls, dtype="uint8")
        extras.append(Unneeded("fwd_cpu_state", f"{rng}.fwd_cpu_state", RNG, state))
    if gpu:
        state = Input((GPU_STATE,), cls="host", dtype="uint8")
        extras.append(Unneeded("fwd_device_state", f"{rng}.fwd_device_states[0]", GPU_RNG, state))
    names = ("v", "W1", "b1", "W2")
    return Saves(RECOMPUTED, at={n: f"{args}[{i}]" for i, n in enumerate(names)}, without_need=tuple(extras))


# Held by the first node that the checkpoint would have to fill again.
FRAME = "AddmmBackward0.mat1 unpack.frame"
ARGS, STATE = f"{FRAME}.saved_args", f"{FRAME}.recompute_fn"
OLD, CTX = "CheckpointFunctionBackward.saved_tensors", "CheckpointFunctionBackward.ctx"
HIDDEN = {"torch<2.13": "this version of torch hides what a checkpoint keeps; only its own backward can read it"}
LAYER = Layer(
    __name__,
    title=dict(zh="激活重算 Checkpoint", en="Activation checkpointing"),
    implementations=(
        Implementation(
            "non-reentrant",
            dict(zh="checkpoint(use_reentrant=False)", en="checkpoint(use_reentrant=False)"),
            non_reentrant,
            cpu=keeps(ARGS, STATE, cpu=True),
            cuda=keeps(ARGS, STATE, gpu=True),
            traced=keeps(ARGS, STATE),
            absent=HIDDEN,
        ),
        Implementation(
            "reentrant",
            dict(zh="checkpoint(use_reentrant=True)", en="checkpoint(use_reentrant=True)"),
            reentrant,
            cpu=keeps(OLD, CTX, cpu=True),
            cuda=keeps(OLD, CTX, gpu=True),
            traced=keeps(OLD, CTX),
        ),
        Implementation(
            "without-rng",
            dict(zh="checkpoint(preserve_rng_state=False)", en="checkpoint(preserve_rng_state=False)"),
            without_rng,
            cpu=keeps(ARGS),
            cuda=keeps(ARGS),
            absent=HIDDEN,
        ),
    ),
)

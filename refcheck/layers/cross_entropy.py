"""Cross entropy of logits ℓ with targets t: the mean of -log softmax(ℓ)[t] over the targets that are not ignored."""

from refcheck.arrays import differs, einsum, exp, log, one_hot
from refcheck.sizes import B, T, V
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, tokens


def forward(logits, t, ignore):
    logp = logits - log(exp(logits).sum(axis=-1, keepdims=True))  # (B, T, V)
    w = differs(t, ignore)  # (B, T)
    n = w.sum(axis=(0, 1))  # how many targets count
    picked = einsum("btv,btv,bt->bt", one_hot(t, logits.shape[-1]), logp, w)
    return -picked.sum(axis=(0, 1)) / n, dict(logp=logp, t=t, n=n, ignore=ignore)


def backward(dloss, s):
    p = exp(s["logp"])
    w = differs(s["t"], s["ignore"])
    return dict(logits=einsum("btv,bt->btv", p - one_hot(s["t"], p.shape[-1]), w) * (dloss / s["n"]))


def forward_smoothed(logits, t, ignore, smoothing):
    hard, saved = forward(logits, t, ignore)
    ignored = 1 - differs(t, ignore)  # (B, T)
    n_int = (1 - ignored).sum(axis=(0, 1))  # n once more, as a whole number
    uniform = -einsum("btv,bt->", saved["logp"], 1 - ignored) / n_int  # V times the mean over the vocabulary
    loss = hard * (1 - smoothing) + uniform * (smoothing / logits.shape[-1])
    return loss, dict(saved, ignored=ignored, n_int=n_int, smoothing=smoothing)


def backward_smoothed(dloss, s):
    p = exp(s["logp"])
    hard = backward(dloss, s)["logits"] * (1 - s["smoothing"])
    to_uniform = p * s["smoothing"] - s["smoothing"] / p.shape[-1]
    return dict(logits=hard + einsum("btv,bt->btv", to_uniform, 1 - s["ignored"]) * (dloss / s["n_int"]))


INPUTS = dict(logits=activation(B, T, V), t=tokens(B, T, below=V))
MEAN = Pair("mean", forward, backward, INPUTS, dict(ignore=0), output="loss")
SMOOTHED = Pair("smoothed", forward_smoothed, backward_smoothed, INPUTS, dict(ignore=0, smoothing=0.1), output="loss")


def eager(logits, t, ignore):
    import torch.nn.functional as F

    return F.cross_entropy(logits.flatten(0, 1), t.flatten(), ignore_index=ignore)


def float32(logits, t, ignore):
    return eager(logits.float(), t, ignore)


def smoothed(logits, t, ignore, smoothing):
    import torch.nn.functional as F

    return F.cross_entropy(logits.flatten(0, 1), t.flatten(), ignore_index=ignore, label_smoothing=smoothing)


EAGER = Saves(
    MEAN,
    at=dict(
        logp=("NllLossBackward0.self", "LogSoftmaxBackward0.result"),
        t="NllLossBackward0.target",
        n="NllLossBackward0.total_weight",
    ),
)
FLOAT32 = Saves(MEAN, at=EAGER.at, dtypes=dict(logp="float32", n="float32"))
SMOOTH = Saves(
    SMOOTHED,
    at=dict(EAGER.at, ignored="MaskedFillBackward0.mask", n_int="DivBackward0.other"),
    dtypes=dict(ignored="bool", n_int="int64"),
)

LAYER = Layer(
    __name__,
    title=dict(zh="交叉熵 Cross entropy", en="Cross entropy"),
    implementations=(
        Implementation("eager", dict(zh="F.cross_entropy", en="F.cross_entropy"), eager, cpu=EAGER, cuda=EAGER),
        Implementation(
            "float32",
            dict(zh="F.cross_entropy(ℓ.float(), t)", en="F.cross_entropy(ℓ.float(), t)"),
            float32,
            cpu=FLOAT32,
            cuda=FLOAT32,
        ),
        Implementation(
            "label-smoothing",
            dict(zh="F.cross_entropy(label_smoothing=0.1)", en="F.cross_entropy(label_smoothing=0.1)"),
            smoothed,
            cpu=SMOOTH,
            cuda=SMOOTH,
        ),
    ),
)

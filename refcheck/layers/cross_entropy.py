"""Cross entropy of logits ℓ with targets t: the mean of -log softmax(ℓ)[t] over the targets that are not ignored."""

from dataclasses import replace

from refcheck.arrays import differs, einsum, exp, log, one_hot
from refcheck.compiled import as_compiled, places
from refcheck.sizes import B, T, V
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, detached, tokens


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


def forward_from_logits(logits, t, shift, ignore):
    logsum = log(exp(logits - shift).sum(axis=-1, keepdims=True))  # (B, T, 1); shift keeps exp from overflowing
    w = differs(t, ignore)
    n = w.sum(axis=(0, 1))
    picked = einsum("btv,btv,bt->bt", one_hot(t, logits.shape[-1]), logits - shift - logsum, w)
    loss = -picked.sum(axis=(0, 1)) / n
    return loss, dict(logits=logits, t=t, shift=shift, logsum=logsum, n=n, ignore=ignore)


def backward_from_logits(dloss, s):
    logp = s["logits"] - s["shift"] - s["logsum"]  # recomputed, not saved
    return backward(dloss, dict(logp=logp, t=s["t"], n=s["n"], ignore=s["ignore"]))


INPUTS = dict(logits=activation(B, T, V), t=tokens(B, T, below=V))
MEAN = Pair("mean", forward, backward, INPUTS, dict(ignore=0), output="loss")
SMOOTHED = Pair("smoothed", forward_smoothed, backward_smoothed, INPUTS, dict(ignore=0, smoothing=0.1), output="loss")
FROM_LOGITS = Pair(
    "from-logits",
    forward_from_logits,
    backward_from_logits,
    dict(INPUTS, shift=detached(B, T, 1)),  # any number per row will do; torch takes the largest logit
    dict(ignore=0),
    output="loss",
)


def eager(logits, t, ignore):
    import torch.nn.functional as F

    return F.cross_entropy(logits.flatten(0, 1), t.flatten(), ignore_index=ignore)


def float32(logits, t, ignore):
    return eager(logits.float(), t, ignore)


def smoothed(logits, t, ignore, smoothing):
    import torch.nn.functional as F

    return F.cross_entropy(logits.flatten(0, 1), t.flatten(), ignore_index=ignore, label_smoothing=smoothing)


def recover(loss, logits, **others):
    return dict(shift=logits.detach().amax(-1, keepdim=True))


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
COMPILED = Saves(
    FROM_LOGITS,
    at=places("logits", "t", "shift", "logsum", "n"),
    dtypes=dict(shift="float32", logsum="float32"),  # log-softmax computes in fp32
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
        as_compiled(eager, COMPILED, recover=recover),
        as_compiled(
            float32,
            replace(COMPILED, dtypes=dict(COMPILED.dtypes, n="float32")),  # the cast is recomputed from the logits
            recover=recover,
            id="compiled-float32",
            title="torch.compile, F.cross_entropy(ℓ.float(), t)",
        ),
    ),
)

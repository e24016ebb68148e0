"""The LM head and the loss in one: the cross entropy of ℓ = xW, with or without the logits that lie between."""

from refcheck.arrays import differs, einsum, exp, log, one_hot
from refcheck.function import written_out
from refcheck.layers import cross_entropy
from refcheck.sizes import B, D, T, V
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, parameter, tokens


def forward(x, W_vocab, t, ignore):
    loss, s = cross_entropy.forward(einsum("btd,dv->btv", x, W_vocab), t, ignore)
    return loss, dict(x=x, W_vocab=W_vocab, **s)


def head(x, W_vocab):
    logits = einsum("btd,dv->btv", x, W_vocab)
    return logits, log(exp(logits).sum(axis=-1, keepdims=True))  # (B, T, V), (B, T, 1)


def backward(dloss, s):
    return through_head(cross_entropy.backward(dloss, s)["logits"], s)


def through_head(dlogits, s):
    return dict(x=einsum("btv,dv->btd", dlogits, s["W_vocab"]), W_vocab=einsum("btd,btv->dv", s["x"], dlogits))


def forward_from_lse(x, W_vocab, t, ignore):
    loss, _ = forward(x, W_vocab, t, ignore)
    return loss, dict(x=x, W_vocab=W_vocab, t=t, logZ=head(x, W_vocab)[1], ignore=ignore)


def backward_from_lse(dloss, s):
    logp = einsum("btd,dv->btv", s["x"], s["W_vocab"]) - s["logZ"]  # recomputed, block by block
    n = differs(s["t"], s["ignore"]).sum(axis=(0, 1))
    return backward(dloss, dict(x=s["x"], W_vocab=s["W_vocab"], logp=logp, t=s["t"], n=n, ignore=s["ignore"]))


def forward_with_gradients(x, W_vocab, t, ignore):
    loss, s = forward(x, W_vocab, t, ignore)  # chunk by chunk
    rest = (exp(s["logp"]) - one_hot(t, W_vocab.shape[-1])) / s["n"]
    dlogits = einsum("btv,bt->btv", rest, differs(t, ignore))  # for an upstream gradient of 1
    return loss, dict(G_x=einsum("btv,dv->btd", dlogits, W_vocab), G_W=einsum("btd,btv->dv", x, dlogits))


def backward_with_gradients(dloss, s):
    return dict(x=s["G_x"] * dloss, W_vocab=s["G_W"] * dloss)


def forward_per_token(x, W_vocab, t, ignore):
    logits, logZ = head(x, W_vocab)
    picked = einsum("btv,btv,bt->bt", one_hot(t, W_vocab.shape[-1]), logits - logZ, differs(t, ignore))
    return -picked, dict(x=x, W_vocab=W_vocab, t=t, ignore=ignore)


def backward_per_token(dlosses, s):
    logits = einsum("btd,dv->btv", s["x"], s["W_vocab"])  # recomputed, and the log-sum-exp with them
    p = exp(logits - log(exp(logits).sum(axis=-1, keepdims=True)))
    w = differs(s["t"], s["ignore"])
    return through_head(einsum("btv,bt,bt->btv", p - one_hot(s["t"], p.shape[-1]), w, dlosses), s)


INPUTS = dict(x=activation(B, T, D), W_vocab=parameter(D, V), t=tokens(B, T, below=V))
IGNORE = dict(ignore=4)
TWO_STEPS = Pair("two-steps", forward, backward, INPUTS, IGNORE, output="loss")
FROM_LSE = Pair("from-lse", forward_from_lse, backward_from_lse, INPUTS, IGNORE, output="loss")
GRADIENTS = Pair("gradients", forward_with_gradients, backward_with_gradients, INPUTS, IGNORE, output="loss")
PER_TOKEN = Pair("per-token", forward_per_token, backward_per_token, INPUTS, IGNORE, output="losses")


def eager(x, W_vocab, t, ignore):
    import torch.nn.functional as F

    logits = F.linear(x, W_vocab.mT)  # nn.Linear stores W transposed: (V, D)
    return F.cross_entropy(logits.flatten(0, 1), t.flatten(), ignore_index=ignore)


def eager_per_token(x, W_vocab, t, ignore):
    import torch.nn.functional as F

    logits = F.linear(x, W_vocab.mT)
    return F.cross_entropy(logits.flatten(0, 1), t.flatten(), ignore_index=ignore, reduction="none").view(t.shape)


def reference(x, W_vocab, t, ignore):
    import torch.nn.functional as F

    return F.linear_cross_entropy(x.flatten(0, 1), W_vocab.mT, t.flatten(), ignore_index=ignore)


def chunked(x, W_vocab, t, ignore, reduction="mean"):
    import torch
    import torch.nn.functional as F

    rows_of_a_chunk = 1 if isinstance(x.shape[0], torch.SymInt) else None  # traced: symbols don't say how many
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=rows_of_a_chunk)
    flat = x.flatten(0, 1), W_vocab.mT, t.flatten()
    return F.linear_cross_entropy(*flat, ignore_index=ignore, reduction=reduction, options=options)


def chunked_per_token(x, W_vocab, t, ignore):
    return chunked(x, W_vocab, t, ignore, reduction="none").view(t.shape)


EAGER = Saves(
    TWO_STEPS,
    at=dict(
        x="MmBackward0.self",
        W_vocab="MmBackward0.mat2",
        logp=("NllLossBackward0.self", "LogSoftmaxBackward0.result"),
        t="NllLossBackward0.target",
        n="NllLossBackward0.total_weight",
    ),
)
OP = "GeneratedBackwardFor_torch_nn__linear_cross_entropy_batch_chunked"
CHUNKED = Saves(
    GRADIENTS,
    at=dict(G_x=f"{OP}_defaultBackward.ctx._gi", G_W=f"{OP}_defaultBackward.ctx._gw"),
)
CHUNKED_PER_TOKEN = Saves(
    PER_TOKEN,
    at={name: f"{OP}_no_reduction_defaultBackward.saved_tensors[{n}]" for n, name in enumerate(("x", "W_vocab", "t"))},
)
NEW = {"torch<2.13": "F.linear_cross_entropy is new in torch 2.13"}

LAYER = Layer(
    __name__,
    title=dict(zh="LM head 与交叉熵合一", en="LM head and cross entropy in one"),
    implementations=(
        Implementation(
            "eager", dict(zh="F.linear + F.cross_entropy", en="F.linear + F.cross_entropy"), eager, EAGER, EAGER
        ),
        Implementation(
            "reference",
            dict(zh="F.linear_cross_entropy（默认）", en="F.linear_cross_entropy (default)"),
            reference,
            cpu=EAGER,
            cuda=EAGER,
            absent=NEW,
            like=eager,
        ),
        Implementation(
            "chunked",
            dict(zh="F.linear_cross_entropy（分块）", en="F.linear_cross_entropy (chunked)"),
            chunked,
            cpu=CHUNKED,
            cuda=CHUNKED,
            absent=NEW,
            like=eager,
        ),
        Implementation(
            "chunked-per-token",
            dict(zh="F.linear_cross_entropy（分块，逐词元）", en="F.linear_cross_entropy (chunked, per token)"),
            chunked_per_token,
            cpu=CHUNKED_PER_TOKEN,
            cuda=CHUNKED_PER_TOKEN,
            absent=NEW,
            like=eager_per_token,
        ),
        written_out(
            GRADIENTS,
            "LinearCrossEntropyGradients",
            dict(zh="前向里算好梯度，只留梯度", en="keeps gradients that the forward has computed"),
            like=eager,
            kept_in={},
        ),
        written_out(
            FROM_LSE,
            "LinearCrossEntropyFromLse",
            dict(zh="留 x 和 log Z，反向时重算 logits", en="keeps x and log Z, recomputes the logits"),
            like=eager,
            kept_in=dict(logZ="float32"),
        ),
    ),
)

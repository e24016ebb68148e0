"""Position embeddings: x = e + W_pos[pos], with e the embeddings of the tokens and pos = 0 … T - 1."""

from refcheck.arrays import einsum, one_hot
from refcheck.sizes import B, D, T
from refcheck.spec import Implementation, Input, Layer, Pair, Saves, activation, buffer, parameter, tokens


def forward(e, pos, W_pos):
    return e + W_pos[pos], dict(pos=pos, rows=W_pos.shape[0])


def backward(dx, s):
    return dict(e=dx, W_pos=einsum("tr,btd->rd", one_hot(s["pos"], s["rows"]), dx))  # the sum over sequences


def forward_from_buffer(e, pos_buffer, W_pos):
    return e + W_pos[pos_buffer], dict(pos_buffer=pos_buffer, rows=W_pos.shape[0])


def backward_from_buffer(dx, s):
    return backward(dx, dict(pos=s["pos_buffer"], rows=s["rows"]))


def forward_from_batch(e, pos_batch, W_pos):
    return e + W_pos[pos_batch], dict(pos_batch=pos_batch, rows=W_pos.shape[0])


def backward_from_batch(dx, s):
    return dict(e=dx, W_pos=einsum("btr,btd->rd", one_hot(s["pos_batch"], s["rows"]), dx))


def forward_slice(e, W_pos):
    return e + W_pos, {}


def backward_slice(dx, s):
    return dict(e=dx, W_pos=dx.sum(axis=0))


def forward_fixed(e, PE):
    return e + PE, {}


def backward_fixed(dx, s):
    return dict(e=dx)


# T positions, T rows: the longest sequence.  A longer table has more rows of zeros in its gradient, and nothing else.
ONE, TABLE = activation(B, T, D), parameter(T, D)
POS = Input((T,), "activation", "int64", below=T, drawn=True)  # made in the forward
POS_BUFFER = Input((T,), "buffer", "int64", below=T)
LOOKUP = Pair("lookup", forward, backward, dict(e=ONE, pos=POS, W_pos=TABLE), output="x")
FROM_BUFFER = Pair(
    "from-buffer",
    forward_from_buffer,
    backward_from_buffer,
    dict(e=ONE, pos_buffer=POS_BUFFER, W_pos=TABLE),
    output="x",
)
FROM_BATCH = Pair(
    "from-batch",
    forward_from_batch,
    backward_from_batch,
    dict(e=ONE, pos_batch=tokens(B, T, below=T), W_pos=TABLE),
    output="x",
)
SLICE = Pair("slice", forward_slice, backward_slice, dict(e=ONE, W_pos=TABLE), output="x")
FIXED = Pair("fixed", forward_fixed, backward_fixed, dict(e=ONE, PE=buffer(T, D, dtype=None)), output="x")


def count(e):
    import torch

    return torch.arange(e.shape[1], device=e.device)


def eager(e, W_pos):
    return from_buffer(e, count(e), W_pos)


def from_buffer(e, pos_buffer, W_pos):
    import torch.nn.functional as F

    return e + F.embedding(pos_buffer, W_pos)


def from_batch(e, pos_batch, W_pos):
    return from_buffer(e, pos_batch, W_pos)


def added(e, W_pos):
    return e + W_pos[: e.shape[1]]


def fixed(e, PE):
    return e + PE[: e.shape[1]]


def recover(x, e, W_pos):
    return dict(pos=count(e))


def looked_up(pair, pos):
    return Saves(pair, at={pos: "EmbeddingBackward0.indices"})


EAGER, BUFFER, BATCH = (
    looked_up(LOOKUP, "pos"),
    looked_up(FROM_BUFFER, "pos_buffer"),
    looked_up(FROM_BATCH, "pos_batch"),
)
SLICED, ADDED = Saves(SLICE, at={}), Saves(FIXED, at={})

LAYER = Layer(
    __name__,
    title=dict(zh="位置嵌入", en="Position embeddings"),
    implementations=(
        Implementation(
            "eager",
            dict(zh="F.embedding，编号在前向里现造", en="F.embedding, positions made in the forward"),
            eager,
            cpu=EAGER,
            cuda=EAGER,
            recover=recover,
        ),
        Implementation(
            "buffer",
            dict(zh="F.embedding，编号是缓冲区", en="F.embedding, positions in a buffer"),
            from_buffer,
            cpu=BUFFER,
            cuda=BUFFER,
        ),
        Implementation(
            "batch",
            dict(zh="F.embedding，编号随批次传入", en="F.embedding, positions given with the batch"),
            from_batch,
            cpu=BATCH,
            cuda=BATCH,
        ),
        Implementation("slice", dict(zh="e + W_pos[:T]", en="e + W_pos[:T]"), added, cpu=SLICED, cuda=SLICED),
        Implementation("fixed", dict(zh="固定的正弦表", en="a fixed table of sines"), fixed, cpu=ADDED, cuda=ADDED),
    ),
)

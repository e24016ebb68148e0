"""Softmax over the last axis, as attention uses it: P = softmax(S)."""

from refcheck.arrays import exp
from refcheck.function import written_out
from refcheck.sizes import B, T, h
from refcheck.spec import Implementation, Layer, Pair, Saves, activation


def forward(S):
    e = exp(S)  # torch subtracts max(S) first, against overflow; the factor cancels in P
    P = e / e.sum(axis=-1, keepdims=True)
    return P, dict(P=P)


def backward(dP, s):
    P = s["P"]
    return dict(S=P * (dP - (dP * P).sum(axis=-1, keepdims=True)))


def forward_from_scores(S):
    return forward(S)[0], dict(S=S)


def backward_from_scores(dP, s):
    return backward(dP, forward(s["S"])[1])  # P is recomputed


INPUTS = dict(S=activation(B, h, T, T))
FROM_OUTPUT = Pair("from-output", forward, backward, INPUTS, output="P")
FROM_SCORES = Pair("from-scores", forward_from_scores, backward_from_scores, INPUTS, output="P")


def eager(S):
    import torch.nn.functional as F

    return F.softmax(S, dim=-1)


def float32(S):
    import torch
    import torch.nn.functional as F

    return F.softmax(S, dim=-1, dtype=torch.float32).to(S.dtype)


EAGER = Saves(FROM_OUTPUT, at=dict(P="SoftmaxBackward0.result"))
FLOAT32 = Saves(FROM_OUTPUT, at=EAGER.at, dtypes=dict(P="float32"))

LAYER = Layer(
    __name__,
    title=dict(zh="Softmax", en="Softmax"),
    implementations=(
        Implementation("eager", dict(zh="F.softmax", en="F.softmax"), eager, cpu=EAGER, cuda=EAGER),
        Implementation(
            "float32",
            dict(zh="F.softmax(dtype=torch.float32).to(S.dtype)", en="F.softmax(dtype=torch.float32).to(S.dtype)"),
            float32,
            cpu=FLOAT32,
            cuda=FLOAT32,
        ),
        written_out(
            FROM_SCORES,
            "SoftmaxFromScores",
            dict(zh="存 S，反向时重算 P", en="keeps S, recomputes P in the backward"),
            like=eager,
        ),
    ),
)

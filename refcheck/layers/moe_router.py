"""The router of a mixture of experts: from logits r to k experts for each token, and weights α that add up to 1."""

from refcheck.arrays import einsum, one_hot
from refcheck.layers import softmax
from refcheck.sizes import B, E, T, k
from refcheck.spec import Implementation, Input, Layer, Pair, Saves, activation


def forward(r, choice):
    pi = softmax.forward(r)[0]  # (B, T, E)
    top = einsum("bte,btje->btj", pi, one_hot(choice, r.shape[-1]))  # those of the k chosen experts
    pi_C = top.sum(axis=-1, keepdims=True)
    return top / pi_C, dict(pi=pi, choice=choice, top=top, pi_C=pi_C)


def backward(dalpha, s):
    top, pi_C = s["top"], s["pi_C"]
    dtop = dalpha / pi_C - (dalpha * top).sum(axis=-1, keepdims=True) / pi_C**2
    dpi = scatter(dtop, s["choice"], s["pi"].shape[-1])
    return dict(r=through_softmax(dpi, s["pi"]))


def through_softmax(dP, P):
    return softmax.backward(dP, dict(P=P))["S"]


def scatter(chosen, choice, E):
    return einsum("btj,btje->bte", chosen, one_hot(choice, E))  # 0 for the experts that were not chosen


def forward_of_chosen(r, choice):
    chosen = einsum("bte,btje->btj", r, one_hot(choice, r.shape[-1]))
    alpha = softmax.forward(chosen)[0]  # a sum over all E would cancel
    return alpha, dict(choice=choice, alpha=alpha, E=r.shape[-1])


def backward_of_chosen(dalpha, s):
    return dict(r=scatter(through_softmax(dalpha, s["alpha"]), s["choice"], s["E"]))


CHOICE = Input((B, T, k), cls="activation", dtype="int64", below=E, drawn=True)  # whole numbers: no gradient
INPUTS = dict(r=activation(B, T, E), choice=CHOICE)
ALL = Pair("softmax-first", forward, backward, INPUTS, output="alpha")
CHOSEN = Pair("topk-first", forward_of_chosen, backward_of_chosen, INPUTS, output="alpha")


def softmax_first(r, k):
    import torch
    import torch.nn.functional as F

    top, _ = F.softmax(r, dim=-1, dtype=torch.float32).topk(k)
    return top / top.sum(dim=-1, keepdim=True)


def topk_first(r, k):
    import torch
    import torch.nn.functional as F

    chosen, _ = r.topk(k)
    return F.softmax(chosen, dim=-1, dtype=torch.float32)


def recover_from_probabilities(alpha, r):
    import torch
    import torch.nn.functional as F

    return dict(choice=F.softmax(r, dim=-1, dtype=torch.float32).topk(alpha.shape[-1]).indices)


def recover_from_logits(alpha, r):
    return dict(choice=r.topk(alpha.shape[-1]).indices)


INDICES = "TopkBackward0.indices"
FROM_ALL = Saves(
    ALL,
    at=dict(pi="SoftmaxBackward0.result", choice=INDICES, top="DivBackward0.self", pi_C="DivBackward0.other"),
    dtypes=dict(pi="float32", top="float32", pi_C="float32"),
)
ALPHA = dict(alpha="float32")
FROM_CHOSEN = Saves(CHOSEN, dict(choice=INDICES, alpha="SoftmaxBackward0.result"), ALPHA, returns=ALPHA)

LAYER = Layer(
    __name__,
    title=dict(zh="MoE 路由 Router", en="MoE router"),
    implementations=(
        Implementation(
            "softmax-first",
            dict(zh="先 softmax，再 topk，再归一", en="softmax, then topk, then renormalised"),
            softmax_first,
            cpu=FROM_ALL,
            cuda=FROM_ALL,
            recover=recover_from_probabilities,
            told=dict(k=k),
        ),
        Implementation(
            "topk-first",
            dict(zh="先 topk，再 softmax", en="topk, then softmax"),
            topk_first,
            cpu=FROM_CHOSEN,
            cuda=FROM_CHOSEN,
            recover=recover_from_logits,
            told=dict(k=k),
        ),
    ),
)

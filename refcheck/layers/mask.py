"""Attention mask: hides some scores, by adding a large negative number or by writing one."""

from refcheck.sizes import B, T, h
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, buffer, mask


def forward(S, A):
    return S + A, {}


def backward(dS_masked, s):
    return dict(S=dS_masked)


def forward_fill(S, keep, fill):
    return S * keep + fill * (1 - keep * 1), dict(keep=keep)


def backward_fill(dS_masked, s):
    return dict(S=dS_masked * s["keep"])


def forward_forbid(S, forbid, fill):
    return S - S * forbid + fill * forbid, dict(forbid=forbid)


def backward_forbid(dS_masked, s):
    return dict(S=dS_masked - dS_masked * s["forbid"])


def forward_padding(S, real, fill):
    return forward_fill(S, real, fill)[0], dict(real=real)  # (B, 1, 1, T), broadcast


def backward_padding(dS_masked, s):
    return dict(S=dS_masked * s["real"])


def forward_made(S, causal, fill):
    return forward_fill(S, causal, fill)[0], dict(causal=causal)


def backward_made(dS_masked, s):
    return dict(S=dS_masked * s["causal"])


def forward_combined(S, keep, real, fill):
    seen = keep * real  # (B, 1, T, T): a new tensor
    return forward_fill(S, seen, fill)[0], dict(seen=seen)


def backward_combined(dS_masked, s):
    return dict(S=dS_masked * s["seen"])


S = activation(B, h, T, T)
FILL = dict(fill=-10000.0)
ADDED = Pair("added", forward, backward, dict(S=S, A=buffer(T, T, dtype=None)), output="S_masked")
FILLED = Pair("filled", forward_fill, backward_fill, dict(S=S, keep=buffer(T, T)), FILL, output="S_masked")
FORBIDDEN = Pair("forbidden", forward_forbid, backward_forbid, dict(S=S, forbid=buffer(T, T)), FILL, output="S_masked")
PADDED = Pair("padded", forward_padding, backward_padding, dict(S=S, real=buffer(B, 1, 1, T)), FILL, output="S_masked")
MADE = Pair("made", forward_made, backward_made, dict(S=S, causal=mask(T, T)), FILL, output="S_masked")
COMBINED = Pair(
    "combined",
    forward_combined,
    backward_combined,
    dict(S=S, keep=buffer(T, T), real=buffer(B, 1, 1, T)),
    FILL,
    output="S_masked",
)


def additive(S, A):
    return S + A


def where(S, keep, fill):
    import torch

    return torch.where(keep, S, fill)


def masked_fill(S, forbid, fill):
    return S.masked_fill(forbid, fill)


def padding(S, real, fill):
    return where(S, real, fill)


def made_in_forward(S, fill):
    import torch

    T = S.shape[-1]
    return where(S, torch.ones(T, T, dtype=torch.bool, device=S.device).tril(), fill)


def recover(S_masked, S):
    return dict(causal=(S_masked == S)[0, 0])


def combined_in_forward(S, keep, real, fill):
    return where(S, keep & real, fill)


CONDITION = "WhereBackward0.condition"
NOTHING = Saves(ADDED, at={})
WHERE = Saves(FILLED, at=dict(keep=CONDITION))
MASKED_FILL = Saves(FORBIDDEN, at=dict(forbid="MaskedFillBackward0.mask"))
PADDING = Saves(PADDED, at=dict(real=CONDITION))
IN_FORWARD = Saves(MADE, at=dict(causal=CONDITION))
BOTH = Saves(COMBINED, at=dict(seen=CONDITION), dtypes=dict(seen="bool"))

LAYER = Layer(
    __name__,
    title=dict(zh="注意力掩码", en="Attention mask"),
    implementations=(
        Implementation("additive", dict(zh="S + A", en="S + A"), additive, cpu=NOTHING, cuda=NOTHING),
        Implementation("where", dict(zh="torch.where", en="torch.where"), where, cpu=WHERE, cuda=WHERE),
        Implementation(
            "masked-fill",
            dict(zh="S.masked_fill", en="S.masked_fill"),
            masked_fill,
            cpu=MASKED_FILL,
            cuda=MASKED_FILL,
        ),
        Implementation(
            "padding",
            dict(zh="torch.where，只遮填充", en="torch.where, padding only"),
            padding,
            cpu=PADDING,
            cuda=PADDING,
        ),
        Implementation(
            "made-in-forward",
            dict(zh="torch.where，因果掩码每层现造", en="torch.where, causal mask made in every layer"),
            made_in_forward,
            cpu=IN_FORWARD,
            cuda=IN_FORWARD,
            recover=recover,
        ),
        Implementation(
            "combined-in-forward",
            dict(zh="torch.where，因果与填充每层求与", en="torch.where, causal and padding combined in every layer"),
            combined_in_forward,
            cpu=BOTH,
            cuda=BOTH,
        ),
    ),
)

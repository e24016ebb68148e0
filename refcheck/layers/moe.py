"""Mixture of experts, after the router: rows sorted by expert, each expert's SwiGLU FFN, and the weighted sum."""

from refcheck.arrays import einsum
from refcheck.function import written_out
from refcheck.layers import swiglu
from refcheck.routing import collect, members, plan, rows
from refcheck.sizes import B, D, E, M, T, k
from refcheck.spec import Implementation, Input, Layer, Pair, Saves, Unneeded, activation, parameter, tokens


def forward(v, alpha, choice, W_gate_e, W_up_e, W_down_e):
    slot, token, offs = plan(choice, W_gate_e.shape[0])  # whole numbers: (kBT,), (kBT,), (E,)
    x_e, alpha_e = rows(v, token, axes=2), rows(alpha, slot, axes=3)  # (kBT, D), (kBT,)
    mine = members(offs, x_e)  # (kBT, E): row n is multiplied by the matrix of its expert
    z1, z2 = (einsum("ne,nd,edm->nm", mine, x_e, W) for W in (W_gate_e, W_up_e))
    g, hidden = swiglu.forward(z1, z2)
    o_e = einsum("ne,nm,emd->nd", mine, g, W_down_e)
    y = collect(einsum("n,nd->nd", alpha_e, o_e), token, v.shape[:2])
    given = dict(W_gate_e=W_gate_e, W_up_e=W_up_e, W_down_e=W_down_e, k=alpha.shape[2])
    sorting = dict(slot=slot, token=token, offs=offs)
    return y, dict(x_e=x_e, alpha_e=alpha_e, z1_e=z1, a_e=hidden["a"], z2_e=z2, g_e=g, o_e=o_e, **sorting, **given)


def backward(dy, s):
    dy_e, dg = through_down(dy, s)
    dalpha_e = einsum("nd,nd->n", dy_e, s["o_e"])  # the router's gradient: outputs before they are weighted
    return through_experts(dy, dy_e, dg, dalpha_e, s)


def through_down(dy, s):
    dy_e = rows(dy, s["token"], axes=2)  # (kBT, D)
    return dy_e, einsum("ne,nd,emd->nm", members(s["offs"], dy_e), dy_e, s["W_down_e"])  # not weighted yet


def through_experts(dy, dy_e, dg, dalpha_e, s):
    mine, x_e, alpha_e = members(s["offs"], dy_e), s["x_e"], s["alpha_e"]
    dz = swiglu.backward(einsum("n,nm->nm", alpha_e, dg), dict(z1=s["z1_e"], a=s["a_e"], z2=s["z2_e"]))
    dx_1 = einsum("ne,nm,edm->nd", mine, dz["z1"], s["W_gate_e"])
    dx_2 = einsum("ne,nm,edm->nd", mine, dz["z2"], s["W_up_e"])
    return dict(
        v=collect(dx_1 + dx_2, s["token"], dy.shape[:2]),
        alpha=collect(dalpha_e, s["slot"], (*dy.shape[:2], s["k"])),
        W_gate_e=einsum("ne,nd,nm->edm", mine, x_e, dz["z1"]),
        W_up_e=einsum("ne,nd,nm->edm", mine, x_e, dz["z2"]),
        W_down_e=einsum("ne,n,nm,nd->emd", mine, alpha_e, s["g_e"], dy_e),
    )


def forward_recomputing(v, alpha, choice, W_gate_e, W_up_e, W_down_e):
    y, s = forward(v, alpha, choice, W_gate_e, W_up_e, W_down_e)
    return y, dict(v=v, alpha=alpha) | {name: s[name] for name in STILL_KEPT}


def backward_recomputing(dy, s):
    g, hidden = swiglu.forward(s["z1_e"], s["z2_e"])
    x_e, alpha_e = rows(s["v"], s["token"], axes=2), rows(s["alpha"], s["slot"], axes=3)  # gathered again
    dy_e, dg = through_down(dy, s)
    dalpha_e = einsum("nm,nm->n", dg, g)  # = Σ dy·o, without o
    again = dict(x_e=x_e, alpha_e=alpha_e, a_e=hidden["a"], g_e=g, k=s["alpha"].shape[2])
    return through_experts(dy, dy_e, dg, dalpha_e, again | {name: s[name] for name in STILL_KEPT})


STILL_KEPT = ("z1_e", "z2_e", "slot", "token", "offs", "W_gate_e", "W_up_e", "W_down_e")


STACKED = dict(W_gate_e=parameter(E, D, M), W_up_e=parameter(E, D, M), W_down_e=parameter(E, M, D))
INPUTS = dict(
    v=activation(B, T, D), alpha=Input((B, T, k), dtype="float32"), choice=tokens(B, T, k, below=E), **STACKED
)
ROWS = Pair("sorted-rows", forward, backward, INPUTS)
RECOMPUTING = Pair("recomputing", forward_recomputing, backward_recomputing, INPUTS)


def grouped_mm(x, W, offs):
    """Each group of rows, ending where `offs` says, times the matrix of the group."""
    import torch

    if x.dtype == torch.float64:  # which torch's own does not take
        sizes = offs.diff(prepend=offs.new_zeros(1)).tolist()
        return torch.cat([part @ matrix for part, matrix in zip(x.split(sizes), W, strict=True)])
    return torch._grouped_mm(x, W, offs=offs)  # F.grouped_mm since 2.10


def weighted_outputs(v, alpha, choice, W_gate_e, W_up_e, W_down_e):
    """The experts' outputs in sorted rows, times their weights, and the rows' tokens."""
    import torch.nn.functional as F

    slot, token, offs = plan(choice, W_gate_e.shape[0])
    x_e, alpha_e = v.flatten(0, 1)[token], alpha.flatten()[slot]
    g_e = F.silu(grouped_mm(x_e, W_gate_e, offs)) * grouped_mm(x_e, W_up_e, offs)
    return (grouped_mm(g_e, W_down_e, offs) * alpha_e[:, None]).to(v.dtype), token


def index_add(v, alpha, choice, W_gate_e, W_up_e, W_down_e):
    outputs, token = weighted_outputs(v, alpha, choice, W_gate_e, W_up_e, W_down_e)
    return v.new_zeros(v.flatten(0, 1).shape).index_add(0, token, outputs).view(v.shape)


def index_put(v, alpha, choice, W_gate_e, W_up_e, W_down_e):
    outputs, token = weighted_outputs(v, alpha, choice, W_gate_e, W_up_e, W_down_e)
    return v.new_zeros(v.flatten(0, 1).shape).index_put((token,), outputs, accumulate=True).view(v.shape)


def places(adding):
    mm, index = "GroupedMmBackward0", "IndexBackward0.indices[0]"
    return dict(
        x_e=(f"{mm}.self", f"{mm}.self"),
        z1_e="SiluBackward0.self",
        a_e="MulBackward0.self",
        z2_e="MulBackward0.other",
        g_e=f"{mm}.self",
        o_e="MulBackward0.self",
        alpha_e="MulBackward0.other",
        slot=index,
        token=(index, adding),
        offs=(f"{mm}.offs",) * 3,
        **dict.fromkeys(STACKED, f"{mm}.mat2"),
    )


WHOLE = dict(slot="int64", token="int64", offs="int32")
WEIGHTED = Unneeded(
    "weighted",
    "IndexAddBackward0.source",
    dict(
        zh="加了权的专家输出。`index_add` 的反向只用它的形状，却把它整个留着。",
        en="The experts' outputs, weighted. The backward of `index_add` uses only their shape, but keeps them whole.",
    ),
    Input((k * B * T, D), cls="activation"),
)
ADDING = Saves(ROWS, places("IndexAddBackward0.index"), dict(WHOLE, alpha_e="float32"), without_need=(WEIGHTED,))
PUTTING = Saves(ROWS, places("IndexPutBackward0.indices[0]"), dict(WHOLE, alpha_e="float32"))
ONLY_BF16 = "torch._grouped_mm takes only bf16 on CUDA, or fp16 with a recent cuBLAS"
ABSENT = {"cuda/float16": ONLY_BF16, "cuda/float32": ONLY_BF16}
ALIGNED = dict(D=8, M=8)  # a row must be whole blocks of 16 bytes

LAYER = Layer(
    __name__,
    title=dict(zh="混合专家 MoE", en="Mixture of experts"),
    implementations=(
        Implementation(
            "index-add",
            dict(zh="排序，F.grouped_mm，index_add", en="sort, F.grouped_mm, index_add"),
            index_add,
            cpu=ADDING,
            cuda=ADDING,
            absent=ABSENT,
            multiples=ALIGNED,
        ),
        Implementation(
            "index-put",
            dict(zh="排序，F.grouped_mm，index_put", en="sort, F.grouped_mm, index_put"),
            index_put,
            cpu=PUTTING,
            cuda=PUTTING,
            absent=ABSENT,
            multiples=ALIGNED,
        ),
        written_out(
            RECOMPUTING,
            "MixtureRecomputing",
            dict(
                zh="融合写法：留 v、z1、z2，不留副本和输出",
                en="as fused kernels can: v, z1 and z2, no copies and no outputs",
            ),
            like=index_add,
            kept_in=WHOLE,
        ),
    ),
)

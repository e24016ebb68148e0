# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Mixture of experts · 混合专家
#
# Rows sorted by expert, grouped matrix products, and the weighted sum. Change the sizes and run it again; D and M must
# be multiples of 8.
#
# 行按专家排序，分组做矩阵乘，再加权求和。改改尺寸，再跑一遍；D 和 M 要是 8 的倍数。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, D, M, E, k = 2, 64, 128, 256, 8, 2  # batch, length, hidden size, FFN width, experts, experts for each token
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Every storage that the graph of the outputs keeps, once: `case` returns the outputs, and the parameters to leave out.
#
# 输出的计算图所保留的每一块存储，各记一次。`case` 返回输出，以及不计入的参数。


# %%
def inputs(device, dtype, B, T, D, M, E, k):
    def random(*shape, dtype=dtype):
        return torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)

    choice = torch.rand(B * T, E, device=device).topk(k).indices
    return (
        random(B * T, D),
        random(B * T, k, dtype=torch.float32),
        choice,
        random(E, D, M),
        random(E, D, M),
        random(E, M, D),
    )


def outputs(v, alpha, choice, gate, up, down):
    """The experts' outputs in sorted rows, times their coefficients, and the rows' tokens."""
    expert, slot = choice.flatten().sort(stable=True)
    token = slot // choice.shape[-1]
    each = torch.arange(len(gate), device=v.device)
    offs = torch.searchsorted(expert, each, right=True, out_int32=True)
    x = v[token]
    g = F.silu(torch._grouped_mm(x, gate, offs=offs)) * torch._grouped_mm(x, up, offs=offs)
    o = torch._grouped_mm(g, down, offs=offs)
    return (o * alpha.flatten()[slot][:, None]).to(v.dtype), token


def index_add(device, dtype, **sizes):
    v, *others = inputs(device, dtype, **sizes)
    weighted, token = outputs(v, *others)
    return torch.zeros_like(v).index_add(0, token, weighted), others[2:]


refcheck.record(partial(index_add, B=B, T=T, D=D, M=M, E=E, k=k), DEVICE, dtype)

# %% [markdown]
# ## Added by index_put · 用 index_put 加回去
#
# The weighted outputs, of which only the shape was used, are gone.
#
# 只用了形状的那一份加权输出不见了。


# %%
def index_put(device, dtype, **sizes):
    v, *others = inputs(device, dtype, **sizes)
    weighted, token = outputs(v, *others)
    return torch.zeros_like(v).index_put((token,), weighted, accumulate=True), others[2:]


refcheck.record(partial(index_put, B=B, T=T, D=D, M=M, E=E, k=k), DEVICE, dtype)

# %% [markdown]
# ## Bytes against k and against E · 字节随 k、随 E 增长

# %% {"alt": "Bytes kept against the number of experts for each token: measured points on the claimed line"}
sweep("moe", "index-add", index_add, dtype, B=B, T=T, D=D, M=M, E=E, k=[1, 2, 4, 8])

# %% {"alt": "Bytes kept against the number of experts: the claimed line is all but level"}
sweep("moe", "index-add", index_add, dtype, B=B, T=T, D=D, M=M, E=[2, 4, 8, 16], k=k)

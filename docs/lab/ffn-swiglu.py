# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # FFN with SwiGLU · SwiGLU 前馈网络
#
# Four tensors as wide as the FFN, and the input once. Change the sizes and run it again.
#
# 四个与前馈网络同宽的张量，输入一份。改改尺寸，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, D, M = 2, 128, 512, 1792  # batch, sequence length, hidden size, width of the FFN
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Every storage that the graph of the outputs keeps, once: `case` returns the outputs, and the parameters to leave out.
#
# 输出的计算图所保留的每一块存储，各记一次。`case` 返回输出，以及不计入的参数。


# %%
def parameters(device, dtype, D, M):
    shapes = ((M, D), (M, D), (D, M))  # as nn.Linear has them: (out, in)
    return [torch.randn(*shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]


def case(device, dtype, B, T, D, M):
    v = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    gate, up, down = weights = parameters(device, dtype, D, M)
    return F.linear(F.silu(F.linear(v, gate)) * F.linear(v, up), down), weights


refcheck.record(partial(case, B=B, T=T, D=D, M=M), DEVICE, dtype)

# %% [markdown]
# ## Without SiLU(z1) and g · 不留 SiLU(z1) 和 g
#
# A checkpoint around the activation and the last matrix: v, z1 and z2 are left.
#
# 用 checkpoint 套住激活和最后一个矩阵，只剩 v、z1、z2。


# %%
def recomputing(device, dtype, B, T, D, M):
    v = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    gate, up, down = weights = parameters(device, dtype, D, M)

    def rest(z1, z2):
        return F.linear(F.silu(z1) * z2, down)

    z1, z2 = F.linear(v, gate), F.linear(v, up)
    return checkpoint(rest, z1, z2, use_reentrant=False, preserve_rng_state=False), weights


refcheck.record(partial(recomputing, B=B, T=T, D=D, M=M), DEVICE, dtype)

# %% [markdown]
# ## Bytes against width · 字节随宽度增长

# %% {"alt": "Bytes kept by the FFN with SwiGLU against its width M: measured points on the claimed curve"}
sweep("ffn-swiglu", "eager", case, dtype, B=B, T=T, D=D, M=[448, 896, 1792, 3584])

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # FFN with GELU · GELU 前馈网络
#
# Three tensors for one FFN, two of them of width M. Change the sizes and run it again.
#
# 一个 FFN 留三个张量，其中两个宽 M。改改尺寸，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, D, M = 2, 256, 512, 2048  # batch, sequence length, hidden size, FFN width
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Every storage that the graph of the outputs keeps, once: `case` returns the outputs, and the parameters to leave out.
#
# 输出的计算图所保留的每一块存储，各记一次。`case` 返回输出，以及不计入的参数。


# %%
def case(device, dtype, B, T, D, M, activation=F.gelu):
    v = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    W1 = torch.randn(M, D, device=device, dtype=dtype, requires_grad=True)
    b1 = torch.randn(M, device=device, dtype=dtype, requires_grad=True)
    W2 = torch.randn(D, M, device=device, dtype=dtype, requires_grad=True)
    b2 = torch.randn(D, device=device, dtype=dtype, requires_grad=True)
    y = F.linear(activation(F.linear(v, W1, b1)), W2, b2)
    return y, [W1, b1, W2, b2]


refcheck.record(partial(case, B=B, T=T, D=D, M=M), DEVICE, dtype)

# %% [markdown]
# ## ReLU instead: one tensor of width M less · 换成 ReLU，少一个 M 宽的张量

# %%
refcheck.record(partial(case, B=B, T=T, D=D, M=M, activation=F.relu), DEVICE, dtype)

# %% [markdown]
# ## A wider FFN · FFN 加宽

# %% {"alt": "Bytes kept by the GELU FFN against its width: measured points on the claimed curve"}
sweep("ffn-gelu", "eager", case, dtype, B=B, T=T, D=D, M=[512, 1024, 2048, 4096])

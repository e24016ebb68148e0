# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # FFN dropout
#
# The end of an FFN: linear, dropout, residual addition. What is kept besides the mask? Change the sizes and run it again.
#
# FFN 的末尾：线性层、dropout、残差相加。除了掩码还留下什么？改改尺寸，再跑一遍。

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
def case(device, dtype, B, T, D):
    y = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    return F.dropout(y, 0.1), []


refcheck.record(partial(case, B=B, T=T, D=D), DEVICE, dtype)

# %% [markdown]
# ## With its neighbours · 连同左邻右舍
#
# g for the linear layer, and the mask. Neither y nor the output of dropout is listed.
#
# g 归线性层，另有掩码。y 和 dropout 的输出都不在其中。


# %%
def tail(device, dtype, B, T, D, M, p=0.1):
    x = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    g = torch.randn(B, T, M, device=device, dtype=dtype, requires_grad=True)
    W2 = torch.randn(D, M, device=device, dtype=dtype, requires_grad=True)
    b2 = torch.randn(D, device=device, dtype=dtype, requires_grad=True)
    return x + F.dropout(F.linear(g, W2, b2), p), [W2, b2]


refcheck.record(partial(tail, B=B, T=T, D=D, M=M), DEVICE, dtype)

# %% [markdown]
# ## Without dropout · 关掉 dropout

# %%
refcheck.record(partial(tail, B=B, T=T, D=D, M=M, p=0.0), DEVICE, dtype)

# %% [markdown]
# ## Twice the length, twice the bytes · 长度翻倍，字节翻倍

# %% {"alt": "Bytes kept by dropout against sequence length: measured points on the claimed line"}
sweep("ffn-dropout", "eager", case, dtype, B=B, T=[64, 128, 256, 512], D=D)

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention dropout · 注意力 dropout
#
# What dropout on the attention probabilities keeps, and what the graph around it keeps. A GPU and a CPU differ here.
#
# 注意力概率上的 dropout 留下什么，它前后的计算图又留下什么。GPU 和 CPU 在这里不一样。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, h, T, d = 2, 8, 256, 64  # batch, heads, sequence length, head size
dtype = "bfloat16"


# %% [markdown]
# ## The ledger of one dropout · 这一步的账目


# %%
def case(device, dtype, B, h, T):
    P = torch.rand(B, h, T, T, device=device, dtype=dtype, requires_grad=True)
    return F.dropout(P, 0.1), []


refcheck.record(partial(case, B=B, h=h, T=T), DEVICE, dtype)

# %% [markdown]
# ## Softmax, dropout and the sum, together · 连同前后两步
#
# With dropout three tensors in the shape of P are kept; with p = 0 there is one, held twice.
#
# 有 dropout，留下三块与 P 同形的张量；p = 0 时只有一块，由两处一起留着。


# %%
def attention(device, dtype, p):
    S = torch.randn(B, h, T, T, device=device, dtype=dtype, requires_grad=True)
    V = torch.randn(B, h, T, d, device=device, dtype=dtype, requires_grad=True)
    return F.dropout(S.softmax(-1), p) @ V, []


for p in (0.1, 0.0):
    print(f"p = {p}", refcheck.record(partial(attention, p=p), DEVICE, dtype), sep="\n", end="\n\n")

# %% [markdown]
# ## Twice the length, four times the bytes · 长度翻倍，字节变四倍

# %% {"alt": "Bytes kept by attention dropout against sequence length: measured points on the claimed curve"}
sweep("attention-dropout", "eager", case, dtype, B=B, h=h, T=[64, 128, 256, 512])

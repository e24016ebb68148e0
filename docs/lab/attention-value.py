# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Weighted sum of values · 对 V 加权求和
#
# What `P_dropped @ V` keeps, and what becomes of its output. Change the sizes and run it again.
#
# `P_dropped @ V` 留下什么，它的输出后来怎样了。改改尺寸，再跑一遍。

# %%
from functools import partial

import torch

import refcheck
from refcheck.lab import DEVICE, sweep

B, h, T, d = 2, 8, 256, 64  # batch, heads, sequence length, head size
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目


# %%
def case(device, dtype, B, h, T, d):
    P_dropped = torch.rand(B, h, T, T, device=device, dtype=dtype, requires_grad=True)
    V = torch.randn(B, h, T, d, device=device, dtype=dtype, requires_grad=True)
    return P_dropped @ V, []


refcheck.record(partial(case, B=B, h=h, T=T, d=d), DEVICE, dtype)

# %% [markdown]
# ## With the output projection · 连同输出投影
#
# O is gone; c, its copy with the heads side by side, is kept by the projection.
#
# O 不在了；c 是它按头并排的副本，由输出投影留着。


# %%
def projected(device, dtype):
    O, _ = case(device, dtype, B, h, T, d)
    D = h * d
    W_O = torch.randn(D, D, device=device, dtype=dtype, requires_grad=True)
    c = O.transpose(1, 2).reshape(B, T, D)
    return torch.nn.functional.linear(c, W_O), [W_O]


refcheck.record(projected, DEVICE, dtype)

# %% [markdown]
# ## P overtakes V · P 超过 V
#
# V grows with T, P with T²: they are equal in size at T = d.
#
# V 随 T 增长，P 随 T² 增长：T = d 时一样大。

# %% {"alt": "Bytes kept by the weighted sum against sequence length: measured points on the claimed curve"}
sweep("attention-value", "eager", case, dtype, B=B, h=h, d=d, T=[64, 128, 256, 512])

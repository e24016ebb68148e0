# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Autocast
#
# Parameters in fp32, products in bf16: which copies stay until the backward? Change the sizes and run it again.
#
# 参数是 fp32，矩阵乘用 bf16：哪些副本会留到反向？改改尺寸，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, h, d = 2, 512, 8, 64  # D = h·d
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Three projections of one u: as many copies of u as of weights.
#
# 同一个 u 做三次投影：u 有三份副本，权重也有三份。


# %%
def case(device, dtype, B, T, h, d):
    D = h * d
    u = torch.randn(B, T, D, device=device, requires_grad=True) * 1  # no leaf: autocast would remember its copy
    weights = [torch.randn(D, D, device=device, requires_grad=True) for _ in range(3)]
    with torch.autocast(str(device), dtype=dtype):
        return [F.linear(u, W) for W in weights], weights


refcheck.record(partial(case, B=B, T=T, h=h, d=d), DEVICE, dtype)

# %% [markdown]
# ## Few tokens, wide layers · 词元少，层又宽
#
# At the left the copies of the weights are all there is.
#
# 曲线左端几乎全是权重副本。

# %% {"alt": "Bytes kept by three projections under autocast against sequence length: a line that doesn't start at zero"}
sweep("autocast", "qkv", case, dtype, B=B, T=[32, 128, 512, 1024], h=h, d=d)

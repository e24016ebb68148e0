# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention scores · 注意力打分
#
# What does autograd keep for Q Kᵀ / √d? Change the sizes and run it again.
#
# 算一次 Q Kᵀ / √d，autograd 留下了什么？改改尺寸，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, h, T, d = 2, 8, 256, 64  # batch, heads, sequence length, head size
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Q and K, and not S. `case` returns the outputs, and the parameters to leave out.
#
# 有 Q 和 K，没有 S。`case` 返回输出，以及不计入的参数。


# %%
def case(device, dtype, B, h, T, d):
    Q, K = (torch.randn(B, h, T, d, device=device, dtype=dtype, requires_grad=True) for _ in "QK")
    return Q @ K.mT * d**-0.5, []


refcheck.record(partial(case, B=B, h=h, T=T, d=d), DEVICE, dtype)

# %% [markdown]
# ## In a model: copies of Q and K · 在模型里：Q 和 K 的副本
#
# Q and K come from linear layers here. Set B = 1 and the copies become views of the linear layers' outputs.
#
# 这里的 Q 和 K 来自线性层。令 B = 1，副本就变成线性层输出的视图。


# %%
def projected(device, dtype, B, h, T, d):
    u = torch.randn(B, T, h * d, device=device, dtype=dtype, requires_grad=True)
    W = [torch.randn(h * d, h * d, device=device, dtype=dtype, requires_grad=True) for _ in "QK"]
    Q, K = (F.linear(u, w).unflatten(-1, (h, d)).transpose(1, 2) for w in W)
    return Q @ K.mT * d**-0.5, W


refcheck.record(partial(projected, B=B, h=h, T=T, d=d), DEVICE, dtype)

# %% [markdown]
# ## S grows with T², what is kept with T · S 随 T² 增长，留下的随 T 增长

# %% {"alt": "Bytes kept by attention scores against sequence length: measured points on the claimed straight line"}
sweep("scores", "eager", case, dtype, B=B, h=h, T=[64, 128, 256, 512], d=d)

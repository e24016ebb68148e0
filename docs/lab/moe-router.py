# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # MoE router · MoE 路由
#
# What does autograd keep of the choice of k experts among E? Change the sizes and run it again.
#
# 从 E 个专家里选 k 个，autograd 留下了什么？改改尺寸，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, E, k = 2, 1024, 64, 4  # batch, sequence length, experts, experts for each token
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Every storage that the graph of the outputs keeps, once: `case` returns the outputs, and the parameters to leave out.
#
# 输出的计算图所保留的每一块存储，各记一次。`case` 返回输出，以及不计入的参数。


# %%
def softmax_first(device, dtype, B, T, E, k):
    r = torch.randn(B, T, E, device=device, dtype=dtype, requires_grad=True)
    top, _ = F.softmax(r, dim=-1, dtype=torch.float32).topk(k)
    return top / top.sum(dim=-1, keepdim=True), []


refcheck.record(partial(softmax_first, B=B, T=T, E=E, k=k), DEVICE, dtype)

# %% [markdown]
# ## The same function, topk first · 同一个函数，先选再做 softmax
#
# Nothing is left that grows with E.
#
# 没有一样东西再随 E 增长。


# %%
def topk_first(device, dtype, B, T, E, k):
    r = torch.randn(B, T, E, device=device, dtype=dtype, requires_grad=True)
    return F.softmax(r.topk(k).values, dim=-1, dtype=torch.float32), []


refcheck.record(partial(topk_first, B=B, T=T, E=E, k=k), DEVICE, dtype)

# %% [markdown]
# ## Bytes against the number of experts · 字节随专家数增长

# %% {"alt": "Bytes kept by softmax before topk against the number of experts: measured points on the claimed line"}
sweep("moe-router", "softmax-first", softmax_first, dtype, B=B, T=T, E=[8, 16, 64, 256], k=k)

# %% {"alt": "Bytes kept by topk before softmax against the number of experts: a level line"}
sweep("moe-router", "topk-first", topk_first, dtype, B=B, T=T, E=[8, 16, 64, 256], k=k)

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # ReLU, sigmoid, tanh
#
# ReLU, sigmoid and tanh keep their output. A linear layer after them needs that same storage, so the total stays.
#
# ReLU、sigmoid、tanh 留下的是输出。接一个线性层，它要的也是同一块存储，总数不变。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, M = 2, 256, 2048
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目


# %%
def case(device, dtype, B, T, M, activation=F.relu):
    z = torch.randn(B, T, M, device=device, dtype=dtype, requires_grad=True)
    return activation(z), []


refcheck.record(partial(case, B=B, T=T, M=M), DEVICE, dtype)

# %% [markdown]
# ## ReLU

# %% {"alt": "Bytes kept by ReLU against the width M"}
sweep("relu", "eager", case, dtype, B=B, T=T, M=[512, 1024, 2048, 4096])

# %% [markdown]
# ## The next linear layer adds nothing · 后面的线性层不再多存


# %%
def with_linear(device, dtype, B, T, M):
    W = torch.randn(512, M, device=device, dtype=dtype, requires_grad=True)
    g, _ = case(device, dtype, B, T, M)
    return F.linear(g, W), [W]


refcheck.record(partial(with_linear, B=B, T=T, M=M), DEVICE, dtype)

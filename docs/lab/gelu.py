# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # GELU
#
# GELU keeps its input z, and so does its tanh approximation.
#
# GELU 留下的是输入 z，精确式和 tanh 近似都一样。

# %%
import math
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
def case(device, dtype, B, T, M, approximate="none"):
    z = torch.randn(B, T, M, device=device, dtype=dtype, requires_grad=True)
    return F.gelu(z, approximate=approximate), []


refcheck.record(partial(case, B=B, T=T, M=M), DEVICE, dtype)

# %% [markdown]
# ## Exact · 精确式

# %% {"alt": "Bytes kept by GELU against the width M"}
sweep("gelu", "eager", case, dtype, B=B, T=T, M=[512, 1024, 2048, 4096])

# %% [markdown]
# ## With tanh · tanh 近似

# %% {"alt": "Bytes kept by GELU with tanh against the width M"}
sweep("gelu", "tanh", partial(case, approximate="tanh"), dtype, B=B, T=T, M=[512, 1024, 2048, 4096])

# %% [markdown]
# ## By hand · 手写
#
# The same function, put together from tensor operations as `gelu_new` is: each node keeps its own.
#
# 同一个函数，像 `gelu_new` 那样用张量运算拼出来：每个节点各存各的。


# %%
def by_hand(device, dtype, B, T, M):
    z = torch.randn(B, T, M, device=device, dtype=dtype, requires_grad=True)
    return 0.5 * z * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * torch.pow(z, 3.0)))), []


refcheck.record(partial(by_hand, B=B, T=T, M=M), DEVICE, dtype)

# %% {"alt": "Bytes kept by GELU written by hand against the width M: a line four times as steep"}
sweep("gelu", "by-hand", by_hand, dtype, B=B, T=T, M=[512, 1024, 2048, 4096])

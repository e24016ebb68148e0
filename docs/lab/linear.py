# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Linear
#
# A linear layer keeps its input x. The weight is a parameter and not counted; transposed, it is still the same storage.
#
# 线性层留下的是输入 x。权重是参数，不另计；它转置了也还是那一块存储。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, D, M = 2, 256, 512, 2048
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目


# %%
def case(device, dtype, B, T, D, M):
    x = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    W = torch.randn(M, D, device=device, dtype=dtype, requires_grad=True)
    b = torch.randn(M, device=device, dtype=dtype, requires_grad=True)
    return F.linear(x, W, b), [W, b]


refcheck.record(partial(case, B=B, T=T, D=D, M=M), DEVICE, dtype)

# %% [markdown]
# ## The output width doesn't matter · 与输出宽度无关

# %% {"alt": "Bytes kept by a linear layer against its output width M: a flat line"}
sweep("linear", "eager", case, dtype, B=B, T=T, D=D, M=[512, 1024, 2048, 4096])

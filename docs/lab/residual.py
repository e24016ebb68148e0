# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Residual connection · 残差连接
#
# An addition keeps nothing: the ledger is empty, and stays at zero at every size.
#
# 加法什么也不留：账目是空的，尺寸再大也是零。

# %%
from functools import partial

import torch

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, D = 2, 256, 512
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目


# %%
def case(device, dtype, B, T, D):
    x, a = (torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
    return x + a, []


refcheck.record(partial(case, B=B, T=T, D=D), DEVICE, dtype)

# %% [markdown]
# ## Zero at every length · 多长都是零

# %% {"alt": "Bytes kept by an addition against sequence length: zero"}
sweep("residual", "eager", case, dtype, B=B, T=[64, 256, 1024, 4096], D=D)

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Dropout
#
# Dropout keeps its mask: in the activation's dtype on the CPU, one byte per element on a GPU.
#
# Dropout 留下的是掩码：CPU 上和激活同类型，GPU 上每个元素一个字节。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, D = 2, 256, 512
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目


# %%
def case(device, dtype, B, T, D):
    x = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    return F.dropout(x, 0.1, training=True), []


refcheck.record(partial(case, B=B, T=T, D=D), DEVICE, dtype)

# %% [markdown]
# ## One mask entry per element · 每个元素一个掩码

# %% {"alt": "Bytes kept by dropout against sequence length"}
sweep("dropout", "eager", case, dtype, B=B, T=[64, 256, 1024, 4096], D=D)

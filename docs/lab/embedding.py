# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Embedding
#
# What does autograd keep for one table look-up? Change the sizes and run it again.
#
# 查一次表，autograd 留下了什么？改改尺寸，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, D, V = 2, 1024, 256, 5000  # batch, sequence length, hidden size, vocabulary
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# One entry, the ids. Neither x nor W is in it: `case` returns the output, and W as a parameter to leave out.
#
# 只有编号一项，没有 x，也没有 W。`case` 返回输出，以及不计入的参数 W。


# %%
def case(device, dtype, B, T, D, V):
    tokens = torch.randint(V, (B, T), device=device)
    W = torch.randn(V, D, device=device, dtype=dtype, requires_grad=True)
    return F.embedding(tokens, W), [W]


refcheck.record(partial(case, B=B, T=T, D=D, V=V), DEVICE, dtype)

# %% [markdown]
# ## However wide x is, the same bytes · 不论 x 多宽，字节都一样

# %% {"alt": "Bytes kept by the embedding against hidden size: measured points on a level line"}
sweep("embedding", "eager", case, dtype, B=B, T=T, D=[64, 128, 256, 512], V=V)

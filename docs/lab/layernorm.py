# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # LayerNorm
#
# What does autograd keep for one LayerNorm? On the CPU the statistics have the activation's dtype, on a GPU they are always fp32, so the bytes differ.
#
# 一次 LayerNorm 之后，autograd 留下了什么？CPU 上统计量的类型跟着激活走，GPU 上总是 fp32，字节数因此不同。

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
    w, b = (torch.randn(D, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
    return F.layer_norm(x, (D,), w, b), [w, b]


refcheck.record(partial(case, B=B, T=T, D=D), DEVICE, dtype)

# %% [markdown]
# ## The statistics are one number per token · 统计量每个 token 只有一个

# %% {"alt": "Bytes kept by LayerNorm against the width D"}
sweep("layernorm", "eager", case, dtype, B=B, T=T, D=[64, 256, 1024, 4096])

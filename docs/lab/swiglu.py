# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # SwiGLU
#
# The gradient needs z1 and z2. How many tensors of that size does each way of writing it keep?
#
# 梯度只要 z1 和 z2。每种写法各留几份这么大的张量？

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.function import as_function
from refcheck.lab import DEVICE, sweep
from refcheck.layers import swiglu

B, T, M = 2, 256, 1792  # batch, sequence length, width of the FFN
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Every storage that the graph of the outputs keeps, once: z1, SiLU(z1) and z2.
#
# 输出的计算图所保留的每一块存储，各记一次：z1、SiLU(z1)、z2。


# %%
def case(device, dtype, B, T, M):
    z1, z2 = (torch.randn(B, T, M, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
    return F.silu(z1) * z2, []


refcheck.record(partial(case, B=B, T=T, M=M), DEVICE, dtype)

# %% [markdown]
# ## One node for both steps · 两步合成一个节点
#
# The pair `recomputing` as an autograd function: SiLU(z1) is computed again in the backward.
#
# 把公式对 `recomputing` 装成一个自动求导函数：反向时重算 SiLU(z1)。


# %%
def recomputing(device, dtype, B, T, M):
    z1, z2 = (torch.randn(B, T, M, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
    return as_function(swiglu.TWO, "SwiGLURecomputing")(z1=z1, z2=z2), []


refcheck.record(partial(recomputing, B=B, T=T, M=M), DEVICE, dtype)

# %% [markdown]
# ## Bytes against width · 字节随宽度增长

# %% {"alt": "Bytes kept by SwiGLU against the width M: measured points on the claimed curve"}
sweep("swiglu", "eager", case, dtype, B=B, T=T, M=[448, 896, 1792, 3584])

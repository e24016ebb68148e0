# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Frozen weights and LoRA
#
# A frozen linear layer keeps no input. LoRA brings the input back, for its first matrix.
#
# 冻结的线性层不留输入；LoRA 为了它的第一个矩阵，又把输入留了回来。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, D, M, R = 2, 256, 512, 2048, 16
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目


# %%
def case(device, dtype, B, T, D, M, R, frozen=False):
    x = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    W = torch.randn(M, D, device=device, dtype=dtype)
    W_A = torch.randn(R, D, device=device, dtype=dtype, requires_grad=True)
    W_B = torch.randn(M, R, device=device, dtype=dtype, requires_grad=True)
    y = F.linear(x, W)
    return (y if frozen else y + F.linear(F.linear(x, W_A), W_B) * 2.0), [W, W_A, W_B]


refcheck.record(partial(case, B=B, T=T, D=D, M=M, R=R, frozen=True), DEVICE, dtype)

# %%
refcheck.record(partial(case, B=B, T=T, D=D, M=M, R=R), DEVICE, dtype)

# %% [markdown]
# ## The rank hardly matters · 秩大秩小，几乎一样

# %% {"alt": "Bytes kept by LoRA against its rank R: a line that hardly rises from the bytes of x"}
sweep("lora", "lora", case, dtype, B=B, T=T, D=D, M=M, R=[1, 4, 16, 64])

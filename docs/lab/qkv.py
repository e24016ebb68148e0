# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # QKV projections · QKV 投影
#
# Three linear layers read one input u. Does autograd keep it once or three times?
#
# 三个线性层读同一个输入 u。autograd 留下一份，还是三份？

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, h, d = 2, 256, 8, 64  # batch, sequence length, heads, head size
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# One storage, which three nodes share. `case` returns the outputs, and the parameters to leave out.
#
# 一块存储，三个节点共用。`case` 返回输出，以及不计入的参数。


# %%
def case(device, dtype, B, T, h, d):
    u = torch.randn(B, T, h * d, device=device, dtype=dtype, requires_grad=True)
    W = [torch.randn(h * d, h * d, device=device, dtype=dtype, requires_grad=True) for _ in "QKV"]
    return [F.linear(u, w).unflatten(-1, (h, d)).transpose(1, 2) for w in W], W


refcheck.record(partial(case, B=B, T=T, h=h, d=d), DEVICE, dtype)

# %% [markdown]
# ## Fused: the same bytes here, but one storage for Q, K and V · 合并：这里字节相同，但 Q、K、V 是一块存储
#
# SDPA keeps the three views. The rotated Q and K are new, and V alone still holds the whole of the fused storage.
#
# SDPA 留下三个视图。先旋转 Q 和 K，它们就是新张量，而 V 一个仍旧留住合并的整块存储。


# %%
def fused(device, dtype, B, T, h, d, rotate):
    u = torch.randn(B, T, h * d, device=device, dtype=dtype, requires_grad=True)
    W = torch.randn(3 * h * d, h * d, device=device, dtype=dtype, requires_grad=True)
    Q, K, V = F.linear(u, W).unflatten(-1, (3, h, d)).permute(2, 0, 3, 1, 4)
    if rotate:  # a stand-in for RoPE
        Q, K = (torch.cat((0.8 * a - 0.6 * b, 0.6 * a + 0.8 * b), -1) for a, b in (t.chunk(2, -1) for t in (Q, K)))
    return F.scaled_dot_product_attention(Q, K, V), [W]


refcheck.record(partial(fused, B=B, T=T, h=h, d=d, rotate=False), DEVICE, dtype)

# %%
refcheck.record(partial(fused, B=B, T=T, h=h, d=d, rotate=True), DEVICE, dtype)

# %% [markdown]
# ## One u, whatever the number of projections · 不论几个投影，只有一个 u

# %% {"alt": "Bytes kept by three projections against sequence length: measured points on the claimed line"}
sweep("qkv", "eager", case, dtype, B=B, T=[128, 256, 512, 1024], h=h, d=d)

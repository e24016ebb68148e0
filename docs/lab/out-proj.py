# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention output projection · 注意力输出投影
#
# Which of O, c and a does autograd keep? Change the sizes and run it again.
#
# O、c、a 之中，autograd 留下哪个？改改尺寸，再跑一遍。

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
# Every storage that the graph of the outputs keeps, once: `case` returns the outputs, and the parameters to leave out.
#
# 输出的计算图所保留的每一块存储，各记一次。`case` 返回输出，以及不计入的参数。


# %%
def case(device, dtype, B, T, h, d):
    c = torch.randn(B, T, h * d, device=device, dtype=dtype, requires_grad=True)
    W_O = torch.randn(h * d, h * d, device=device, dtype=dtype, requires_grad=True)
    return F.linear(c, W_O), [W_O]


refcheck.record(partial(case, B=B, T=T, h=h, d=d), DEVICE, dtype)

# %% [markdown]
# ## With eager attention before it · 前面接上逐算子的注意力
#
# P and V are kept by their product, c by the projection. O is freed, and a is kept by nobody.
#
# P、V 由两者的乘积留着，c 由投影留着。O 已释放，a 没有人留。


# %%
def eager(device, dtype, B, T, h, d):
    P = torch.rand(B, h, T, T, device=device, dtype=dtype, requires_grad=True)
    V = torch.randn(B, h, T, d, device=device, dtype=dtype, requires_grad=True)
    W_O = torch.randn(h * d, h * d, device=device, dtype=dtype, requires_grad=True)
    c = (P @ V).transpose(1, 2).reshape(B, T, h * d)
    return F.linear(c, W_O), [W_O]


refcheck.record(partial(eager, B=B, T=T, h=h, d=d), DEVICE, dtype)

# %% [markdown]
# ## With fused attention · 换成融合的注意力
#
# O and c are one storage here, with two nodes that hold it.
#
# 这里 O 和 c 是一块存储，由两个节点持有。


# %%
def fused(device, dtype, B, T, h, d):
    shape = (B, T, h, d)
    Q, K, V = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True).transpose(1, 2) for _ in range(3))
    W_O = torch.randn(h * d, h * d, device=device, dtype=dtype, requires_grad=True)
    c = F.scaled_dot_product_attention(Q, K, V).transpose(1, 2).reshape(B, T, h * d)
    return F.linear(c, W_O), [W_O]


refcheck.record(partial(fused, B=B, T=T, h=h, d=d), DEVICE, dtype)

# %% [markdown]
# ## Twice the length, twice the bytes · 长度翻倍，字节翻倍

# %% {"alt": "Bytes kept by the output projection against sequence length: measured points on the claimed line"}
sweep("out-proj", "no-bias", case, dtype, B=B, T=[64, 128, 256, 512], h=h, d=d)

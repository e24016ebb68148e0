# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Fused attention · 融合注意力
#
# What does autograd keep for attention in one op, and what for the same in three? Change the sizes and run it again.
#
# 注意力合成一个算子，autograd 留下了什么？拆成三步又留下什么？改改尺寸，再跑一遍。

# %%
from functools import partial

import torch

import refcheck
from refcheck.lab import DEVICE, sweep
from refcheck.layers import sdpa

B, h, T, d = 2, 8, 256, 64  # batch, heads, sequence length, head size
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Q, K, V, O and one number per row; no T². `flash` allows this one backend only, so it can't fall back unnoticed.
#
# Q、K、V、O，加上每行一个数，没有 T²。`flash` 只许这一个后端，不会悄悄换成别的。


# %%
def inputs(device, dtype, B, h, T, d):
    return [torch.randn(B, h, T, d, device=device, dtype=dtype, requires_grad=True) for _ in "QKV"]


def case(device, dtype, B, h, T, d):
    return sdpa.flash(*inputs(device, dtype, B, h, T, d)), []


refcheck.record(partial(case, B=B, h=h, T=T, d=d), DEVICE, dtype)

# %% [markdown]
# ## The same in three ops · 拆成三步
#
# P is kept, and O isn't.
#
# P 留下了，O 没有留。


# %%
def eager(device, dtype):
    Q, K, V = inputs(device, dtype, B, h, T, d)
    P = (Q @ K.mT * d**-0.5).softmax(-1)
    return P @ V, []


refcheck.record(eager, DEVICE, dtype)

# %% [markdown]
# ## The math path · math 路径
#
# One op in the code, several in the graph: P is back, and everything is fp32.
#
# 代码里是一个算子，图里是好几个：P 又留下来了，而且全是 fp32。


# %%
def math(device, dtype, B, h, T, d):
    return sdpa.math(*inputs(device, dtype, B, h, T, d)), []


refcheck.record(partial(math, B=B, h=h, T=T, d=d), DEVICE, dtype)

# %% [markdown]
# ## A straight line in T, and a parabola · 一条直线，一条抛物线

# %% {"alt": "Bytes kept by fused attention against sequence length: measured points on the claimed straight line"}
sweep("sdpa", "flash", case, dtype, B=B, h=h, d=d, T=[64, 128, 256, 512])

# %% {"alt": "Bytes kept by the math path against sequence length: measured points on the claimed parabola"}
sweep("sdpa", "math", math, dtype, B=B, h=h, d=d, T=[64, 128, 256, 512])

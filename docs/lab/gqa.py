# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Grouped-query attention · 分组查询注意力
#
# Fewer heads of K and V: does autograd keep less? Change the sizes, or the number of groups, and run it again.
#
# K、V 的头少了，autograd 留下的就少了吗？改改尺寸或组数，再跑一遍。

# %%
from functools import partial

import torch

import refcheck
from refcheck.lab import DEVICE, sweep
from refcheck.layers import gqa

B, h, g, T, d = 2, 8, 2, 256, 64  # batch, query heads, KV heads, sequence length, head size
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Flash with `enable_gqa=True` keeps K and V as they are given, with g heads.
#
# 带 `enable_gqa=True` 的 flash 照原样留下 K 和 V，都是 g 个头。


# %%
def inputs(device, dtype, B, h, g, T, d):
    def make(*heads):
        return torch.randn(B, *heads, T, d, device=device, dtype=dtype, requires_grad=True)

    return make(g, h // g), make(g), make(g)  # Q, K_g, V_g


def case(device, dtype, B, h, g, T, d):
    return gqa.native(*inputs(device, dtype, B, h, g, T, d)), []


refcheck.record(partial(case, B=B, h=h, g=g, T=T, d=d), DEVICE, dtype)

# %% [markdown]
# ## Repeated first · 先展开
#
# Now copies of h heads are kept, and the originals are not.
#
# 这回留下的是 h 个头的副本，原来的没有留。


# %%
def repeated(device, dtype):
    return gqa.flash(*inputs(device, dtype, B, h, g, T, d)), []


refcheck.record(repeated, DEVICE, dtype)

# %% [markdown]
# ## Bytes against the number of KV heads · 字节随 KV 头数增长

# %% {"alt": "Bytes kept by flash with grouped heads against the number of KV heads: measured points on the claimed line"}
sweep("gqa", "native", case, dtype, B=B, h=h, d=d, T=T, g=[1, 2, 4, 8])

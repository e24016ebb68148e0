# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # QK-Norm
#
# A norm on each head of Q and K: what does it keep, and what does attention keep of it? Change the sizes and run it
# again.
#
# 给每个头的 Q 和 K 各做一次归一化：它自己留了什么，注意力又留了什么？改改尺寸，再跑一遍。

# %%
from functools import partial

import torch

import refcheck
from refcheck.lab import DEVICE, sweep
from refcheck.layers import qk_norm, sdpa

B, h, g, T, d = 2, 8, 2, 256, 64  # batch, query heads, KV heads, sequence length, head size
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Every storage that the graph of the outputs keeps, once: `case` returns the outputs, and the parameters to leave out.
#
# 输出的计算图所保留的每一块存储，各记一次。`case` 返回输出，以及不计入的参数。


# %%
def inputs(device, dtype, B, h, g, T, d):
    def make(*shape):
        return torch.randn(shape, device=device, dtype=dtype, requires_grad=True)

    return make(B, h, T, d), make(B, g, T, d), make(d), make(d)  # Q, K_g, w_Q, w_K


def case(device, dtype, B, h, g, T, d, norm=qk_norm.eager):
    Q, K_g, w_Q, w_K = inputs(device, dtype, B, h, g, T, d)
    return norm(Q, K_g, w_Q, w_K, 1e-6), [w_Q, w_K]


refcheck.record(partial(case, B=B, h=h, g=g, T=T, d=d), DEVICE, dtype)

# %% [markdown]
# ## Written by hand · 手写的版本

# %%
refcheck.record(partial(case, B=B, h=h, g=g, T=T, d=d, norm=qk_norm.by_hand), DEVICE, dtype)

# %% [markdown]
# ## With attention behind it · 接上注意力
#
# Q and K are there twice: before the norm, and behind it, where attention keeps them.
#
# Q 和 K 各有两份：归一化之前的，和归一化之后、由注意力留着的。


# %%
def with_attention(device, dtype):
    normed, weights = case(device, dtype, B, h, g, T, d)
    V_g = torch.randn(B, g, T, d, device=device, dtype=dtype, requires_grad=True)
    return sdpa.flash(normed["Q_norm"], normed["K_norm"], V_g, enable_gqa=True), weights


refcheck.record(with_attention, DEVICE, dtype)

# %% [markdown]
# ## Bytes against the head size · 字节随 d 增长

# %% {"alt": "Bytes kept by QK-Norm against head size: measured points on the claimed line"}
sweep("qk-norm", "eager", case, dtype, B=B, h=h, g=g, T=T, d=[16, 32, 64, 128])

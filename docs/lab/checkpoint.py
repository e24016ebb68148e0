# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Activation checkpointing
#
# The same FFN as it is and under a checkpoint: what is left for the backward? Change the width and run it again.
#
# 同一个 FFN，照常运行和套上 checkpoint，各留下什么？改改宽度，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, D, M = 2, 256, 256, 1024
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# `preserve_rng_state=True` adds the state of the random generators, on the host if the rest is on a GPU.
#
# `preserve_rng_state=True` 还会留下随机数状态；其余在 GPU 上时，它也在主机内存里。


# %%
def inputs(device, dtype, B, T, D, M):
    v = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    return v, [torch.randn(n, device=device, dtype=dtype, requires_grad=True) for n in ((M, D), (M,), (D, M), (D,))]


def ffn(v, W1, b1, W2, b2):
    return F.linear(F.gelu(F.linear(v, W1, b1)), W2, b2)


def as_it_is(device, dtype, **sizes):
    v, weights = inputs(device, dtype, **sizes)
    return ffn(v, *weights), weights


def case(device, dtype, **sizes):
    v, weights = inputs(device, dtype, **sizes)
    return checkpoint(ffn, v, *weights, use_reentrant=False, preserve_rng_state=False), weights


refcheck.record(partial(as_it_is, B=B, T=T, D=D, M=M), DEVICE, dtype)

# %%
refcheck.record(partial(case, B=B, T=T, D=D, M=M), DEVICE, dtype)

# %% [markdown]
# ## However wide the inside · 里面多宽都一样

# %% {"alt": "Bytes kept by a checkpointed FFN against its inner width M: a flat line"}
sweep("checkpoint", "without-rng", case, dtype, B=B, T=T, D=D, M=[512, 1024, 2048, 4096])

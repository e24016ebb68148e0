# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention mask · 注意力掩码
#
# Three ways to hide a score, three accounts. Change the sizes and run it again.
#
# 遮住一个打分有三种写法，三本账。改改尺寸，再跑一遍。

# %%
from functools import partial

import torch

import refcheck
from refcheck.lab import DEVICE, sweep

B, h, T = 2, 8, 256  # batch, heads, sequence length
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Adding keeps nothing; choosing keeps the boolean mask, T × T, whatever B and h are.
#
# 加，什么也不留；选，留下一张 T × T 的布尔掩码，与 B、h 无关。


# %%
def causal(device, T):
    return torch.ones(T, T, dtype=torch.bool, device=device).tril()


def scores(device, dtype, B, h, T):
    return torch.randn(B, h, T, T, device=device, dtype=dtype, requires_grad=True)


def added(device, dtype, B, h, T):
    A = torch.zeros(T, T, device=device, dtype=dtype).masked_fill(~causal(device, T), -10000.0)
    return scores(device, dtype, B, h, T) + A, []


def where(device, dtype, B, h, T):
    return torch.where(causal(device, T), scores(device, dtype, B, h, T), -10000.0), []


for case in (added, where):
    print(case.__name__, refcheck.record(partial(case, B=B, h=h, T=T), DEVICE, dtype), sep="\n", end="\n\n")

# %% [markdown]
# ## One mask, or one for each layer · 一张，还是每层一张
#
# `shared` hands the same mask to four layers; `negated` writes `~keep` in each of them; `combined` also takes the padding
# into account in each, which brings the batch in as a factor.
#
# `shared` 把同一张掩码交给四层；`negated` 在每一层里写 `~keep`；`combined` 在每一层里还把填充求与进去，于是要再乘上批大小。


# %%
def shared(device, dtype, B, h, T):
    keep, S = causal(device, T), scores(device, dtype, B, h, T)
    return [torch.where(keep, S, -10000.0) for _ in range(4)], []


def negated(device, dtype, B, h, T):
    keep, S = causal(device, T), scores(device, dtype, B, h, T)
    return [S.masked_fill(~keep, -10000.0) for _ in range(4)], []


def combined(device, dtype, B, h, T):
    keep, S = causal(device, T), scores(device, dtype, B, h, T)
    real = torch.ones(B, 1, 1, T, dtype=torch.bool, device=device)
    return [torch.where(keep & real, S, -10000.0) for _ in range(4)], []


for case in (shared, negated, combined):
    print(case.__name__, refcheck.record(partial(case, B=B, h=h, T=T), DEVICE, dtype), sep="\n", end="\n\n")

# %% [markdown]
# ## Twice the length, four times the bytes · 长度翻倍，字节变四倍

# %% {"alt": "Bytes kept by torch.where against sequence length: measured points on the claimed curve"}
sweep("mask", "where", where, dtype, B=B, h=h, T=[64, 128, 256, 512])

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Position embeddings · 位置嵌入
#
# A look-up keeps the numbers of the positions, a slice keeps nothing. Change the sizes and run it again.
#
# 查表留下位置编号，切片什么也不留。改改尺寸，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, D, longest = 4, 1024, 256, 4096  # batch, sequence length, hidden size, rows of the table
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Three ways to add the same rows. `case` returns the output, and W_pos as a parameter to leave out. The positions are
# called an input here, since they are made outside of any module.
#
# 同样的几行，三种加法。`case` 返回输出，以及不计入的参数 W_pos。编号在这里算输入，因为它不是在哪个模块里造的。


# %%
def given(device, dtype, B, T, D):
    e = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    W_pos = torch.randn(longest, D, device=device, dtype=dtype, requires_grad=True)
    return e, W_pos


def made(device, dtype, B, T, D):
    e, W_pos = given(device, dtype, B, T, D)
    return e + F.embedding(torch.arange(T, device=device), W_pos), [W_pos]


def sliced(device, dtype, B, T, D):
    e, W_pos = given(device, dtype, B, T, D)
    return e + W_pos[:T], [W_pos]


def from_buffer(device, dtype, B, T, D):
    e, W_pos = given(device, dtype, B, T, D)
    position_ids = torch.arange(longest, device=device).expand(1, -1)
    return e + F.embedding(position_ids[:, :T], W_pos), [W_pos]  # a view: it holds the whole buffer


for case in (made, sliced, from_buffer):
    print(case.__name__, refcheck.record(partial(case, B=B, T=T, D=D), DEVICE, dtype), sep="\n", end="\n\n")

# %% [markdown]
# ## Bytes against sequence length · 字节随序列长度增长

# %% {"alt": "Bytes kept by a look-up of positions against sequence length: measured points on a straight line"}
sweep("positions", "eager", made, dtype, B=B, T=[256, 512, 1024, 2048], D=D)

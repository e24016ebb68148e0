# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Softmax
#
# What does autograd keep for one softmax over attention scores? Change the sizes and run it again.
#
# 注意力打分做一次 softmax，autograd 留下了什么？改改尺寸，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, h, T = 2, 8, 256  # batch, heads, sequence length
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Every storage that the graph of the outputs keeps, once: `case` returns the outputs, and the parameters to leave out.
#
# 输出的计算图所保留的每一块存储，各记一次。`case` 返回输出，以及不计入的参数。


# %%
def case(device, dtype, B, h, T):
    S = torch.randn(B, h, T, T, device=device, dtype=dtype, requires_grad=True)
    return F.softmax(S, dim=-1), []


refcheck.record(partial(case, B=B, h=h, T=T), DEVICE, dtype)

# %% [markdown]
# ## Twice the length, four times the bytes · 长度翻倍，字节变四倍

# %% {"alt": "Bytes kept by softmax against sequence length: measured points on the claimed curve"}
sweep("softmax", "eager", case, dtype, B=B, h=h, T=[64, 128, 256, 512])

# %% [markdown]
# ## Computed in fp32 · 用 fp32 算
#
# The probabilities that stay are fp32, whatever the dtype of the scores; the copy that was cast back isn't kept here.
#
# 留下的概率是 fp32，与打分的类型无关；转回来的副本，softmax 自己不留。


# %%
def in_float32(device, dtype, B, h, T):
    S = torch.randn(B, h, T, T, device=device, dtype=dtype, requires_grad=True)
    return F.softmax(S, dim=-1, dtype=torch.float32).to(S.dtype), []


refcheck.record(partial(in_float32, B=B, h=h, T=T), DEVICE, dtype)

# %% {"alt": "Bytes kept by softmax computed in fp32 against sequence length: a curve twice as high"}
sweep("softmax", "float32", in_float32, dtype, B=B, h=h, T=[64, 128, 256, 512])

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # RMSNorm
#
# One formula, several programs: what does each of them keep? Change the sizes or the dtype and run it again.
#
# 同一个公式，几种写法，各留下了什么？改改尺寸或类型，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, D = 2, 512, 1024  # batch, sequence length, hidden size
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Every storage that the graph of the outputs keeps, once: `case` returns the outputs, and the parameters to leave out.
# On CUDA there is one node for the whole norm; on the CPU there are several, and a copy of x in fp32.
#
# 输出的计算图所保留的每一块存储，各记一次。`case` 返回输出，以及不计入的参数。
# CUDA 上整个归一化是一个节点；CPU 上是好几个，还多一份 fp32 的 x。


# %%
def case(device, dtype, B, T, D):
    x = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    w = torch.ones(D, device=device, dtype=dtype, requires_grad=True)
    return F.rms_norm(x, (D,), w, 1e-6), [w]


refcheck.record(partial(case, B=B, T=T, D=D), DEVICE, dtype)

# %% [markdown]
# ## Written by hand · 手写的版本
#
# As in Hugging Face's Llama: cast to fp32, normalise, cast back, multiply by the weight.
#
# 和 Hugging Face 的 Llama 一样：转成 fp32，归一化，转回去，再乘权重。


# %%
def by_hand(device, dtype, B, T, D):
    x = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    w = torch.ones(D, device=device, dtype=dtype, requires_grad=True)
    x32 = x.to(torch.float32)
    r = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * (x32 * r).to(x.dtype), [w]


refcheck.record(partial(by_hand, B=B, T=T, D=D), DEVICE, dtype)

# %% [markdown]
# ## Bytes against sequence length · 字节随序列长度增长

# %% {"alt": "Bytes kept by RMSNorm against sequence length: measured points on the claimed curve"}
sweep("rmsnorm", "eager", case, dtype, B=B, T=[128, 256, 512, 1024], D=D)

# %% {"alt": "The same written by hand"}
sweep("rmsnorm", "by-hand", by_hand, dtype, B=B, T=[128, 256, 512, 1024], D=D)

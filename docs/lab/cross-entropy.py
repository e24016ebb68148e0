# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Cross entropy
#
# What does autograd keep of a loss over a whole vocabulary? Change the sizes and run it again.
#
# 对整个词表算一次交叉熵，autograd 留下了什么？改改尺寸，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, V = 2, 256, 4000  # batch, sequence length, vocabulary
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Every storage that the graph of the outputs keeps, once: `case` returns the outputs, and the parameters to leave out.
#
# 输出的计算图所保留的每一块存储，各记一次。`case` 返回输出，以及不计入的参数。


# %%
def case(device, dtype, B, T, V):
    logits = torch.randn(B, T, V, device=device, dtype=dtype, requires_grad=True)
    t = torch.randint(V, (B, T), device=device)
    return F.cross_entropy(logits.flatten(0, 1), t.flatten()), []


refcheck.record(partial(case, B=B, T=T, V=V), DEVICE, dtype)

# %% [markdown]
# ## The same, in float32 · 先转成 float32
#
# `.float()` makes the log-probabilities float32, which is twice the bytes; neither version keeps the logits.
#
# 加上 `.float()`，对数概率就成了 float32，字节翻倍；两种写法都不留 logits。


# %%
def in_float32(device, dtype, B, T, V):
    logits = torch.randn(B, T, V, device=device, dtype=dtype, requires_grad=True)
    t = torch.randint(V, (B, T), device=device)
    return F.cross_entropy(logits.float().flatten(0, 1), t.flatten()), []


refcheck.record(partial(in_float32, B=B, T=T, V=V), DEVICE, dtype)

# %% [markdown]
# ## Label smoothing · 标签平滑
#
# A boolean mask and a whole number more, and nothing else as wide as the vocabulary.
#
# 多一张布尔掩码和一个整数，词表那么宽的没有第二块。


# %%
def smoothed(device, dtype, B, T, V):
    logits = torch.randn(B, T, V, device=device, dtype=dtype, requires_grad=True)
    t = torch.randint(V, (B, T), device=device)
    return F.cross_entropy(logits.flatten(0, 1), t.flatten(), label_smoothing=0.1), []


refcheck.record(partial(smoothed, B=B, T=T, V=V), DEVICE, dtype)

# %% [markdown]
# ## Bytes against the vocabulary · 字节随词表增长

# %% {"alt": "Bytes kept by cross entropy against the size of the vocabulary: measured points on the claimed line"}
sweep("cross-entropy", "eager", case, dtype, B=B, T=T, V=[1000, 2000, 4000, 8000])

# %% {"alt": "The same with the logits cast to float32: a line twice as steep"}
sweep("cross-entropy", "float32", in_float32, dtype, B=B, T=T, V=[1000, 2000, 4000, 8000])

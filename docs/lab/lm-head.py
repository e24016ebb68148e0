# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # LM head
#
# The head makes logits, one row of V numbers for every token. Does it keep them? Change the sizes and run it again.
#
# LM head 给每个词元算出一整行 logits，共 V 个数。它自己留不留？改改尺寸，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, D, V = 2, 256, 128, 4000  # batch, sequence length, hidden size, vocabulary
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Every storage that the graph of the outputs keeps, once: `case` returns the outputs, and the parameters to leave out.
#
# 输出的计算图所保留的每一块存储，各记一次。`case` 返回输出，以及不计入的参数。


# %%
def case(device, dtype, B, T, D, V):
    x = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    W_vocab = torch.randn(V, D, device=device, dtype=dtype, requires_grad=True)
    return F.linear(x, W_vocab), [W_vocab]


refcheck.record(partial(case, B=B, T=T, D=D, V=V), DEVICE, dtype)

# %% [markdown]
# ## A larger vocabulary, the same bytes · 词表变大，字节不变
#
# The logits grow with V, and they aren't kept here.
#
# logits 随 V 增长，但这一层不留它。

# %% {"alt": "Bytes kept by the head against the size of the vocabulary: a level line, with the measured points on it"}
sweep("lm-head", "no-bias", case, dtype, B=B, T=T, D=D, V=[1000, 2000, 4000, 8000])

# %% [markdown]
# ## Tied to the embedding · 与词嵌入共享权重
#
# One parameter, used twice: it stays one storage.
#
# 同一个参数用两次，仍然只有一块存储。


# %%
def tied(device, dtype, B, T, D, V):
    W = torch.randn(V, D, device=device, dtype=dtype, requires_grad=True)
    tokens = torch.randint(V, (B, T), device=device)
    return F.linear(F.embedding(tokens, W), W), [W]


refcheck.record(partial(tied, B=B, T=T, D=D, V=V), DEVICE, dtype)

# %% {"alt": "Bytes kept by both ends of a tied model against the vocabulary: a level line, with the measured points on it"}
sweep("lm-head", "tied", tied, dtype, B=B, T=T, D=D, V=[1000, 2000, 4000, 8000])

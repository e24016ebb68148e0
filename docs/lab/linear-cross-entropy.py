# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # LM head and cross entropy in one · LM head 与交叉熵合一
#
# What is kept when the head and the loss are one operator? Change the sizes and run it again.
#
# head 和损失合成一个算子，留下的是什么？改改尺寸，再跑一遍。

# %%
from functools import partial

import torch

import refcheck
from refcheck.lab import DEVICE, sweep
from refcheck.layers import linear_cross_entropy

B, T, D, V = 2, 256, 128, 4000  # batch, sequence length, hidden size, vocabulary
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Every storage that the graph of the outputs keeps, once: `case` returns the outputs, and the parameters to leave out.
# The chunked operator keeps two gradients; they are attributes of its node.
#
# 输出的计算图所保留的每一块存储，各记一次。`case` 返回输出，以及不计入的参数。分块算子留的是两个梯度，挂在它的节点上。


# %%
def case(device, dtype, run, B, T, D, V):
    x = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    W_vocab = torch.randn(D, V, device=device, dtype=dtype, requires_grad=True)
    t = torch.randint(V, (B, T), device=device)
    return run(x, W_vocab, t, ignore=-100), [W_vocab]


chunked = partial(case, run=linear_cross_entropy.chunked)
refcheck.record(partial(chunked, B=B, T=T, D=D, V=V), DEVICE, dtype)

# %% [markdown]
# ## In two steps · 分两步做
#
# `F.linear`, then `F.cross_entropy`: the log-probabilities are kept.
#
# 先 `F.linear`，再 `F.cross_entropy`：对数概率留下了。

# %%
eager = partial(case, run=linear_cross_entropy.eager)
refcheck.record(partial(eager, B=B, T=T, D=D, V=V), DEVICE, dtype)

# %% [markdown]
# ## Where keeping gradients is less · 留梯度从哪里开始划算
#
# In two steps the bytes grow with T times V. Kept gradients start high and grow slowly; the two meet where BT is D.
#
# 分两步做，字节随 T×V 增长；留梯度的写法起点高、增长慢。BT 等于 D 时，两者相当。

# %% {"alt": "Bytes kept in two steps against sequence length: measured points on the claimed line, which starts low and is steep"}
sweep("linear-cross-entropy", "eager", eager, dtype, B=B, D=D, V=V, T=[32, 64, 128, 256])

# %% {"alt": "The same for kept gradients: a line that starts high and is almost level"}
sweep("linear-cross-entropy", "chunked", chunked, dtype, B=B, D=D, V=V, T=[32, 64, 128, 256])

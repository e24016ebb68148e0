# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Final norm
#
# The norm between the last block and the head: what does it keep, and what does the head keep of it? Change the sizes and run it again.
#
# 最后一个块和 LM head 之间的归一化：它自己留了什么，head 又留了什么？改改尺寸，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.lab import DEVICE, sweep

B, T, D = 4, 512, 256  # batch, sequence length, hidden size
V = 1000  # vocabulary, for the head below
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Every storage that the graph of the outputs keeps, once: `case` returns the outputs, and the parameters to leave out.
#
# 输出的计算图所保留的每一块存储，各记一次。`case` 返回输出，以及不计入的参数。


# %%
def case(device, dtype, B, T, D):
    x = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    w = torch.ones(D, device=device, dtype=dtype, requires_grad=True)
    b = torch.zeros(D, device=device, dtype=dtype, requires_grad=True)
    return F.layer_norm(x, (D,), w, b), [w, b]


refcheck.record(partial(case, B=B, T=T, D=D), DEVICE, dtype)

# %% [markdown]
# ## With the head behind it · 接上 head
#
# Now there are two tensors of B·T·D: the norm's input, and its output, which the head keeps.
#
# 现在有两块 B·T·D：一块是归一化的输入，一块是它的输出，由 head 留着。


# %%
def with_head(device, dtype, B, T, D):
    x_final, parameters = case(device, dtype, B, T, D)
    W_vocab = torch.randn(V, D, device=device, dtype=dtype, requires_grad=True)
    return F.linear(x_final, W_vocab), [*parameters, W_vocab]


refcheck.record(partial(with_head, B=B, T=T, D=D), DEVICE, dtype)

# %% [markdown]
# ## Bytes against the hidden size · 字节随 D 增长

# %% {"alt": "Bytes kept by the final norm against hidden size: measured points on the claimed line"}
sweep("final-norm", "eager", case, dtype, B=B, T=T, D=[64, 128, 256, 512])

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # LayerNorm, then a linear layer · LayerNorm 接线性层
#
# Two large tensors in eager mode. Does a compiler keep fewer? Does a formula? Change the sizes and run it again.
#
# 逐算子执行留两个大张量。编译器会少留吗？换个公式呢？改改尺寸，再跑一遍。

# %%
from functools import partial

import torch
import torch.nn.functional as F

import refcheck
from refcheck.compiled import compiled
from refcheck.function import as_function
from refcheck.lab import DEVICE, sweep
from refcheck.layers import layernorm_linear

B, T, D, M = 2, 256, 256, 512  # batch, sequence length, hidden size, width of the linear layer
dtype = "bfloat16"


def tensors(device, dtype, B, T, D, M):
    x = torch.randn(B, T, D, device=device, dtype=dtype, requires_grad=True)
    w, b, W1, b1 = (torch.randn(*n, device=device, dtype=dtype, requires_grad=True) for n in ((D,), (D,), (D, M), (M,)))
    return dict(x=x, w=w, b=b, W1=W1, b1=b1), [w, b, W1, b1]


# %% [markdown]
# ## The ledger · 账目
#
# Every storage that the graph of the outputs keeps, once: `case` returns the outputs, and the parameters to leave out.
#
# 输出的计算图所保留的每一块存储，各记一次。`case` 返回输出，以及不计入的参数。


# %%
def case(device, dtype, B, T, D, M):
    given, parameters = tensors(device, dtype, B, T, D, M)
    u = F.layer_norm(given["x"], (D,), given["w"], given["b"])
    return F.linear(u, given["W1"].mT, given["b1"]), parameters


refcheck.record(partial(case, B=B, T=T, D=D, M=M), DEVICE, dtype)

# %% [markdown]
# ## Compiled · 编译之后
#
# The same code under torch.compile, on the CPU: forward and backward as one graph, cut where it is cheapest.
#
# 同样的代码放进 torch.compile，在 CPU 上：前向和反向是一张图，在最便宜的地方切开。


# %%
def compiled_case(device, dtype, B, T, D, M):
    given, parameters = tensors(device, dtype, B, T, D, M)
    return compiled(layernorm_linear.eager)(**given, eps=1e-5), parameters


refcheck.record(partial(compiled_case, B=B, T=T, D=D, M=M), "cpu", dtype)

# %% [markdown]
# ## From the output · 由输出反推
#
# The pair `from-output` as an autograd function: u serves twice, and x is let go.
#
# 把公式对 `from-output` 装成一个自动求导函数：u 一物两用，x 放掉。


# %%
def from_output(device, dtype, B, T, D, M):
    given, parameters = tensors(device, dtype, B, T, D, M)
    return as_function(layernorm_linear.FROM_OUTPUT, "FromOutput")(**given, eps=1e-5), parameters


refcheck.record(partial(from_output, B=B, T=T, D=D, M=M), DEVICE, dtype)

# %% [markdown]
# ## Bytes against the hidden size · 字节随 D 增长

# %% {"alt": "Bytes kept by LayerNorm and a linear layer against hidden size: measured points on the claimed line"}
sweep("layernorm-linear", "eager", case, dtype, B=B, T=T, M=M, D=[64, 128, 256, 512])

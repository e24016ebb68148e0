# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # RoPE
#
# Backward needs cos and sin and no Q. Who makes the tables, and how often? Change the sizes and run it again.
#
# 反向要 cos 和 sin，不要 Q。表由谁来算，算几遍？改改尺寸，再跑一遍。

# %%
from functools import partial

import torch

import refcheck
from refcheck.function import as_function
from refcheck.lab import DEVICE, sweep
from refcheck.layers import rope

B, h, T, d = 2, 8, 1024, 64  # batch, heads, sequence length, head size
dtype = "bfloat16"


# %% [markdown]
# ## The ledger · 账目
#
# Two tables, whatever B and h are. Q isn't among what is kept.
#
# 两张表，与 B、h 无关。留下的东西里没有 Q。


# %%
def angles(device, T, d):
    omega = 10000.0 ** (-torch.arange(0, d, 2, device=device) / d)
    return torch.outer(torch.arange(T, device=device).float(), omega)


def queries(device, dtype, B, h, T, d):
    return torch.randn(B, h, T, d, device=device, dtype=dtype, requires_grad=True)


def rotate(Q, cos, sin):
    half = Q.shape[-1] // 2
    return Q * cos + torch.cat((-Q[..., half:], Q[..., :half]), dim=-1) * sin


def tables(device, dtype, T, d):
    theta = torch.cat((angles(device, T, d),) * 2, dim=-1)
    return theta.cos().to(dtype), theta.sin().to(dtype)


def shared(device, dtype, B, h, T, d):
    return rotate(queries(device, dtype, B, h, T, d), *tables(device, dtype, T, d)), []


def half_tables(device, dtype, B, h, T, d):
    Q, theta = queries(device, dtype, B, h, T, d), angles(device, T, d)
    run = as_function(rope.HALF_TABLES, "RotaryFromHalfTables")
    return run(Q=Q.unflatten(-1, (2, -1)), cos_half=theta.cos().to(Q.dtype), sin_half=theta.sin().to(Q.dtype)), []


def complex_numbers(device, dtype, B, h, T, d):
    theta = angles(device, T, d)
    pairs = queries(device, dtype, B, h, T, d).float().unflatten(-1, (-1, 2))
    turned = torch.view_as_complex(pairs) * torch.polar(torch.ones_like(theta), theta)
    return torch.view_as_real(turned).flatten(-2), []


for case in (shared, half_tables, complex_numbers):
    print(case.__name__, refcheck.record(partial(case, B=B, h=h, T=T, d=d), DEVICE, dtype), sep="\n", end="\n\n")

# %% [markdown]
# ## One pair of tables, or one for each block · 一份表，还是每块一份
#
# Four blocks: `handed_on` gives all of them the same tables; `computed` makes them in each.
#
# 四个块：`handed_on` 把同一份表交给它们；`computed` 在每个块里各算一份。


# %%
def handed_on(device, dtype, B, h, T, d):
    Q, made = queries(device, dtype, B, h, T, d), tables(device, dtype, T, d)
    return [rotate(Q, *made) for _ in range(4)], []


def computed(device, dtype, B, h, T, d):
    Q = queries(device, dtype, B, h, T, d)
    return [rotate(Q, *tables(device, dtype, T, d)) for _ in range(4)], []


for case in (handed_on, computed):
    print(case.__name__, refcheck.record(partial(case, B=B, h=h, T=T, d=d), DEVICE, dtype), sep="\n", end="\n\n")

# %% [markdown]
# ## More heads, the same bytes · 头再多，字节也一样

# %% {"alt": "Bytes kept by RoPE against the number of heads: measured points on a level line"}
sweep("rope", "eager", shared, dtype, B=B, h=[4, 8, 16, 32], T=T, d=d)

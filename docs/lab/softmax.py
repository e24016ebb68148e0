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
# What does autograd keep for one softmax over attention scores? Change the sizes and see.
# It runs on a GPU if there is one.
#
# autograd 为注意力打分上的一次 softmax 留下了什么？改一改尺寸，再看一遍。有 GPU 就在 GPU 上跑。

# %%
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

B, h, T = 2, 8, 256  # batch, heads, sequence length: change these · 改这里
dtype = torch.bfloat16
device = "cuda" if torch.cuda.is_available() else "cpu"
print(f"torch {torch.__version__} on {torch.cuda.get_device_name() if device == 'cuda' else 'cpu'}")


# %% [markdown]
# ## The ledger · 账目
#
# Every tensor packed for the backward pass, each storage once.
#
# 为反向打包的每一个张量；同一块存储只记一次。


# %%
def kept_by(run):
    """The storages that autograd keeps for run(), as {address: (shape, dtype, bytes)}, and run's output."""
    kept = {}

    def pack(t):
        storage = t.untyped_storage()
        kept[storage.data_ptr()] = (tuple(t.shape), t.dtype, storage.nbytes())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = run()
    return kept, output


def ledger(T):
    S = torch.randn(B, h, T, T, dtype=dtype, device=device, requires_grad=True)
    kept, P = kept_by(lambda: F.softmax(S, dim=-1))
    names = {S.untyped_storage().data_ptr(): "S (input)", P.untyped_storage().data_ptr(): "P (output)"}
    return [(names.get(at, "?"), *entry) for at, entry in kept.items()]


for name, shape, kind, size in ledger(T):
    print(f"{name:12} {shape!s:20} {kind!s:16} {size:>12,} bytes")
claimed = 2 * B * h * T**2
print(f"{'2·B·h·T²':12} {'':20} {'claimed':16} {claimed:>12,} bytes")

# %% [markdown]
# ## It grows with the square of T · 随 T 的平方增长

# %% {"alt": "Bytes kept by softmax against sequence length: measured points on the claimed curve"}
lengths = [64, 128, 256, 512]
measured = [sum(entry[3] for entry in ledger(T)) for T in lengths]
fig, ax = plt.subplots(figsize=(6.4, 3.2), dpi=150)
ax.plot(lengths, [2 * B * h * T**2 / 2**20 for T in lengths], color="#17624a", label="claimed: 2·B·h·T²")
ax.plot(lengths, [m / 2**20 for m in measured], "o", color="#8a5a00", label="measured")
ax.set(xlabel="T", ylabel="MiB")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
plt.show()

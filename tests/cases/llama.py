"""Llama 3 written out: RMSNorm, RoPE, grouped queries, SwiGLU, a bf16 head with cross entropy; no weights of anybody's.

``case`` at its defaults has the sizes of Llama-3.1-405B: Grattafiori et al. 2024, table 3, and its released config.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


class Block(nn.Module):
    """x (B, T, D) -> (B, T, D); `h` heads of `d`, each `h/g` of which share one of `g` keys and values."""

    def __init__(self, D, h, g, d, M, **where):
        super().__init__()
        self.h, self.g, self.d = h, g, d
        self.norm1, self.norm2 = nn.RMSNorm(D, 1e-5, **where), nn.RMSNorm(D, 1e-5, **where)
        self.q, self.o = nn.Linear(D, h * d, bias=False, **where), nn.Linear(h * d, D, bias=False, **where)
        self.k, self.v = nn.Linear(D, g * d, bias=False, **where), nn.Linear(D, g * d, bias=False, **where)
        self.gate, self.up = nn.Linear(D, M, bias=False, **where), nn.Linear(D, M, bias=False, **where)
        self.down = nn.Linear(M, D, bias=False, **where)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        u = self.norm1(x)
        q = self.q(u).view(B, T, self.h, self.d).transpose(1, 2)
        k, v = (f(u).view(B, T, self.g, self.d).transpose(1, 2) for f in (self.k, self.v))
        o = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=self.g != self.h
        )
        x = x + self.o(o.transpose(1, 2).reshape(B, T, self.h * self.d))
        u = self.norm2(x)
        return x + self.down(F.silu(self.gate(u)) * self.up(u))


def rotate(t, cos, sin):
    """RoPE of (B, h, T, d), in halves; cos and sin are (T, d)."""
    a, b = t.chunk(2, -1)
    return t * cos + torch.cat((-b, a), -1) * sin


def case(device, dtype, B=2, T=8192, L=126, D=16384, h=128, g=8, d=128, M=53248, V=128256):
    """The loss of `L` blocks between an embedding and a head that is not tied to it."""
    where = {"device": device, "dtype": dtype}
    blocks = nn.ModuleList(Block(D, h, g, d, M, **where) for _ in range(L))
    embedding, norm = nn.Embedding(V, D, **where), nn.RMSNorm(D, 1e-5, **where)
    head = nn.Linear(D, V, bias=False, **where)
    tokens = torch.zeros(B, T, dtype=torch.long, device=device)
    angles = torch.arange(T, device=device)[:, None] / 500000.0 ** (torch.arange(0, d, 2, device=device) / d)
    cos, sin = (f(angles).repeat(1, 2).to(dtype) for f in (torch.cos, torch.sin))
    x = embedding(tokens)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        for block in blocks:
            x = block(x, cos, sin)
    loss = F.cross_entropy(head(norm(x)).float().view(-1, V), tokens.view(-1))
    return loss, [p for m in (blocks, embedding, norm, head) for p in m.parameters()]

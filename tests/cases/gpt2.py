"""GPT-2 written out: learned positions, eager causal attention, GELU (tanh), dropout everywhere, a tied head.

``case`` at its defaults has the sizes of GPT-2 small: Radford et al. 2019 and its released hparams.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """x (B, T, D) -> (B, T, D); the mask (C, C) is the model's, one for all blocks."""

    def __init__(self, D, h, p, **where):
        super().__init__()
        self.h, self.p = h, p
        self.norm1, self.norm2 = nn.LayerNorm(D, **where), nn.LayerNorm(D, **where)
        self.qkv, self.out = nn.Linear(D, 3 * D, **where), nn.Linear(D, D, **where)
        self.up, self.down = nn.Linear(D, 4 * D, **where), nn.Linear(4 * D, D, **where)

    def forward(self, x, mask):
        B, T, D = x.shape
        d = D // self.h
        q, k, v = (t.view(B, T, self.h, d).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(D, -1))
        scores = (q @ k.transpose(-2, -1) / d**0.5).masked_fill(mask[:T, :T], float("-inf"))
        probs = F.dropout(scores.softmax(-1), self.p, self.training)
        x = x + F.dropout(self.out((probs @ v).transpose(1, 2).reshape(B, T, D)), self.p, self.training)
        hidden = F.gelu(self.up(self.norm2(x)), approximate="tanh")
        return x + F.dropout(self.down(hidden), self.p, self.training)


class GPT2(nn.Module):
    """tokens (B, T) -> the loss of guessing them."""

    def __init__(self, L, D, h, V, C, p, **where):
        super().__init__()
        self.p = p
        self.tokens, self.positions = nn.Embedding(V, D, **where), nn.Embedding(C, D, **where)
        self.blocks = nn.ModuleList(Block(D, h, p, **where) for _ in range(L))
        self.norm = nn.LayerNorm(D, **where)
        mask = torch.ones(C, C, dtype=torch.bool, device=where["device"]).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens):
        at = torch.arange(tokens.shape[1], device=tokens.device)
        x = F.dropout(self.tokens(tokens) + self.positions(at), self.p, self.training)
        for block in self.blocks:
            x = block(x, self.mask)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def case(device, dtype, B=2, T=256, L=12, D=768, h=12, V=50257, C=1024, p=0.1):
    model = GPT2(L, D, h, V, C, p, device=device, dtype=dtype)
    return model(torch.zeros(B, T, dtype=torch.long, device=device)), model

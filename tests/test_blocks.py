"""The block of GPT-2 against what others say of it: torch's own encoder layer, and the published count of bytes."""

import pytest
import torch
from torch import nn

from refcheck import record
from refcheck.blocks import BLOCKS
from refcheck.evidence import ROOT
from refcheck.layers import positions
from refcheck.measure import SIZES
from refcheck.prove import example
from refcheck.saved import device_bytes
from refcheck.sizes import B, M, T, V, at_sizes, d, h

(GPT2,) = (block for block in BLOCKS if block.id == "gpt2")
EAGER, NO_DROPOUT = GPT2.implementations
D = h * d
PARTS = """layernorm qkv scores mask softmax attention-dropout attention-value out-proj ffn-dropout residual
layernorm ffn-gelu ffn-dropout residual"""


def test_its_parts_in_order():
    assert [part.layer.id for part in EAGER.parts] == PARTS.split()


def test_its_bytes_are_the_published_ones_and_the_statistics():
    """Korthikanti et al. 2022, equation 2: 34sbh + 5as²b; it leaves out two fp32 numbers per token and norm."""
    kept = device_bytes(EAGER.claim("cuda", "bfloat16")).subs(M, 4 * D)
    assert (kept - (34 * B * T * D + 5 * B * h * T**2) - 2 * (4 + 4) * B * T).expand() == 0


def encoder_layer(given, sizes):
    """torch's encoder layer, norm first, with the block's parameters and no other biases."""
    width, heads = sizes["h"] * sizes["d"], sizes["h"]
    made = nn.TransformerEncoderLayer(
        width, heads, sizes["M"], dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    qkv = torch.cat([given[name].flatten(1).mT for name in ("W_Q", "W_K", "W_V")])
    values = {
        made.self_attn.in_proj_weight: qkv,
        made.self_attn.in_proj_bias: 0.0,
        made.self_attn.out_proj.weight: given["W_O"].mT,
        made.self_attn.out_proj.bias: 0.0,
        made.linear1.weight: given["W1"].mT,
        made.linear1.bias: given["b1"],
        made.linear2.weight: given["W2"].mT,
        made.linear2.bias: given["b2"],
        made.norm1.weight: given["w_1"],
        made.norm1.bias: given["b_1"],
        made.norm2.weight: given["w_2"],
        made.norm2.bias: given["b_2"],
    }
    with torch.no_grad():
        for tensor, value in values.items():
            tensor.copy_(torch.as_tensor(value))
    return made


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_computes_what_the_encoder_layer_of_torch_does(sizes):
    torch.manual_seed(0)
    given = {n: example(i, [at_sizes(s, sizes) for s in i.shape], 1) for n, i in EAGER.given.items()}
    theirs = encoder_layer(given, sizes)(given["x"], src_mask=given["A"])
    mine = EAGER.run(**given, p=0.0, eps=EAGER.scalars["eps"])
    assert torch.allclose(mine, theirs, rtol=1e-10, atol=1e-10)


def test_it_drops_out_in_three_places(monkeypatch):
    torch.manual_seed(0)
    shapes = []
    dropout = nn.functional.dropout
    monkeypatch.setattr(nn.functional, "dropout", lambda x, p, **k: shapes.append((*x.shape, p)) or dropout(x, p, **k))
    given = {n: example(i, [at_sizes(s, SIZES[0]) for s in i.shape], 1) for n, i in EAGER.given.items()}
    EAGER.run(**given, **EAGER.scalars)
    b, t, heads, width = (SIZES[0][n] for n in ("B", "T", "h", "D"))
    assert shapes == [(b, heads, t, t, 0.1), (b, t, width, 0.1), (b, t, width, 0.1)]


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_page_compares_it_with_the_published_formula(lang):
    text = (ROOT / "docs" / lang / "blocks.md").read_text(encoding="utf-8")
    assert '[= block_form("gpt2", minus="34*B*T*D + 5*B*h*T**2", M="4*D") =]' in text
    assert "$34sbh + 5as^2b$" in text


# --- models of several blocks -----------------------------------------------------------------------------------------


def outside(block, given):
    """What stands before the first block and after the last, in torch, by the block's id."""
    import torch.nn.functional as F

    def before(tokens, W):
        x = F.embedding(tokens, W)
        if block.id != "gpt2":  # only it has positions, and dropout on them
            return x
        return F.dropout(positions.eager(x, given["W_pos"]), 0.1, training=True)

    def after(x, w, b, W, t):
        if block.id == "gpt2":
            x = F.layer_norm(x, w.shape, w, b)
        elif block.id != "article":  # which has no final norm
            x = F.rms_norm(x, w.shape, w, 1e-6)
        logits = F.linear(x, W)
        logits = logits if block.id in ("gpt2", "article") else logits.float()
        return F.cross_entropy(logits.flatten(0, 1), t.flatten())

    return before, after


def model(block, layers, sizes):
    """A case for `record`: a model of this many blocks, which share their buffers and nothing else."""
    whole = block.implementations[0]

    def case(device, dtype):
        def tensor(*shape):
            return torch.randn(*(at_sizes(n, sizes) for n in shape), device=device, dtype=dtype)

        def parameter(*shape):
            params.append(tensor(*shape).requires_grad_())
            return params[-1]

        params = []
        buffers = {n: tensor(*i.shape) for n, i in whole.given.items() if i.cls == "buffer"}
        before, after = outside(block, dict(W_pos=parameter(T, D)))
        tokens, t = (torch.randint(sizes["V"], (sizes["B"], sizes["T"]), device=device) for _ in range(2))
        x = before(tokens, parameter(V, D))
        for _ in range(layers):
            weights = {n: parameter(*i.shape) for n, i in whole.given.items() if i.cls == "parameter"}
            x = whole.run(x, **buffers, **weights, **whole.scalars)
        return after(x, parameter(D), parameter(D), parameter(V, D), t), params

    return case


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.id)
def test_a_model_keeps_its_blocks_and_what_is_kept_once(block, layers, dtype):
    for sizes in SIZES[:2]:
        each, once = (at_sizes(form, sizes) for form in block.in_depth("cpu", dtype))
        assert record(model(block, layers, sizes), "cpu", dtype).nbytes == layers * each + once


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.id)
def test_a_block_that_is_not_like_the_others_is_noticed(block):
    """A second copy of a buffer, one block less: the identity is no truism."""
    each, once = (at_sizes(form, SIZES[0]) for form in block.in_depth("cpu", "float32"))
    assert record(model(block, 2, SIZES[0]), "cpu", "float32").nbytes not in (3 * each + once, 2 * (each + once))

"""Rotary position embedding: each pair of entries of Q, at each position, is turned by an angle.  K is turned alike."""

from refcheck.arrays import einsum, stack
from refcheck.function import written_out
from refcheck.sizes import B, T, d, h
from refcheck.spec import Implementation, Layer, Pair, Saves, activation, buffer, tokens


def rotate_half(Q):
    first, second = Q.unbind(-2)  # the halves of a head: (2, d/2) is one axis of length d to torch
    return stack((-second, first), -2)


def forward(Q, cos, sin):
    return Q * cos + rotate_half(Q) * sin, dict(cos=cos, sin=sin)


def backward(dQ_rot, s):
    return dict(Q=dQ_rot * s["cos"] - rotate_half(dQ_rot * s["sin"]))


def forward_float32(Q, cos_32, sin_32):
    return forward(Q, cos_32, sin_32)[0], dict(cos_32=cos_32, sin_32=sin_32)


def backward_float32(dQ_rot, s):
    return backward(dQ_rot, dict(cos=s["cos_32"], sin=s["sin_32"]))


def forward_computed(Q, angles):
    return forward(Q, angles.cos(), angles.sin())


def forward_gathered(Q, cos, sin, pos_batch):
    cos_rows, sin_rows = cos[pos_batch], sin[pos_batch]  # (B, T, 2, d/2)
    Q_rot = in_each_head(Q, cos_rows) + in_each_head(rotate_half(Q), sin_rows)
    return Q_rot, dict(cos_rows=cos_rows, sin_rows=sin_rows)


def in_each_head(Q, rows):
    return einsum("bhtaj,btaj->bhtaj", Q, rows)


def backward_gathered(dQ_rot, s):
    return dict(Q=in_each_head(dQ_rot, s["cos_rows"]) - rotate_half(in_each_head(dQ_rot, s["sin_rows"])))


def turn(Q, cos, sin, axis):
    a, b = Q.unbind(axis)  # a pair has one angle: cos and sin are (T, d/2)
    return stack((a * cos - b * sin, b * cos + a * sin), axis)


def forward_half_tables(Q, cos_half, sin_half):
    return turn(Q, cos_half, sin_half, -2), dict(cos_half=cos_half, sin_half=sin_half)


def backward_half_tables(dQ_rot, s):
    return dict(Q=turn(dQ_rot, s["cos_half"], -s["sin_half"], -2))  # by the opposite angle


def forward_complex(Q, cis):
    return turn(Q, cis.real, cis.imag, -1), dict(cis=cis)  # here the two entries of a pair are neighbours


def backward_complex(dQ_rot, s):
    return dict(Q=turn(dQ_rot, s["cis"].real, -s["cis"].imag, -1))  # times the conjugate


HALVES, NEIGHBOURS = activation(B, h, T, 2, d / 2), activation(B, h, T, d / 2, 2)
FULL, HALF = buffer(T, 2, d / 2, dtype=None), buffer(T, d / 2, dtype=None)
FULL_32 = buffer(T, 2, d / 2, dtype="float32")
POS = tokens(B, T, below=T)
TABLES = Pair("tables", forward, backward, dict(Q=HALVES, cos=FULL, sin=FULL), output="Q_rot")
FLOAT32 = Pair(
    "tables-float32",
    forward_float32,
    backward_float32,
    dict(Q=HALVES, cos_32=FULL_32, sin_32=FULL_32),
    output="Q_rot",
)
COMPUTED = Pair("computed", forward_computed, backward, dict(Q=HALVES, angles=FULL_32), output="Q_rot")
GATHERED = Pair(
    "gathered",
    forward_gathered,
    backward_gathered,
    dict(Q=HALVES, cos=FULL, sin=FULL, pos_batch=POS),
    output="Q_rot",
)
COMPLEX = Pair(
    "complex",
    forward_complex,
    backward_complex,
    dict(Q=NEIGHBOURS, cis=buffer(T, d / 2, dtype="complex64")),
    output="Q_rot",
)
HALF_TABLES = Pair(
    "half-tables",
    forward_half_tables,
    backward_half_tables,
    dict(Q=HALVES, cos_half=HALF, sin_half=HALF),
    output="Q_rot",
)


def eager(Q, cos, sin):
    import torch

    Q, cos, sin = Q.flatten(-2), cos.flatten(-2), sin.flatten(-2)  # (B, h, T, d) and (…, T, d)
    half = Q.shape[-1] // 2
    turned = torch.cat((-Q[..., half:], Q[..., :half]), dim=-1)
    return (Q * cos + turned * sin).unflatten(-1, (2, -1))


def wide(Q):
    """Q in float32, unless it is wider."""
    import torch

    return Q.to(torch.promote_types(Q.dtype, torch.float32))


def float32(Q, cos_32, sin_32):
    return eager(wide(Q), cos_32, sin_32).to(Q.dtype)


def per_block(Q, angles):
    return eager(Q, angles.cos().to(Q.dtype), angles.sin().to(Q.dtype))


def gathered(Q, cos, sin, pos_batch):
    return eager(Q, cos[pos_batch].unsqueeze(1), sin[pos_batch].unsqueeze(1))


def complex64(Q, cis):
    import torch

    return torch.view_as_real(torch.view_as_complex(wide(Q)) * cis).to(Q.dtype)


def half_tables(Q, cos_half, sin_half):
    import torch

    return eager(Q, torch.stack((cos_half, cos_half), -2), torch.stack((sin_half, sin_half), -2))


def factors(pair, *names):
    return Saves(pair, at=dict.fromkeys(names, "MulBackward0.other"))


EAGER = factors(TABLES, "cos", "sin")
IN_FLOAT32 = factors(FLOAT32, "cos_32", "sin_32")
PER_BLOCK = factors(COMPUTED, "cos", "sin")
ROWS = factors(GATHERED, "cos_rows", "sin_rows")
CIS = factors(COMPLEX, "cis")

LAYER = Layer(
    __name__,
    title=dict(zh="旋转位置编码 RoPE", en="Rotary position embedding (RoPE)"),
    implementations=(
        Implementation(
            "eager",
            dict(zh="Q·cos + rotate_half(Q)·sin，两张表共用", en="Q·cos + rotate_half(Q)·sin, shared tables"),
            eager,
            cpu=EAGER,
            cuda=EAGER,
        ),
        Implementation(
            "float32",
            dict(zh="同上，在 fp32 里算", en="the same, computed in fp32"),
            float32,
            cpu=IN_FLOAT32,
            cuda=IN_FLOAT32,
        ),
        Implementation(
            "per-block",
            dict(zh="每个块自己算 cos 与 sin", en="cos and sin computed in each block"),
            per_block,
            cpu=PER_BLOCK,
            cuda=PER_BLOCK,
        ),
        Implementation(
            "gathered",
            dict(zh="按位置编号取行", en="rows picked by position"),
            gathered,
            cpu=ROWS,
            cuda=ROWS,
        ),
        Implementation(
            "complex",
            dict(zh="复数乘法", en="complex multiplication"),
            complex64,
            cpu=CIS,
            cuda=CIS,
        ),
        written_out(
            HALF_TABLES,
            "RotaryFromHalfTables",
            dict(zh="融合写法：只存半张 cos 与 sin", en="as fused kernels do: half-width cos and sin"),
            like=half_tables,
        ),
    ),
)

"""The sizes of a Transformer, and of an element."""

from __future__ import annotations

from collections.abc import Mapping

from sympy import Expr, symbols, sympify

# B batch · T sequence length · D = h·d hidden size · h heads · d head size · M FFN width · V vocabulary
B, T, D, h, d, M, V = symbols("B T D h d M V", integer=True, positive=True)

DTYPES = ("bfloat16", "float16", "float32")
ITEMSIZE = {
    "bool": 1,
    "uint8": 1,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int64": 8,
    "uint64": 8,
}  # bytes
DEVICES = ("cpu", "cuda-trace", "cuda")


def at_sizes(expression: Expr | int, sizes: Mapping[str, int]) -> int:
    """The value of a closed form in B, T, D, … at given sizes; raises KeyError for a size that is not given."""
    expression = sympify(expression)
    return int(expression.subs({s: sizes[s.name] for s in expression.free_symbols}))

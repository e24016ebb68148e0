"""The sizes of a Transformer, and of an element."""

from __future__ import annotations

from collections.abc import Mapping

from sympy import Expr, Integer, symbols, sympify

# B batch · T sequence length · D = h·d hidden size · h heads · d head size · M FFN width · V vocabulary
# g key-value heads, of which each serves h/g heads · R rank of a LoRA · E experts · k experts per token
B, T, D, h, d, M, V, g, R, E, k = symbols("B T D h d M V g R E k", integer=True, positive=True)

DTYPES = ("bfloat16", "float16", "float32")
ITEMSIZE = {
    "bool": 1,
    "uint8": 1,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int32": 4,
    "int64": 8,
    "uint64": 8,
    "complex64": 8,
}  # bytes
DEVICES = ("cpu", "cuda-trace", "cuda")


def at_sizes(expression: Expr | int, sizes: Mapping[str, int]) -> int:
    """The value of a closed form in B, T, D, … at given sizes.

    Raises KeyError for a size that is not given, ValueError where the value is no whole number: g must divide h.
    """
    expression = sympify(expression)
    value = expression.xreplace({s: Integer(sizes[s.name]) for s in expression.free_symbols})
    if not value.is_Integer:
        raise ValueError(f"{expression} is {value} at these sizes, no whole number")
    return int(value)

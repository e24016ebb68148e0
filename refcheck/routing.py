"""Rows that whole numbers send to a place: tokens sorted by their experts, and brought back.

As in `refcheck.arrays`, one text serves the proof and torch.  A proof for every size takes any whole numbers that stay
in their range, and puts each row into any group; so it holds for those that `plan` finds.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from sympy import Expr, Integer, KroneckerDelta, Mul, S, sympify

from refcheck.arrays import Array, one_hot, variable
from refcheck.sums import Digit, OutOfRange, fits, fresh


def plan(choice: Any, experts: Any) -> tuple[Any, Any, Any]:
    """Each token's choices, sorted by expert: their slots, their tokens, and where each expert's rows end.

    `choice` is (B, T, k).  Slots number its B·T·k entries, tokens its B·T rows; there are as many ends as experts.
    """
    if isinstance(choice, Array):
        return _known_plan(choice, experts) if isinstance(experts, int) else _any_plan(choice, experts)
    import torch

    chosen, slot = choice.flatten().sort(stable=True)
    each = torch.arange(experts, device=choice.device)
    return slot, slot // choice.shape[-1], torch.searchsorted(chosen, each, right=True, out_int32=True)


def _any_plan(choice: Array, experts: Expr) -> tuple[Array, Array, Array]:
    B, T, k = choice.shape
    n = k * B * T
    any_plan = variable("slot", (n,), below=n), variable("token", (n,), below=B * T), variable("offs", (experts,))
    slot, token, offs = (_found(choice, numbers) for numbers in any_plan)
    return slot, token, offs


def _found(source: Array, numbers: Array) -> Array:
    """Whole numbers that are found from `source`, in whatever way: who looks at them has looked at it."""

    def entry(*index: Any) -> Expr:
        source.entry(*map(fresh, source.shape))
        return numbers.entry(*index)

    return Array(numbers.shape, entry)


def _known_plan(choice: Array, experts: int) -> tuple[Array, Array, Array]:
    B, T, k = map(int, choice.shape)
    chosen = [int(choice.entry(b, t, j)) for b in range(B) for t in range(T) for j in range(k)]
    slot = sorted(range(len(chosen)), key=lambda n: chosen[n])
    offs = list(accumulate(chosen.count(e) for e in range(experts)))
    return _numbers(slot), _numbers([n // k for n in slot]), _numbers(offs)


def _numbers(values: list[int]) -> Array:
    return Array((len(values),), lambda n: Integer(values[int(n)]))


def members(offs: Any, x: Any) -> Any:
    """(rows of x, groups): 1 where a row is in a group, else 0; the rows of group e end before row ``offs[e]``."""
    if not isinstance(x, Array):
        import torch

        row = torch.arange(x.shape[0], device=x.device, dtype=offs.dtype)
        return one_hot(torch.searchsorted(offs, row, right=True), offs.shape[0]).to(x.dtype)
    n, groups = x.shape[0], offs.shape[0]
    if isinstance(n, int):
        return one_hot(_numbers([sum(int(offs.entry(e)) <= row for e in range(groups)) for row in range(n)]), groups)
    return one_hot(_found(offs, variable("group", (n,), below=groups)), groups)


def rows(a: Any, numbers: Any, axes: int) -> Any:
    """The entries of `a` that have these numbers, where its first `axes` axes are numbered through."""
    if not isinstance(a, Array):
        return a.flatten(0, axes - 1)[numbers]
    lengths = tuple(map(sympify, a.shape[:axes]))

    def entry(*index: Any) -> Expr:
        number = numbers.entry(*index[: numbers.ndim])
        if not fits(number, Mul(*lengths)):
            raise OutOfRange(f"{number} need not lie in 0 … {Mul(*lengths)} - 1")
        return a.entry(*(Digit(number, axis, *lengths) for axis in range(axes)), *index[numbers.ndim :])

    return Array(numbers.shape + a.shape[axes:], entry)


def collect(values: Any, numbers: Any, lengths: tuple[Any, ...]) -> Any:
    """Each row of `values` added to the entry that has its number, in zeros of shape ``(*lengths, …)``."""
    if not isinstance(values, Array):
        count = 1
        for n in lengths:
            count = count * n
        zeros = values.new_zeros(count, *values.shape[1:])
        return zeros.index_add(0, numbers, values).unflatten(0, lengths)
    axes, shape = len(lengths), tuple(map(sympify, lengths))

    def entry(row: Any, *index: Any) -> Expr:
        digits = (Digit(numbers.entry(row), axis, *shape) for axis in range(axes))
        here = Mul(*(KroneckerDelta(digit, sympify(i)) for digit, i in zip(digits, index, strict=False)))
        return here * values.entry(row, *index[axes:]) if here != 0 else S.Zero

    return Array((values.shape[0], *lengths, *values.shape[1:]), entry).sum(axis=0)

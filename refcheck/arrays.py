"""Arrays of symbolic shape, on which a layer's forward and backward run as they stand.

An `Array` has a shape of SymPy expressions and an entry for each index; ``+``, ``mean`` or `einsum` make new entries.
The names below (`einsum`, `exp`, …) accept torch tensors as well, so one text serves the proof and the comparison with
torch.  Constants are written with `exact`: a float for torch, an exact number for the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from operator import methodcaller
from typing import Any
from zlib import crc32

import sympy
from sympy import Expr, Function, IndexedBase, Integer, KroneckerDelta, Rational, S, Symbol, sympify

from refcheck.sums import Index, OutOfRange, fits, fresh, sigma

Shape = tuple[Expr | int, ...]


class Step(Function):
    """1 where the argument is positive, else 0; its derivative is 0 wherever it has one."""

    nargs = 1

    @classmethod
    def eval(cls, x: Expr) -> Expr | None:
        if x.is_number and x.is_real:
            return Integer(bool(x > 0))
        for factor in sympy.Mul.make_args(x):  # x·[x > 0] > 0 exactly where x > 0
            if isinstance(factor, Step) and x == factor.args[0] * factor:
                return factor
        return None

    def fdiff(self, argindex: int = 1) -> Expr:
        return S.Zero

    def _eval_power(self, exponent: Expr) -> Expr | None:
        return self if exponent.is_positive else None


class Sigmoid(Function):
    """σ(x) = 1/(1 + e⁻ˣ), with σ' = σ(1 - σ), which `refcheck.layers.relu` proves from the definition."""

    nargs = 1

    def fdiff(self, argindex: int = 1) -> Expr:
        return self * (1 - self)

    def _eval_evalf(self, precision: int) -> Expr:
        return (1 / (1 + sympy.exp(-self.args[0])))._eval_evalf(precision)


class Drawn(Function):
    """0 or 1: what a generator draws from a state, the first arguments, for one entry; no gradient flows into it."""

    @classmethod
    def eval(cls, *args: Expr) -> Expr | None:
        return Integer(crc32(str(args).encode()) % 2) if all(a.is_Rational for a in args) else None

    def fdiff(self, argindex: int = 1) -> Expr:
        return S.Zero


class Exact(float):
    """A float that remembers which number it is meant to be."""

    value: Expr


def exact(text: str) -> Exact:
    """The number written in `text`, e.g. ``exact("sqrt(2/pi)")``: a float to torch, exact in a proof."""
    value = sympify(text, rational=True)
    number = Exact(value)
    number.value = value
    return number


def _scalar(x: Any) -> Expr:
    if isinstance(x, Exact):
        return x.value
    if isinstance(x, float):
        raise TypeError(f"{x} is rounded and can't stand in a proof: write the constant with exact('…')")
    return sympify(x)


def _broadcast(a: Shape, b: Shape) -> Shape:
    n = max(len(a), len(b))
    pairs = list(zip((1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b, strict=True))
    if any(p != q and 1 not in (p, q) for p, q in pairs):
        raise ValueError(f"shapes {a} and {b} do not broadcast")
    return tuple(q if p == 1 else p for p, q in pairs)


@dataclass(frozen=True, eq=False)
class Array:
    """An array: `shape`, and `entry(*index)`, a SymPy expression for each index."""

    shape: Shape
    entry: Callable[..., Expr]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def at(self, *index: Expr | int) -> Expr:
        """The entry at an index that is checked against the shape; raises IndexError."""
        if len(index) != self.ndim or not all(
            fits(sympify(i), sympify(n)) for i, n in zip(index, self.shape, strict=True)
        ):
            raise IndexError(f"{index} is no index of an array of shape {self.shape}")
        return self.entry(*index)

    def __getitem__(self, integers: Array) -> Array:
        """The rows that `integers` names: shape ``(*integers.shape, *self.shape[1:])``, as ``W[tokens]``."""
        n = integers.ndim

        def entry(*index: Expr | int) -> Expr:
            row = integers.entry(*index[:n])
            if not fits(row, sympify(self.shape[0])):
                raise OutOfRange(f"{row} need not lie in 0 … {self.shape[0]} - 1")
            return self.entry(row, *index[n:])

        return Array(integers.shape + self.shape[1:], entry)

    def _each(self, f: Callable[[Expr], Expr]) -> Array:
        return Array(self.shape, lambda *i: f(self.entry(*i)))

    def _with(self, other: Any, f: Callable[[Expr, Expr], Expr]) -> Array:
        if not isinstance(other, Array):
            value = _scalar(other)
            return self._each(lambda a: f(a, value))
        shape = _broadcast(self.shape, other.shape)
        return Array(shape, lambda *i: f(self._seen(i), other._seen(i)))

    def _seen(self, index: tuple[Any, ...]) -> Expr:
        """My entry at an index of an array that I am broadcast to."""
        mine = index[len(index) - self.ndim :]
        return self.entry(*(0 if n == 1 else i for i, n in zip(mine, self.shape, strict=True)))

    def __add__(self, o: Any) -> Array:
        return self._with(o, lambda a, b: a + b)

    def __sub__(self, o: Any) -> Array:
        return self._with(o, lambda a, b: a - b)

    def __rsub__(self, o: Any) -> Array:
        return self._with(o, lambda a, b: b - a)

    def __mul__(self, o: Any) -> Array:
        return self._with(o, lambda a, b: a * b)

    def __truediv__(self, o: Any) -> Array:
        return self._with(o, lambda a, b: a / b)

    def __rtruediv__(self, o: Any) -> Array:
        return self._with(o, lambda a, b: b / a)

    def __pow__(self, o: Any) -> Array:
        return self._with(o, lambda a, b: a**b)

    def __neg__(self) -> Array:
        return self._each(lambda a: -a)

    def __gt__(self, zero: int) -> Array:
        return (self - zero)._each(Step)

    __radd__, __rmul__ = __add__, __mul__

    def exp(self) -> Array:
        return self._each(sympy.exp)

    def log(self) -> Array:
        return self._each(sympy.log)

    def erf(self) -> Array:
        return self._each(sympy.erf)

    def tanh(self) -> Array:
        return self._each(sympy.tanh)

    def sigmoid(self) -> Array:
        return self._each(Sigmoid)

    def cos(self) -> Array:
        return self._each(sympy.cos)

    def sin(self) -> Array:
        return self._each(sympy.sin)

    @property
    def real(self) -> Array:
        return self._each(sympy.re)

    @property
    def imag(self) -> Array:
        return self._each(sympy.im)

    def sqrt(self) -> Array:
        return self._each(sympy.sqrt)

    def rsqrt(self) -> Array:
        return self._each(lambda a: a ** Rational(-1, 2))

    def sum(self, axis: int | tuple[int, ...], keepdims: bool = False) -> Array:
        """Σ over one axis or several; written out where the length is an int of Python's, symbolic otherwise."""
        axes = {a % self.ndim for a in (axis if isinstance(axis, tuple) else (axis,))}
        kept = [a for a in range(self.ndim) if a not in axes]
        shape = tuple(1 if a in axes else n for a, n in enumerate(self.shape) if keepdims or a not in axes)

        def entry(*index: Expr | int) -> Expr:
            outer = dict(zip(range(self.ndim) if keepdims else kept, index, strict=True))
            return _total(
                lambda inner: self.entry(*({**outer, **inner}[a] for a in range(self.ndim))), self.shape, axes
            )

        return Array(shape, entry)

    def unbind(self, axis: int) -> tuple[Array, ...]:
        """The parts along an axis whose length is a number."""
        at = axis % self.ndim
        shape = self.shape[:at] + self.shape[at + 1 :]
        return tuple(
            Array(shape, lambda *i, n=n: self.entry(*i[:at], Integer(n), *i[at:])) for n in range(int(self.shape[at]))
        )

    def mean(self, axis: int, keepdims: bool = False) -> Array:
        return self.sum(axis, keepdims) * (S.One / self.shape[axis])


def _total(entry: Callable[[dict[Any, Any]], Expr], lengths: Any, over: Any) -> Expr:
    """Σ of entry({axis: index}) over the axes in `over`."""
    total_over: list[Index] = []
    choices: list[dict[Any, Any]] = [{}]
    for axis in sorted(over):
        if isinstance(lengths[axis], int):
            choices = [{**c, axis: Integer(i)} for c in choices for i in range(lengths[axis])]
        else:
            total_over.append(index := fresh(lengths[axis]))
            choices = [{**c, axis: index} for c in choices]
    return sigma(sympy.Add(*(entry(c) for c in choices)), total_over)


def variable(name: str, shape: Shape, below: Expr | None = None) -> Array:
    """An array of independent entries ``name[i, j, …]``; with `below`, of integers in ``0 … below - 1``."""
    if not shape:
        return Array((), lambda: Symbol(name))
    base = IndexedBase(name, integer=True) if below is not None else IndexedBase(name)
    base.below = below
    return Array(shape, lambda *i: base[i])


def einsum(spec: str, *operands: Any) -> Any:
    """Einstein summation, as torch.einsum; `spec` names every index and has an arrow."""
    if not all(isinstance(o, Array) for o in operands):
        import torch

        return torch.einsum(spec, *operands)
    inputs, output = spec.split("->")
    lengths: dict[str, Expr | int] = {}
    for letters, operand in zip(inputs.split(","), operands, strict=True):
        for letter, n in zip(letters, operand.shape, strict=True):
            if lengths.setdefault(letter, n) != n:
                raise ValueError(f"einsum {spec}: {letter} is both {lengths[letter]} and {n}")

    def entry(*index: Expr | int) -> Expr:
        outer = dict(zip(output, index, strict=True))

        def term(inner: dict[Any, Any]) -> Expr:
            at = {**outer, **inner}
            factors = []
            for s, o in zip(inputs.split(","), operands, strict=True):
                factors.append(o.entry(*(at[c] for c in s)))
                if factors[-1] == 0:
                    return S.Zero
            return sympy.Mul(*factors)

        return _total(term, lengths, set(lengths) - set(output))

    return Array(tuple(lengths[c] for c in output), cache(entry))


def stack(parts: Sequence[Any], axis: int) -> Any:
    """Parts of one shape along a new axis, as torch.stack."""
    first = parts[0]
    if not isinstance(first, Array):
        import torch

        return torch.stack(tuple(parts), axis)
    at = axis % (first.ndim + 1)

    def entry(*index: Expr | int) -> Expr:
        n, rest = sympify(index[at]), (*index[:at], *index[at + 1 :])
        return sympy.Add(*(KroneckerDelta(n, k) * part.entry(*rest) for k, part in enumerate(parts)))

    return Array((*first.shape[:at], Integer(len(parts)), *first.shape[at:]), entry)


def one_hot(integers: Any, length: Any) -> Any:
    """1 where the last axis, of this length, is at the integer; else 0."""
    if isinstance(integers, Array):
        return Array((*integers.shape, length), lambda *i: KroneckerDelta(integers.entry(*i[:-1]), sympify(i[-1])))
    import torch

    return (integers[..., None] == torch.arange(length, device=integers.device)).double()


def copies(x: Any, number: Any, axis: int) -> Any:
    """`x` so many times over, along a new axis."""
    if isinstance(x, Array):
        shape = (*x.shape[:axis], number, *x.shape[axis:])
        return Array(shape, lambda *i: x.entry(*i[:axis], *i[axis + 1 :]))
    return x.unsqueeze(axis).repeat_interleave(number, axis)


def differs(integers: Any, number: Any) -> Any:
    """1 where an integer is not this number, else 0."""
    if isinstance(integers, Array):
        return integers._each(lambda i: S.One - KroneckerDelta(i, number))
    return (integers != number).double()


def rsqrt(x: Any) -> Any:
    """1/sqrt(x), of an array or of a size."""
    if isinstance(x, Expr):
        return x ** Rational(-1, 2)
    return x.rsqrt() if hasattr(x, "rsqrt") else exact(f"1/sqrt({x})")


def power(x: Any, exponent: str) -> Any:
    """A size to an exact power, as ``power(d, "-1/4")``."""
    return x ** Rational(exponent) if isinstance(x, Expr) else exact(f"{x}**({exponent})")


def drawn(state: Any, shape: Shape) -> Any:
    """Zeros and ones that are a function of a random state: drawn again from it, they are the same.

    Only the kernel can draw them, so to torch the state is the mask itself, as it was read back.
    """
    if isinstance(state, Array):
        numbers = list(product(*map(range, state.shape)))
        return Array(shape, lambda *i: Drawn(*(state.entry(*n) for n in numbers), *i))
    return state.double()


exp, log, erf, tanh, sigmoid, sqrt = map(methodcaller, ("exp", "log", "erf", "tanh", "sigmoid", "sqrt"))

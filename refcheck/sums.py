"""A normal form for finite sums, in which two gradients can be compared.

An expression here is built from entries such as ``x[i, j]``, the four operations, elementary functions and finite sums
``Σ_{0 <= i < n}`` whose lengths ``n`` are symbols.  Two expressions that are equal by the following rules, and by no
others, get the same normal form:

* products distribute over sums of terms, and Σ is linear;
* a factor that does not contain the index leaves its Σ;
* Σ_i δ(i, c) f(i) = f(c), when c is provably in the range of i (otherwise `OutOfRange` is raised);
* Σ_i 1 = n;
* nested finite sums commute, and a bound index may be renamed.

Nothing is evaluated at particular sizes, so an equality found here holds for every B, T, D, ….
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, groupby, permutations, product
from math import prod
from typing import Any

from sympy import (
    Add,
    Dummy,
    Expr,
    Function,
    Indexed,
    Integer,
    KroneckerDelta,
    Mul,
    Pow,
    S,
    Sum,
    Symbol,
    exp,
    expand,
    fraction,
    sympify,
    together,
)

_serial = count()


class OutOfRange(ValueError):
    """An index is used where its range does not provably fit: the formula is not defined for every size."""


class Index(Symbol):
    """An integer symbol that carries its range: ``0 <= index < length``."""

    length: Expr

    def __new__(cls, name: str, length: Expr | int) -> Index:
        self = Symbol.__xnew__(cls, name, integer=True)
        self.length = sympify(length)
        return self

    def _hashable_content(self) -> tuple[Any, ...]:
        return (*super()._hashable_content(), self.length)


class Digit(Function):
    """The index along one axis of the entry that has a number, entries being numbered row by row.

    ``Digit(number, axis, *shape)``: with the shape (B, T), axis 1 of the number b·T + t is t.
    """

    is_integer = True

    @classmethod
    def eval(cls, number: Expr, axis: Expr, *shape: Expr) -> Expr | None:
        if not all(n.is_Integer for n in (number, *shape)):
            return None
        return Integer(int(number) // prod(map(int, shape[int(axis) + 1 :])) % int(shape[int(axis)]))


def fresh(length: Expr | int) -> Index:
    """An index of this length that occurs nowhere else."""
    return Index(f"i{next(_serial)}", length)


def sigma(body: Expr, indices: Iterable[Index]) -> Expr:
    """Σ of `body` over the whole range of each index."""
    limits = [(i, S.Zero, i.length - 1) for i in indices]
    return Sum(body, *limits) if limits else body


def fits(index: Expr, length: Expr) -> bool:
    """Whether ``0 <= index < length`` follows from what is declared, for every size."""
    if isinstance(index, Index):
        return index.length == length
    if isinstance(index, Indexed):  # integer data, such as a token: its array says below which number it stays
        return getattr(index.base, "below", None) == length
    if isinstance(index, Digit):
        number, axis, *shape = index.args
        return shape[int(axis)] == length and fits(number, Mul(*shape))
    return bool(index.is_nonnegative and (length - 1 - index).is_nonnegative)


def normal(expression: Expr) -> Expr:
    """The normal form of `expression`.  Raises `OutOfRange` where a δ selects an entry that need not exist."""
    return Add(*(_close(factors, indices) for factors, indices in _terms(sympify(expression))))


def difference(a: Expr, b: Expr) -> Expr:
    """0 if a and b are equal for every size and every entry; otherwise what is left of a − b in normal form."""
    left = normal(a - b)
    if left == 0:
        return S.Zero
    sums = {s: Dummy() for s in left.atoms(Sum)}  # the outermost are replaced first by xreplace
    numerator = fraction(together(left.xreplace(sums)))[0]
    numerator = numerator.xreplace({dummy: s for s, dummy in sums.items()})
    return S.Zero if normal(expand(numerator)) == 0 else left


# A term is a list of factors and the set of indices it is summed over.
Term = tuple[list[Expr], tuple[Index, ...]]


def _terms(e: Expr) -> Iterator[Term]:
    """`e` as a sum of terms; each occurrence of a Σ gets indices of its own."""
    if isinstance(e, Add):
        for part in e.args:
            yield from _terms(part)
    elif isinstance(e, Mul):
        yield from _multiply(e.args)
    elif isinstance(e, Pow) and e.exp.is_Integer and e.exp > 0 and not isinstance(e.base, (Symbol, Indexed)):
        yield from _multiply([e.base] * int(e.exp))
    elif isinstance(e, exp) and isinstance(e.exp, Add):
        yield from _multiply([exp(part) for part in e.exp.args])
    elif isinstance(e, Sum):
        renamed = {bound: fresh(bound.length) for bound in e.variables}
        for factors, indices in _terms(e.function.xreplace(renamed)):
            yield factors, (*indices, *renamed.values())
    else:
        atom = _atom(e)
        if atom != e and isinstance(atom, (Add, Mul, Sum)):  # 1/(Σa / Σb) has become Σb · 1/Σa
            yield from _terms(atom)
        else:
            yield [atom], ()


def _multiply(factors: Iterable[Expr]) -> Iterator[Term]:
    for choice in product(*(tuple(_terms(f)) for f in factors)):
        yield [f for term in choice for f in term[0]], tuple(i for term in choice for i in term[1])


def _atom(e: Expr) -> Expr:
    """What is not a sum or a product of others stays whole, its arguments in normal form."""
    if e.is_Atom or isinstance(e, (Indexed, KroneckerDelta)):
        return e
    return e.func(*(normal(a) for a in e.args))


def _close(factors: list[Expr], indices: tuple[Index, ...]) -> Expr:
    """One term: its δ used up, constant factors outside, each connected Σ by itself under standard names."""
    factors = [f for factor in factors for f in Mul.make_args(factor)]
    factors, bound = _collapse(factors, list(indices))
    out = [i.length for i in bound if not any(f.has(i) for f in factors)]  # Σ_i 1 = n
    out.append(_product(f for f in factors if not any(f.has(i) for i in bound)))
    out += [_rename(part, over) for part, over in _components(factors, bound)]
    return Mul(*out)


def _product(factors: Iterable[Expr]) -> Expr:
    """The product, its exponentials in one."""
    factors = list(factors)
    exponent = Add(*(f.exp for f in factors if isinstance(f, exp)))
    return Mul(exp(exponent), *(f for f in factors if not isinstance(f, exp)))


def _collapse(factors: list[Expr], bound: list[Index]) -> tuple[list[Expr], list[Index]]:
    """Σ_i δ(i, c) f(i) = f(c), for as long as there is such a δ."""
    for n, delta in enumerate(factors):
        if not isinstance(delta, KroneckerDelta):
            continue
        for i, c in (delta.args, delta.args[::-1]):
            if i in bound:
                if not fits(c, i.length):
                    raise OutOfRange(f"{c} need not lie in 0 … {i.length} - 1")
                rest = [f.xreplace({i: c}) for f in factors[:n] + factors[n + 1 :]]
                if any(f == 0 for f in rest):
                    return [S.Zero], []
                return _collapse([_atom(f) for f in rest], [j for j in bound if j != i])
    return factors, bound


def _components(factors: list[Expr], bound: list[Index]) -> Iterator[tuple[list[Expr], list[Index]]]:
    """Groups of factors that share no bound index: Σ_i Σ_j a(i) b(j) is a product of two sums."""
    groups: list[tuple[list[Expr], set[Index]]] = []
    for f in factors:
        mine, over, others = [f], {i for i in bound if f.has(i)}, []
        if not over:
            continue
        for group, indices in groups:
            if indices & over:
                mine, over = group + mine, indices | over
            else:
                others.append((group, indices))
        groups = [*others, (mine, over)]
    for group, indices in groups:
        yield group, [i for i in bound if i in indices]


def _rename(factors: list[Expr], over: list[Index]) -> Expr:
    """A Σ under standard names: of all ways to name its indices, the one that reads first."""
    inner = [int(i.name[1:].split("_")[0]) for f in factors for i in f.atoms(Index) if i.name.startswith("_")]
    depth = max(inner, default=-1) + 1  # above every Σ inside, so that no name is captured
    body = _product(factors)
    by_length = [list(same) for _, same in groupby(sorted(over, key=_length), key=_length)]
    candidates = []
    for order in product(*(permutations(same) for same in by_length)):
        flat = [i for same in order for i in same]
        names = [Index(f"_{depth}_{n}", i.length) for n, i in enumerate(flat)]
        candidates.append((body.xreplace(dict(zip(flat, names, strict=True))), names))
    renamed, names = min(candidates, key=lambda c: str(c[0]))
    return sigma(renamed, names)


def _length(index: Index) -> str:
    return str(index.length)

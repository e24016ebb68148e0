"""Which gradient reads which kept tensor, and which inputs a kept tensor is made from: watched, never written down.

Entries of an `Array` are lazy.  So a pair's functions are run on arrays that note when they are looked at, and an entry
of the result shows what it takes to make it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from sympy import Expr, Indexed, S, sympify

from refcheck.arrays import Array, variable
from refcheck.spec import Pair
from refcheck.sums import fresh

Edges = Mapping[str, tuple[str, ...]]


@cache
def reads(pair: Pair) -> Edges:
    """Of each gradient the kept tensors that its entries are made of, in the order of `pair.needed`."""
    output, saved, _ = pair.symbolic
    upstream = pair.upstream({name: variable(f"d{name}", y.shape) for name, y in pair.outputs(output).items()})
    wanted = [name for name, i in pair.inputs.items() if i.differentiable]

    def gradient(x: str) -> Callable[[dict[str, Any]], Array]:
        return lambda watched: pair.backward(upstream, watched)[x]

    return {x: _seen(saved, gradient(x)) for x in wanted}


@cache
def made_from(pair: Pair) -> Edges:
    """Of each kept tensor the inputs that its entries are made of; of one that is an input, this input."""
    _, _, inputs = pair.symbolic
    scalars = dict(zip(pair.scalars, (sympify(name) for name in pair.scalars), strict=True))

    def made(kept: str) -> Callable[[dict[str, Any]], Array]:
        return lambda watched: pair.forward(**watched, **scalars)[1][kept]

    def idle(kept: str) -> set[str]:
        """Inputs that are looked at for their dtype only, as x in x·0 + 1: no entry mentions them."""
        entry = _entry(pair.symbolic[1][kept])
        mentioned = {str(i.base) for i in entry.atoms(Indexed)} | {str(s) for s in entry.free_symbols}
        return {name for name, i in pair.inputs.items() if i.continuous} - mentioned

    return {k: tuple(n for n in _seen(inputs, made(k)) if n not in idle(k)) for k in pair.needed}


def _seen(arrays: Mapping[str, Any], make: Callable[[dict[str, Any]], Array]) -> tuple[str, ...]:
    """The names of those arrays that are looked at when one entry of what is made of them is worked out."""
    seen: set[str] = set()

    def watch(name: str, array: Array) -> Array:
        def entry(*index: Any) -> Any:
            seen.add(name)
            return array.entry(*index)

        return Array(array.shape, entry)

    made = make({name: watch(name, a) if isinstance(a, Array) else a for name, a in arrays.items()})
    _entry(made)
    return tuple(name for name in arrays if name in seen)


def _entry(a: Array) -> Expr:
    """An entry of it, any."""
    return sympify(a.entry(*(S.Zero if n == 1 else fresh(n) for n in a.shape)))

"""Proves that a pair's backward is the derivative of its forward, and that torch computes the same.

Three opinions, each able to refuse:

* `symbolic`: on arrays of symbolic shape, for every B, T, D, … at once (`refcheck.sums`);
* `explicit`: on small matrices of explicit size, with SymPy's own `diff` and no sums of symbolic length;
* `against_torch`: in float64, the output and the gradients of each implementation.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from sympy import Expr, I, Indexed, Integer, Rational, Symbol, diff, sympify

from refcheck.arrays import Array, variable
from refcheck.sizes import at_sizes, d
from refcheck.spec import Implementation, Input, Layer, Pair, Uncompilable, absence, call
from refcheck.sums import difference, fresh, normal

# Sizes of the explicit matrices: small, pairwise different, none that hides a missing factor.
SMALL = {"B": 2, "T": 2, "D": 3, "h": 4, "d": 3, "M": 4, "V": 5, "g": 2, "R": 2, "E": 3, "k": 2}
DIGITS = 50
SAMPLE = 6  # entries of each gradient, drawn at random

EVERY_SIZE, SMALL_MATRICES = "every size", "small matrices"


@dataclass(frozen=True)
class Finding:
    """One thing that was tried: of which pair, by which opinion, about which gradient; `wrong` is empty if it holds."""

    layer: str
    pair: str
    opinion: str
    about: str
    wrong: str
    seconds: float

    @property
    def holds(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        verdict = f"WRONG: {self.wrong}" if self.wrong else "holds"
        return f"{self.layer} {self.pair} | {self.about} | {self.opinion} | {verdict}"


class Read(dict[str, Any]):
    """A saved dict that remembers which of its keys were read."""

    def __init__(self, saved: Mapping[str, Any]) -> None:
        super().__init__(saved)
        self.keys_read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(f"backward reads s[{key!r}], which forward does not save")
        self.keys_read.add(key)
        return super().__getitem__(key)


def prove(layer: Layer) -> Iterator[Finding]:
    """Everything that can be tried about a layer's pairs and implementations."""
    for pair in layer.pairs:
        yield from symbolic(layer.id, pair)
        yield from explicit(layer.id, pair)
    for implementation in layer.implementations:
        yield from against_torch(layer.id, implementation)


def symbolic(layer: str, pair: Pair) -> Iterator[Finding]:
    """``∂(Σ dy·y)/∂x[k] = backward(dy)["x"][k]`` for each input x, at every size; and no saved key is unread."""
    output, saved, inputs = pair.symbolic
    outputs = pair.outputs(output)
    upstream = {name: variable(f"d{name}", y.shape) for name, y in outputs.items()}
    read = Read(saved)
    gradients, wrong, seconds = _timed(lambda: pair.backward(pair.upstream(upstream), read))
    yield Finding(layer, pair.id, EVERY_SIZE, "reads all it saves", wrong or _unread(read, pair, gradients), seconds)
    if wrong or not all(isinstance(gradient, Array) for gradient in gradients.values()):
        return
    loss = sum((upstream[name] * y).sum(axis=tuple(range(y.ndim))).entry() for name, y in outputs.items())
    for name, x in inputs.items():
        if name in gradients:
            index = tuple(fresh(n) for n in x.shape)
            claimed = gradients[name]
            left, wrong, seconds = _timed(lambda: _compare(loss, x, claimed, index))  # noqa: B023
            yield Finding(layer, pair.id, EVERY_SIZE, f"d{name}", wrong or left, seconds)


def _compare(loss: Expr, x: Array, claimed: Array, index: tuple[Any, ...]) -> str:
    if claimed.shape != x.shape:
        return f"its shape is {claimed.shape}, that of the input {x.shape}"
    left = difference(normal(diff(loss, x.entry(*index))), claimed.entry(*index))
    return f"derivative of forward minus backward = {left}" if left != 0 else ""


def _unread(read: Read, pair: Pair, gradients: Mapping[str, Array]) -> str:
    """What is wrong with the saved set and the list of gradients; entries are lazy, so each is looked at once."""
    if loose := [name for name, gradient in gradients.items() if not isinstance(gradient, Array)]:
        return f"gradients that are no arrays: {', '.join(loose)}"
    for gradient in gradients.values():
        gradient.entry(*(fresh(n) for n in gradient.shape))
    if unread := set(read) - read.keys_read:
        return f"saved but never read by backward: {', '.join(sorted(unread))}"
    wanted = {name for name, i in pair.inputs.items() if i.differentiable}
    if wanted != set(gradients):
        return f"gradients of {sorted(gradients)} instead of {sorted(wanted)}"
    return ""


def explicit(layer: str, pair: Pair) -> Iterator[Finding]:
    """The same at one explicit size: SymPy's `diff` of the loss, written out, at random rationals to 50 digits."""
    sizes = small(pair)
    below = {name: at_sizes(i.below, sizes) for name, i in pair.inputs.items() if i.below is not None}
    rng = random.Random(0)
    lengths = {name: _lengths(i.shape, sizes) for name, i in pair.inputs.items()}
    inputs = {n: _drawn(at, below[n], rng) if n in below else variable(n, at) for n, at in lengths.items()}
    scalars = {name: Rational(str(value)) for name, value in pair.scalars.items()}
    output, saved = pair.forward(**inputs, **scalars)
    outputs = pair.outputs(output)
    upstream = {name: variable(f"d{name}", y.shape) for name, y in outputs.items()}
    gradients = pair.backward(pair.upstream(upstream), saved)
    loss = [term for name, y in outputs.items() for term in _every(upstream[name] * y).values()]
    mentioned = [(term, term.atoms(Indexed, Symbol)) for term in loss]
    scalar = {a.entry() for a in (*upstream.values(), *inputs.values()) if not a.ndim}
    free = sorted({e for term in loss for e in term.free_symbols if e.is_Indexed or e in scalar}, key=str)
    values = {e: _random(rng) for e in free}
    planar = {name for name, i in pair.inputs.items() if i.dtype == "complex64"}
    values |= {e: x + I * _random(rng) for e, x in values.items() if e.is_Indexed and e.base.name in planar}
    for name, gradient in gradients.items():
        started = time.perf_counter()
        entries = _every(inputs[name])
        wrong = ""
        for index, e in rng.sample(list(entries.items()), min(SAMPLE, len(entries))):
            slope = sum(diff(term, e) for term, its in mentioned if e in its)
            error = abs(sympify(slope - gradient.entry(*index)).xreplace(values).evalf(DIGITS))
            if not error < 10 ** (10 - DIGITS):
                wrong = f"entry {list(index)} differs by {float(error):.3g} at sizes {sizes}"
                break
        yield Finding(layer, pair.id, SMALL_MATRICES, f"d{name}", wrong, time.perf_counter() - started)


def _drawn(shape: tuple[int, ...], below: int, rng: random.Random) -> Array:
    """Whole numbers from 0 to below - 1."""
    numbers = {index: Integer(rng.randrange(below)) for index in product(*map(range, shape))}
    return Array(shape, lambda *index: numbers[tuple(map(int, index))])


def _random(rng: random.Random) -> Expr:
    """A value for an entry."""
    return Rational(rng.choice((-1, 1)) * rng.randint(1, 99), rng.randint(50, 99))


def small(pair: Pair) -> Mapping[str, int]:
    """The sizes of a pair's explicit matrices; a head that is cut in halves is twice as long."""
    halved = any(n == d / 2 for i in pair.inputs.values() for n in i.shape)
    return {**SMALL, "d": 2 * SMALL["d"]} if halved else SMALL


def _lengths(shape: tuple[Any, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(at_sizes(n, sizes) for n in shape)


def _every(a: Array) -> dict[tuple[int, ...], Expr]:
    """Every entry of an array of explicit size."""
    return {i: a.entry(*i) for i in product(*(range(int(n)) for n in a.shape))}


def against_torch(layer: str, implementation: Implementation) -> Iterator[Finding]:
    """In float64 on the CPU: the pair's output is torch's, the pair's gradients are autograd's."""
    import torch

    for pair in implementation.pairs:
        run_here = None if absence(implementation, "cpu", "float64", torch.__version__) else implementation.run
        told = {name: at_sizes(of, SMALL) for name, of in implementation.told.items()}
        for run in filter(None, (run_here, implementation.like)):
            opinion = f"float64, {implementation.id}" + (f" like {run.__name__}" if run is implementation.like else "")
            started = time.perf_counter()
            try:
                found = list(_against(run, pair, implementation.recover, told))
            except Uncompilable:
                continue  # `measure` says so
            for about, wrong in found:
                yield Finding(layer, pair.id, opinion, about, wrong, time.perf_counter() - started)


def _against(run: Any, pair: Pair, recover: Any, told: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    import torch

    from refcheck.graph import explore

    torch.manual_seed(0)
    sizes = small(pair)
    inputs = {
        name: example(
            replace(i, dtype=None) if i.continuous else i, _lengths(i.shape, sizes), at_sizes(i.below or 1, sizes)
        )
        for name, i in pair.inputs.items()
        if not i.drawn
    }
    wanted = [x.requires_grad_() for name, x in inputs.items() if pair.inputs[name].differentiable]
    clones = {name: x.clone() for name, x in inputs.items()}  # it may write in place
    y = call(run, clones | dict(pair.scalars) | dict(told) | {"dtype": "float64"})
    theirs = pair.outputs(y)
    kept = {h.tensor.dtype for h in explore(o.grad_fn for o in theirs.values() if o.grad_fn is not None).holders}
    drawn = recover(*theirs.values(), **inputs) if recover else {}
    output, saved = pair.forward(**{k: v.detach() for k, v in inputs.items()}, **drawn, **pair.scalars)
    in_float32 = torch.float32 in kept | {o.dtype for o in theirs.values()}  # some code casts to it by itself
    precision = 1e-5 if in_float32 else 1e-10
    for name, mine in pair.outputs(output).items():
        yield name, _unequal(mine, theirs[name], precision)
    upstream = {name: torch.randn_like(o) for name, o in theirs.items()}
    gradients = pair.backward(pair.upstream(upstream), saved)
    torch.autograd.backward(list(theirs.values()), list(upstream.values()))  # a reentrant checkpoint refuses `grad`
    expected = [x.grad for x in wanted]
    for name, gradient in zip((n for n in inputs if pair.inputs[n].differentiable), expected, strict=True):
        yield (
            f"d{name}",
            "autograd gives no gradient" if gradient is None else _unequal(gradients[name], gradient, precision),
        )


def example(i: Input, shape: Sequence[Any], below: Any, device: str = "cpu", dtype: str = "float64") -> Any:
    """A random tensor for an input: normal without zeros, or 0 and 1, or whole numbers; a mask hides no whole row."""
    import torch

    if i.dtype == "bool":
        return torch.ones(*shape, dtype=torch.bool, device=device).tril()
    if i.dtype == "int64":
        return torch.randint(below, tuple(shape), device=device)
    x = torch.randn(*shape, dtype=getattr(torch, i.dtype or dtype), device=device)
    return x + (x == 0)  # no zeros, so that a zero in an output is a mask's


def _unequal(mine: Any, theirs: Any, precision: float) -> str:
    import torch

    if mine.shape != theirs.shape:
        return f"shape {tuple(mine.shape)} instead of {tuple(theirs.shape)}"
    error = (mine - theirs).abs().max().item()
    close = torch.allclose(mine, theirs.double(), rtol=precision, atol=precision)
    return "" if close else f"differs from torch by up to {error:.3g}"


def _timed(f: Any) -> tuple[Any, str, float]:
    """(result, what went wrong, seconds); whatever a pair raises refutes it."""
    started = time.perf_counter()
    try:
        return f(), "", time.perf_counter() - started
    except Exception as error:
        return None, f"{type(error).__name__}: {error.args[0] if error.args else error}", time.perf_counter() - started

"""Runs one implementation in one environment and lists what autograd kept.

* ``cpu``: real tensors, at several sizes;
* ``cuda-trace``: PyTorch's CUDA dispatch path on fake tensors of symbolic size; no GPU is needed, a CUDA build is;
* ``cuda``: a real GPU, at several sizes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial, reduce
from operator import add, mul
from typing import Any

import torch
from sympy import Expr, Symbol, expand, sympify
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from refcheck import Problem
from refcheck.fold import folds, same_elements
from refcheck.observe import Given, Kept, observe
from refcheck.prove import example
from refcheck.saved import Run, Saved
from refcheck.sizes import at_sizes
from refcheck.spec import Input, Measured, call

# Sizes for real tensors.  In the first two no two lengths agree and none divides the other by chance; the last is the
# smallest there is.
SIZES: tuple[Mapping[str, int], ...] = (
    {"B": 2, "T": 5, "D": 12, "h": 3, "d": 4, "M": 28, "V": 31},
    {"B": 3, "T": 7, "D": 10, "h": 2, "d": 5, "M": 26, "V": 37},
    {"B": 1, "T": 1, "D": 6, "h": 1, "d": 6, "M": 16, "V": 11},
)
# Hints for symbolic sizes: above 1, or torch pins them; all different, or it takes two for one.
HINTS = {"B": 3, "T": 10, "D": 24, "h": 4, "d": 6, "M": 96, "V": 101}


class Unavailable(Problem):
    """This environment can't be had here; the message says why and what to do."""


def available(device: str) -> None:
    """Raises `Unavailable` if `device` can't be measured here."""
    if device == "cuda-trace" and torch.version.cuda is None:
        raise Unavailable(
            f"cuda-trace needs a CUDA build of torch (no GPU), and this is torch {torch.__version__}, built without: "
            "install the CUDA build, or measure --device cpu"
        )
    if device == "cuda-trace" and not _traces():
        raise Unavailable(
            f"cuda-trace without a GPU makes torch {torch.__version__} abort: "
            "use torch 2.14.1, or a machine with a GPU, or measure --device cpu"
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise Unavailable(
            "cuda needs a GPU, and torch sees none here: run it on a GPU machine, or use --device cuda-trace"
        )


PROBE = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    x = torch.randn(2, 3, 4, device="cuda", requires_grad=True)
    torch.nn.functional.linear(x, torch.randn(5, 4, device="cuda", requires_grad=True))
"""


@cache
def _traces() -> bool:
    """Whether fake CUDA tensors work here; in some versions without a driver they abort the process, so ask another."""
    if torch.cuda.is_available() or tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14):
        return True
    return subprocess.run([sys.executable, "-c", PROBE], capture_output=True).returncode == 0


def measure(measured: Measured, device: str, dtype: str) -> tuple[Run, ...]:
    """Every run of an implementation in this environment and dtype.  Raises `Unavailable`, `observe.Disagreement`."""
    available(device)
    if device == "cuda-trace":
        return (_traced(measured, dtype),)
    return tuple(_real(measured, device, dtype, sizes) for sizes in SIZES)


def _traced(measured: Measured, dtype: str) -> Run:
    shape_env = ShapeEnv()
    known: dict[Symbol, Symbol] = {}

    class Lengths(dict[Symbol, Any]):
        """torch's symbolic integer for each of our symbols, made when it is first asked for."""

        def __missing__(self, symbol: Symbol) -> Any:
            name, source = symbol.name, ConstantSource(symbol.name)
            theirs = shape_env.create_symbol(HINTS[name], source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
            known[theirs] = symbol
            self[symbol] = shape_env.create_symintnode(theirs, hint=HINTS[name], source=source)
            return self[symbol]

    lengths = Lengths()

    def size(n: Expr) -> Any:
        return _evaluate(n, lengths)

    def plain(n: Any) -> Expr:
        return expand(n.node.expr.xreplace(known)) if isinstance(n, torch.SymInt) else sympify(n)

    with FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=False):
        kept = observe(_build(measured, "cuda", dtype, size), "cuda")
        claimed = measured.claim("cuda", dtype)
        names = _labels(kept, claimed, plain)
        saved = tuple(_saved(k, plain, names.get(n, "?")) for n, k in enumerate(kept))
    pinned = [f"{known.get(a, a)} = {b.xreplace(known)}" for a, b in shape_env.replacements.items()]
    if pinned:
        raise Unavailable(f"tracing pinned a size, so the result would not hold for all: {', '.join(pinned)}")
    return Run({}, saved, tuple(sorted({str(g.expr.xreplace(known)) for g in shape_env.guards})))


def _evaluate(n: Expr, lengths: Mapping[Symbol, Any]) -> Any:
    """A sum or product of sizes, in symbolic integers of torch's."""
    if n.is_Symbol:
        return lengths[n]
    if n.is_Integer:
        return int(n)
    return reduce(mul if n.is_Mul else add, (_evaluate(a, lengths) for a in n.args))


def _labels(kept: Iterable[Kept], claimed: Iterable[Saved], plain: Callable[[Any], Expr]) -> dict[int, str]:
    """A claimed name for what is found at a claimed place, in a claimed shape; fake tensors have no values to go by."""
    left, names = list(claimed), {}
    for n, k in enumerate(kept):
        found = _saved(k, plain, "?")
        ranked = sorted(left, key=partial(_unlikeness, found=found))
        if best := next((s for s in ranked if set(s.holders) & set(found.holders)), None):
            left.remove(best)
            names[n] = best.name
    return names


def _unlikeness(s: Saved, found: Saved) -> int:
    """How badly a claimed tensor fits what is found; axes that are merged in order fit better than axes exchanged."""
    merged = same_elements(s.shape, found.shape) + folds(s.shape, found.shape)
    return -3 * merged - 2 * (s.holders == found.holders) - (s.dtype == found.dtype)


def _real(measured: Measured, device: str, dtype: str, sizes: Mapping[str, int]) -> Run:
    def size(n: Expr) -> int:
        return at_sizes(n, sizes)

    build = _build(measured, device, dtype, size)
    kept = observe(build, device)
    outputs, givens = build()  # the same once more, for the values
    values = measured.values(device, outputs, {g.name: g.tensor.detach() for g in givens})
    claimed = [replace(s, shape=tuple(sympify(size(n)) for n in s.shape)) for s in measured.claim(device, dtype)]
    names = _labels(kept, claimed, sympify)
    saved = tuple(_saved(k, sympify, _recognise(k, values, names.get(n, "?"))) for n, k in enumerate(kept))
    return Run(dict(sizes), saved)


def _build(measured: Measured, device: str, dtype: str, size: Callable[[Expr], Any]) -> Callable[[], Any]:
    """A forward on inputs that nobody else holds: each is a clone, so that its survival proves that it is kept."""
    inputs = measured.inputs(device)

    def build() -> tuple[list[Any], list[Given]]:
        torch.manual_seed(0)
        given = {n: _tensor(i, device, dtype, size) for n, i in inputs.items() if not i.drawn}
        given = {n: t.requires_grad_().clone() if inputs[n].differentiable else t for n, t in given.items()}
        outputs = measured.outputs(call(measured.run, {**given, **measured.scalars}))
        return list(outputs.values()), [Given(n, inputs[n].cls, t) for n, t in given.items()]

    return build


def _tensor(i: Input, device: str, dtype: str, size: Callable[[Expr], Any]) -> torch.Tensor:
    return example(i, [size(sympify(n)) for n in i.shape], size(sympify(i.below or 1)), device, dtype)


def _recognise(kept: Kept, values: Mapping[str, Any], claimed: str) -> str:
    """The name of a kept tensor: that of the input it is, or of the saved value that it equals, entry by entry.

    Where several are equal, or there is none (a Python number, a block), the claimed name of its place decides.
    """
    if kept.names:
        return kept.names[0]
    if kept.cls == "number" or not values:
        return claimed
    equal = [name for name, value in values.items() if _equal(kept.holders[0].tensor.detach(), value)]
    return claimed if claimed in equal else next(iter(equal), "?")


def _equal(seen: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether two tensors hold the same entries in any order, up to the precision of the first."""
    got, want = (t.double().flatten().sort().values for t in (seen, value))
    precision = torch.finfo(seen.dtype).eps if seen.dtype.is_floating_point else 0.0
    return got.shape == want.shape and bool((got - want).abs().max() <= 8 * precision * want.abs().max())


def _saved(kept: Kept, plain: Callable[[Any], Expr], name: str) -> Saved:
    first, *others = kept.holders
    return Saved(
        name=kept.names[0] if kept.names else name,
        node=first.node,
        attr=first.attr,
        shape=tuple(plain(n) for n in first.tensor.shape),
        dtype=str(first.tensor.dtype).removeprefix("torch."),
        nbytes=plain(kept.nbytes),
        cls=kept.cls,
        shared_with=(*map(str, others), *(["output"] if kept.is_output else [])),
    )

"""Runs one implementation in one environment and lists what autograd kept.

* ``cpu``: real tensors, at several sizes;
* ``cuda-trace``: PyTorch's CUDA dispatch path on fake tensors of symbolic size; no GPU is needed, a CUDA build is;
* ``cuda``: a real GPU, at several sizes.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial, reduce
from operator import add, mul, truediv
from typing import Any
from unittest.mock import patch

import torch
from sympy import Expr, Symbol, ceiling, expand, sympify
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.functions import CeilToInt, IntTrueDiv

from refcheck import Problem, gpu
from refcheck.close import close
from refcheck.fold import folds, same_elements
from refcheck.observe import Given, Kept, observe
from refcheck.prove import example
from refcheck.saved import Run, Saved
from refcheck.sizes import at_sizes, d, g, h
from refcheck.spec import Input, Measured, call

# Sizes for real tensors.  In the first two no two lengths agree and none divides the other by chance; the last is the
# smallest there is.
SIZES: tuple[Mapping[str, int], ...] = (
    {"B": 2, "T": 5, "D": 72, "h": 12, "d": 6, "M": 28, "V": 31, "g": 3, "R": 8, "E": 9, "k": 4},
    {"B": 3, "T": 7, "D": 40, "h": 10, "d": 4, "M": 26, "V": 37, "g": 2, "R": 9, "E": 8, "k": 5},
    {"B": 1, "T": 1, "D": 6, "h": 1, "d": 6, "M": 16, "V": 11, "g": 1, "R": 1, "E": 2, "k": 1},
)
# On a GPU: attention's kernels pad other heads and masks, or refuse them, and what they then keep is not claimed yet.
UNPADDED = {"d": 8, "T": 8}
# Hints for symbolic sizes: above 1, or torch pins them; all different, or it takes two for one.
HINTS = {
    "B": 3,
    "T": 10,
    "D": 24,
    "h": 4,
    "d": 6,
    "M": 96,
    "V": 101,
    "g": 5,
    "R": 7,
    "E": 13,
    "k": 2,
    "h/g": 8,
    "d/2": 11,
    "D/8": 14,
    "M/8": 12,
}


class Unavailable(Problem):
    """This environment can't be had here; the message says why and what to do."""


class Pinned(Unavailable):
    """Tracing took a size for a number, so what it shows need not hold for others."""


class Failed(Problem):
    """A row that ought to run on this GPU raised an error; the message is its first line."""


class Untraceable(Unavailable):
    """This version of torch can't run it on symbolic sizes."""


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
    if device == "cuda":
        try:
            gpu.prepare()
        except Problem as problem:
            raise Unavailable(str(problem)) from None


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
    """Every run of an implementation in this environment and dtype.

    Raises `Unavailable`; `observe.Disagreement` and `join.Unexplained` if what is kept can't be told; on a GPU
    `gpu.Unfit` if it can't run this row, `gpu.Lost` if nothing runs any more.
    """
    available(device)
    if device == "cuda-trace":
        try:
            return (_traced(measured, dtype),)
        except (Pinned, RuntimeError):  # as `matmul` in C++ does up to 2.11 at least; in Python it doesn't
            return (_traced_in_python(measured, dtype),)
    at = sizes_of(measured, device)
    if device == "cpu":
        return tuple(_real(measured, device, dtype, sizes) for sizes in at)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            return tuple(_real(measured, device, dtype, sizes) for sizes in at)
        except RuntimeError as error:
            told = [str(w.message) for w in heard]
            why = gpu.unfit(error, told) or Failed("; ".join([gpu.first_line(error), *told[:4]]))
    raise why


def sizes_of(measured: Measured, device: str) -> list[dict[str, int]]:
    """The sizes at which an implementation is measured, one run each; none where they are symbols."""
    multiples = {**(UNPADDED if device == "cuda" else {}), **measured.multiples}
    return [{}] if device == "cuda-trace" else [_whole(sizes, multiples) for sizes in SIZES]


def _traced_in_python(measured: Measured, dtype: str) -> Run:
    """The same operators, those that are made of others run in Python, which keeps sizes symbolic."""
    try:
        with enable_python_dispatcher():
            return _traced(measured, dtype)
    except RuntimeError as error:
        raise Untraceable(f"torch {torch.__version__} can't trace it: {str(error).splitlines()[0]}") from error


def _whole(sizes: Mapping[str, int], multiples: Mapping[str, int]) -> dict[str, int]:
    """The sizes, each rounded up to what the code can take."""
    return {n: -(-value // (step := multiples.get(n, 1))) * step for n, value in sizes.items()}


def _traced(measured: Measured, dtype: str) -> Run:
    shape_env = ShapeEnv()
    known: dict[Symbol, Expr] = {}

    class Lengths(dict[Expr, Any]):
        """torch's symbolic integer for each of our sizes, made when it is first asked for."""

        def __missing__(self, symbol: Expr) -> Any:
            step = measured.multiples.get(str(symbol), 1)  # 8·(D/8), where D must be a multiple of 8
            name = str(symbol) if step == 1 else f"{symbol}/{step}"
            source = ConstantSource(name)
            theirs = shape_env.create_symbol(HINTS[name], source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
            known[theirs] = MEANT.get(symbol, symbol / step)
            self[symbol] = step * shape_env.create_symintnode(theirs, hint=HINTS[name], source=source)
            return self[symbol]

    lengths = Lengths()
    axes = [sympify(n) for i in measured.inputs("cuda").values() for n in i.shape]
    products = {h: g * GROUP} if any(n.has(g) for n in axes) else {}
    products |= {d: 2 * HALF} if d / 2 in axes else {}

    def size(n: Expr) -> Any:
        return _evaluate(n.subs(products), lengths)  # so that nothing is ever divided

    def plain(n: Any) -> Expr:
        return expand(_in_sympy(n.node.expr).xreplace(known)) if isinstance(n, torch.SymInt) else sympify(n)

    with _no_gpu(), FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=False):
        claimed = measured.claim("cuda-trace", dtype)
        kept = observe(_build(measured, "cuda", dtype, size), "cuda", _past_autograd(claimed))
        names = _labels(kept, claimed, plain)
        saved = tuple(_saved(k, plain, names.get(n, "?")) for n, k in enumerate(kept))
    pinned = [f"{known.get(a, a)} = {b.xreplace(known)}" for a, b in shape_env.replacements.items()]
    if pinned:
        raise Pinned(f"tracing pinned a size, so the result would not hold for all: {', '.join(pinned)}")
    return Run({}, saved, tuple(sorted({str(g.expr.xreplace(known)) for g in shape_env.guards})))


def _no_gpu() -> Any:
    """Hides the GPU, if there is one: a trace shows the same on every machine, and no kernel is chosen by a card."""
    return patch.multiple("torch.cuda", is_available=lambda: False, _initialized=False)


GROUP = Symbol("h/g", integer=True, positive=True)  # how many heads share a key and a value
HALF = Symbol("d/2", integer=True, positive=True)  # a head in two halves
MEANT = {GROUP: h / g, HALF: d / 2}


def _in_sympy(n: Expr) -> Expr:
    """An expression of torch's, its own functions for rounding up replaced by SymPy's."""
    return n.replace(CeilToInt, ceiling).replace(IntTrueDiv, truediv)


def _evaluate(n: Expr, lengths: Mapping[Expr, Any]) -> Any:
    """A sum or product of sizes, in symbolic integers of torch's."""
    if n.is_Symbol:
        return lengths[n]
    if n.is_Integer:
        return int(n)
    return reduce(mul if n.is_Mul else add, (_evaluate(a, lengths) for a in n.args))


def _labels(kept: Iterable[Kept], claimed: Iterable[Saved], plain: Callable[[Any], Expr]) -> dict[int, str]:
    """A claimed name for what is found at a claimed place, in a claimed shape; fake tensors have no values to go by."""
    kept, names = tuple(kept), {}
    given = {name for k in kept for name in k.names}  # an input is known as what it is
    left = [s for s in claimed if s.name not in given]
    for n, k in ((n, k) for n, k in enumerate(kept) if not k.names):
        found = _saved(k, plain, "?")
        ranked = sorted(left, key=partial(_unlikeness, found=found))
        if best := next((s for s in ranked if set(s.holders) & set(found.holders)), None):
            left.remove(best)
            names[n] = best.name
    return names


def _unlikeness(s: Saved, found: Saved) -> int:
    """How badly a claimed tensor fits what is found; axes that are merged in order fit better than axes exchanged."""
    merged = same_elements(s.shape, found.shape) + folds(s.shape, found.shape)
    return -3 * merged - 4 * (s.holders == found.holders) - (s.dtype == found.dtype)


def _real(measured: Measured, device: str, dtype: str, sizes: Mapping[str, int]) -> Run:
    def size(n: Expr) -> int:
        return at_sizes(n, sizes)

    build = _build(measured, device, dtype, size)
    kept = observe(build, device, _past_autograd(measured.claim(device, dtype)))
    allocator = close(build, device, kept)
    outputs, givens = build()  # the same once more, for the values
    values = measured.values(device, outputs, {g.name: g.tensor.detach() for g in givens})
    claimed = [replace(s, shape=tuple(sympify(size(n)) for n in s.shape)) for s in measured.claim(device, dtype)]
    names = _labels(kept, claimed, sympify)
    saved = tuple(_saved(k, sympify, _recognise(k, values, names.get(n, "?"), dtype)) for n, k in enumerate(kept))
    return Run(dict(sizes), saved, allocator=allocator)


def _past_autograd(claimed: Iterable[Saved]) -> frozenset[str]:
    """The places claimed to hold a tensor that autograd doesn't know of: attributes of a ctx, frames of checkpoints."""
    return frozenset(place for s in claimed for place in s.holders if ".ctx." in place or " unpack." in place)


def _build(measured: Measured, device: str, dtype: str, size: Callable[[Expr], Any]) -> Callable[[], Any]:
    """A forward on inputs that nobody else holds: each is a clone, so that its survival proves that it is kept."""
    inputs = measured.inputs(device)

    def build() -> tuple[list[Any], list[Given]]:
        torch.manual_seed(0)
        given = {n: _tensor(i, device, dtype, size) for n, i in inputs.items() if not i.drawn}
        given = {n: _with_gradient(inputs[n], t) if inputs[n].differentiable else t for n, t in given.items()}
        told = {n: size(sympify(of)) for n, of in measured.told.items()}
        outputs = measured.outputs(call(measured.run, {**given, **measured.scalars, **told, "dtype": dtype}))
        return list(outputs.values()), [Given(n, inputs[n].cls, t) for n, t in given.items()]

    return build


def _with_gradient(i: Input, t: torch.Tensor) -> torch.Tensor:
    """A leaf for a parameter, as in a model: autocast caches its copies of those only.  Else what nobody else holds."""
    return t.requires_grad_() if i.cls == "parameter" else t.requires_grad_().clone()


def _tensor(i: Input, device: str, dtype: str, size: Callable[[Expr], Any]) -> torch.Tensor:
    return example(i, [size(sympify(n)) for n in i.shape], size(sympify(i.below or 1)), device, dtype)


def _recognise(kept: Kept, values: Mapping[str, Any], claimed: str, dtype: str) -> str:
    """The name of a kept tensor: that of the input it is, or of the saved value that it equals, entry by entry.

    Where several are equal, or the claimed one has no value to compare (a Python number, a random state, a block, what
    no formula needs), the claimed name of its place decides; what was computed in the coarser `dtype`, or summed, may
    differ from it by as much.
    """
    if kept.names:
        return kept.names[0]
    if kept.cls == "number" or (claimed not in values and claimed != "?") or not values:
        return claimed
    seen = kept.holders[0].tensor.detach()
    fine, coarse = (8 * torch.finfo(t).eps if t.is_floating_point else 0.0 for t in (seen.dtype, getattr(torch, dtype)))
    equal = [name for name, value in values.items() if _equal(seen, value, fine)]
    if equal:
        return claimed if claimed in equal else equal[0]
    agrees = claimed in values and _equal(seen, values[claimed], max(fine, coarse, SUMS) if fine else 0.0)
    return claimed if agrees else "?"


SUMS = 1e-5  # how closely a sum over a whole vocabulary agrees in fp32


def _equal(seen: torch.Tensor, value: torch.Tensor, precision: float) -> bool:
    """Whether two tensors hold the same entries in any order, up to a part of the largest."""
    got, want = (t.double().flatten().sort().values for t in (seen, value))
    return got.shape == want.shape and bool((got - want).abs().max() <= precision * want.abs().max())


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

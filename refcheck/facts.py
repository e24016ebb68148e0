"""Statements that a program can test: what the article says (`says_…`), and facts about the claims and the formulas.

A `says_…` judges the article's words by what the formulas and the implementations do; a fact holds or it does not.
Names of tensors are given in one string, in the notation of the code: ``"x mean rstd"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial, wraps
from typing import Any, ParamSpec

from sympy import Expr, symbols

from refcheck.block import Block, Composed
from refcheck.blocks import BLOCKS
from refcheck.layers import LAYERS
from refcheck.prove import SMALL, example, symbolic
from refcheck.saved import Saved
from refcheck.sizes import D, at_sizes, d, h
from refcheck.spec import Implementation, Layer, absence, call, claim

VERDICTS = ("right", "depends", "imprecise", "wrong")  # from the mildest to the gravest
DEVICES = ("cuda", "cpu")
SIZES = {name: symbols(name, integer=True, positive=True) for name in SMALL}
PARAMS = ParamSpec("PARAMS")


@dataclass(frozen=True)
class Fact:
    """A statement that holds, or something else does: `instead` says what, and is empty if it holds."""

    text: str
    instead: Callable[[], str]


@dataclass(frozen=True)
class Says:
    """What the article says, in the names of the code; `judge` gives the verdict, and what it rests on."""

    text: str
    judge: Callable[[], tuple[str, str]]


def fact(test: Callable[PARAMS, str]) -> Callable[PARAMS, Fact]:
    """Calling the function states the fact; it is tested later."""

    @wraps(test)
    def stated(*args: PARAMS.args, **named: PARAMS.kwargs) -> Fact:
        return Fact(_text(test, args, named), partial(test, *args, **named))

    return stated


def says(judge: Callable[PARAMS, tuple[str, str]]) -> Callable[PARAMS, Says]:
    """Calling the function states what the article says; it is judged later."""

    @wraps(judge)
    def stated(*args: PARAMS.args, **named: PARAMS.kwargs) -> Says:
        return Says(_text(judge, args, named), partial(judge, *args, **named))

    return stated


def _text(function: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> str:
    """The call as it is written in the data."""
    shown = [*map(_value, args), *(f"{name}={_value(value)}" for name, value in named.items())]
    return f"{function.__name__}({', '.join(shown)})"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"dict({', '.join(f'{k}={_value(v)}' for k, v in value.items())})"
    return f"({', '.join(map(_value, value))})" if isinstance(value, tuple) else f'"{value}"'


# --- what the article says ------------------------------------------------------------------------------------------


@says
def says_saved(
    layer: str, *alternatives: str, of: str = "", among: str = "", called: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """One of the alternatives is what is kept, of the tensors in `among` if it is given.

    `called` gives what the article calls a tensor, where one word stands for two.  Right if all implementations keep
    the one alternative; wrong if none keeps any; imprecise if an alternative is open that none keeps; else it depends.
    """
    kept = {}
    for where, names in _kept(layer, of).items():
        names = frozenset((called or {}).get(n, n) for n in names)
        kept[where] = names & set(among.split()) if among else names
    offered, real = {frozenset(a.split()) for a in alternatives}, set(kept.values())
    found = "; ".join(f"{where} keeps {_names(names)}" for where, names in kept.items())
    if not offered & real:
        return "wrong", found
    if offered - real:
        return "imprecise", found
    return ("right" if len(real) == 1 else "depends"), found


@says
def says_shapes(layers: str, of: str = "", called: Mapping[str, str] | None = None, **shapes: str) -> tuple[str, str]:
    """These tensors are kept, in these shapes, axes of length 1 apart.

    Right if every one is kept by all implementations of one of the layers; it depends if only by some; imprecise if
    one has this shape and nobody keeps it; wrong if it has another.
    """
    graver, found = "right", []
    for name, shape in shapes.items():
        names = {name} | {n for n, article in (called or {}).items() if article == name}
        verdict = how = ""
        wanted = _axes(tuple(SIZES[s] for s in shape.split()))
        if actual := {s for layer in layers.split() for n in names for s in _shapes(layer, n)} - {wanted}:
            verdict, how = "wrong", f"is of shape {actual}"
        else:
            share = [[bool(names & kept) for kept in _kept(layer, of).values()] for layer in layers.split()]
            verdict = "right" if any(map(all, share)) else "depends" if any(map(any, share)) else "imprecise"
            how = {"right": "kept", "depends": "kept by some", "imprecise": "not kept"}[verdict]
        graver = max(graver, verdict, key=VERDICTS.index)
        found.append(f"{name} {how}")
    return graver, ", ".join(found)


@says
def says_formula(layer: str, implementation: str, **formulas: str | tuple[str, ...]) -> tuple[str, str]:
    """Each formula gives what torch computes, in float64: an output, a gradient ``d…``, or a tensor in between.

    Several formulas for one tensor are readings of the article's one: imprecise if only some are equal.
    """
    import torch
    import torch.nn.functional as F

    values = _values(layer, implementation)
    graver, found = "right", []
    for name, readings in formulas.items():
        equal = []
        for reading in (readings,) if isinstance(readings, str) else readings:
            value = eval(reading, {**vars(torch), **vars(F), **values})
            equal.append(value.shape == values[name].shape and torch.allclose(value, values[name]))
            found.append(f"{name} {'=' if equal[-1] else '≠'} {reading}")
        verdict = "right" if all(equal) else "imprecise" if any(equal) else "wrong"
        graver = max(graver, verdict, key=VERDICTS.index)
    return graver, "; ".join(found)


@says
def says_indispensable(layer: str, name: str) -> tuple[str, str]:
    """Without this tensor no formula gives the gradient: wrong if a pair of the layer does without it."""
    without = [pair.id for pair in _layer(layer).pairs if name not in pair.needed]
    return ("wrong" if without else "right"), f"pairs that do without {name}: {', '.join(without) or 'none'}"


# --- facts ----------------------------------------------------------------------------------------------------------


@fact
def keeps(layer: str, implementation: str, device: str, names: str) -> str:
    """It keeps these tensors and no others, parameters and Python numbers apart."""
    (kept,) = (k for where, k in _kept(layer, implementation).items() if where.endswith(device))
    return "" if kept == set(names.split()) else f"it keeps {_names(kept)}"


@fact
def never_keeps(layer: str, names: str, of: str = "") -> str:
    """No op of torch, or none of these implementations, keeps any of these for this layer, on no device."""
    found = {where: kept & set(names.split()) for where, kept in _kept(layer, of).items()}
    return "; ".join(f"{where} keeps {_names(kept)}" for where, kept in found.items() if kept)


@fact
def held_by(layer: str, implementation: str, name: str, place: str) -> str:
    """On CUDA the tensor is kept, and this node and attribute hold it; or it is the ``output`` too."""
    saved = {s.name: s for s in _claim(layer, implementation, "cuda")}
    if name not in saved:
        return f"{name} is not kept"
    return "" if place in saved[name].holders else f"held by {', '.join(sorted(saved[name].holders))}"


@fact
def dtype(layer: str, implementation: str, device: str, name: str, kind: str) -> str:
    """The dtype in which a tensor is kept when activations are bf16."""
    kinds = {s.name: s.dtype for s in _claim(layer, implementation, device)}
    return "" if kinds.get(name) == kind else f"kept as {kinds.get(name, 'nothing at all')}"


@fact
def needs(layer: str, pair: str, names: str) -> str:
    """The backward of this pair reads these tensors, parameters included, and no others."""
    (chosen,) = (p for p in _layer(layer).pairs if p.id == pair)
    return "" if set(chosen.needed) == set(names.split()) else f"it needs {_names(set(chosen.needed))}"


@fact
def proven(layer: str, pair: str) -> str:
    """The pair's backward is the derivative of its forward, at every size."""
    return _refuted(layer, pair)


# --- where they look ------------------------------------------------------------------------------------------------


def _layer(name: str) -> Layer:
    return {layer.id: layer for layer in LAYERS}[name]


def _implementations(name: str) -> Mapping[str, Implementation | Composed]:
    every: tuple[Layer | Block, ...] = (*LAYERS, *BLOCKS)
    return {i.id: i for i in {layer.id: layer for layer in every}[name].implementations}


def _claim(layer: str, implementation: str, device: str) -> tuple[Saved, ...]:
    return claim(_implementations(layer)[implementation], device, "bfloat16")


def _kept(layer: str, of: str = "") -> dict[str, frozenset[str]]:
    """What is kept, by implementation and device; of torch's own ops, if it isn't said of which."""
    own = [name for name, i in _implementations(layer).items() if not getattr(i, "like", None)]
    return {
        f"{name} {device}": frozenset(
            s.name for s in _claim(layer, name, device) if s.cls not in ("parameter", "number")
        )
        for name in of.split() or own
        for device in DEVICES
        if not absence(_implementations(layer)[name], device, "bfloat16")
    }


def _names(names: frozenset[str] | set[str]) -> str:
    return " ".join(sorted(names)) or "nothing"


def _axes(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(n.subs(D, h * d) for n in shape if n != 1)


def _shapes(layer: str, name: str) -> set[tuple[Expr, ...]]:
    """The shapes that a tensor of this name has in the formulas of the layer."""
    found = [
        {**inputs, **saved, **pair.outputs(output)}
        for pair in _layer(layer).pairs
        for output, saved, inputs in [pair.symbolic]
    ]
    return {_axes(values[name].shape) for values in found if name in values}


@cache
def _values(layer: str, implementation: str) -> Mapping[str, Any]:
    """One run in float64 at small sizes: inputs, scalars, saved tensors, outputs, and the gradients of all, as d…."""
    import torch

    torch.manual_seed(0)
    (chosen,) = (i for i in _layer(layer).implementations if i.id == implementation)
    pair = chosen.cpu.pair
    shapes = {n: tuple(at_sizes(size, SMALL) for size in i.shape) for n, i in pair.inputs.items()}
    inputs = {n: example(i, shapes[n], at_sizes(i.below or 1, SMALL)) for n, i in pair.inputs.items() if not i.drawn}
    wanted = {n: x.requires_grad_() for n, x in inputs.items() if pair.inputs[n].differentiable}
    outputs = pair.outputs(call(chosen.run, {**inputs, **pair.scalars}))
    drawn = chosen.recover(*outputs.values(), **inputs) if chosen.recover else {}
    _, saved = pair.forward(**inputs, **drawn, **pair.scalars)
    upstream = {n: torch.randn_like(y) for n, y in outputs.items()}
    gradients = torch.autograd.grad([*outputs.values()], [*wanted.values()], [*upstream.values()])
    slopes = {f"d{n}": g for n, g in [*upstream.items(), *zip(wanted, gradients, strict=True)]}
    return {**SMALL, **pair.scalars, **saved, **inputs, **drawn, **outputs, **slopes}


@cache
def _refuted(layer: str, pair: str) -> str:
    (chosen,) = (p for p in _layer(layer).pairs if p.id == pair)
    return "; ".join(str(finding) for finding in symbolic(layer, chosen) if not finding.holds)

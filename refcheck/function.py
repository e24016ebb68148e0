"""A pair as a `torch.autograd.Function`: a saved set that no op of torch offers can be run and measured too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import refcheck.spec as spec


def as_function(pair: spec.Pair, name: str, kept_in: Mapping[str, str] | None = None) -> Callable[..., Any]:
    """``run(**inputs, **scalars)`` that computes `pair.forward` and keeps its saved dict, and nothing else.

    With `kept_in` it computes in float64, as kernels do in float32, and rounds its outputs and what it keeps to the
    activation's dtype, or to the one that `kept_in` names.
    """
    import torch

    rounds = kept_in is not None
    plain = [key for key, i in pair.inputs.items() if i.dtype is None]

    def wide(value: Any) -> Any:
        return value.double() if rounds and isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def narrow(value: Any, to: torch.dtype) -> Any:
        return value.to(to) if rounds and isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def forward(ctx: Any, scalars: dict[str, float], *inputs: Any) -> Any:
        given = dict(zip(pair.inputs, inputs, strict=True))
        widened = {key: wide(value) for key, value in given.items()}
        output, saved = pair.forward(**widened, **scalars)
        if rounds:
            to = given[plain[0]].dtype
            dtypes = {} if to is torch.float64 else {k: getattr(torch, kind) for k, kind in (kept_in or {}).items()}
            own = {id(value): given[key] for key, value in widened.items()}
            saved = {key: own.get(id(value), narrow(value, dtypes.get(key, to))) for key, value in saved.items()}
            output = narrow(output, to)
        ctx.names = [key for key, value in saved.items() if isinstance(value, torch.Tensor)]
        ctx.numbers = {key: value for key, value in saved.items() if key not in ctx.names}
        ctx.save_for_backward(*(saved[key] for key in ctx.names))
        return output

    def backward(ctx: Any, upstream: Any) -> tuple[Any, ...]:
        saved = {key: wide(value) for key, value in zip(ctx.names, ctx.saved_tensors, strict=True)} | ctx.numbers
        gradients = pair.backward(wide(upstream), saved)
        return (None, *(narrow(gradients.get(key), upstream.dtype) for key in pair.inputs))

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(name, (torch.autograd.Function,), body)

    def run(**given: Any) -> Any:
        scalars = {key: given.pop(key) for key in pair.scalars}
        return function.apply(scalars, *(given[key] for key in pair.inputs))

    return run


def written_out(
    pair: spec.Pair,
    name: str,
    title: Mapping[str, str],
    like: Callable[..., Any],
    kept_in: Mapping[str, str] | None = None,
) -> spec.Implementation:
    """The pair itself as an implementation, under the pair's id, that must compute what the op `like` does."""

    def run(**given: Any) -> Any:
        return as_function(pair, name, kept_in)(**given)

    at = {key: f"{name}Backward.saved_tensors[{n}]" for n, key in enumerate(pair.needed)}
    dtypes = {key: i.dtype for key, i in pair.inputs.items() if key in at and i.dtype} | dict(kept_in or {})
    saves = spec.Saves(pair, at, dtypes)
    return spec.Implementation(pair.id, title, run, cpu=saves, cuda=saves, like=like)

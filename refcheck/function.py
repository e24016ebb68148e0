"""A pair as a `torch.autograd.Function`: a saved set that no op of torch offers can be run and measured too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import refcheck.spec as spec


def as_function(pair: spec.Pair, name: str) -> Callable[..., Any]:
    """``run(**inputs, **scalars)`` that computes `pair.forward` and keeps its saved dict, and nothing else."""
    import torch

    def forward(ctx: Any, scalars: dict[str, float], *inputs: Any) -> Any:
        output, saved = pair.forward(**dict(zip(pair.inputs, inputs, strict=True)), **scalars)
        ctx.names = [key for key, value in saved.items() if isinstance(value, torch.Tensor)]
        ctx.numbers = {key: value for key, value in saved.items() if key not in ctx.names}
        ctx.save_for_backward(*(saved[key] for key in ctx.names))
        return output

    def backward(ctx: Any, upstream: Any) -> tuple[Any, ...]:
        saved = dict(zip(ctx.names, ctx.saved_tensors, strict=True)) | ctx.numbers
        gradients = pair.backward(upstream, saved)
        return (None, *(gradients.get(key) for key in pair.inputs))

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(name, (torch.autograd.Function,), body)

    def run(**given: Any) -> Any:
        scalars = {key: given.pop(key) for key in pair.scalars}
        return function.apply(scalars, *(given[key] for key in pair.inputs))

    return run


def written_out(pair: spec.Pair, name: str, title: Mapping[str, str], like: Callable[..., Any]) -> spec.Implementation:
    """The pair itself as an implementation, under the pair's id, that must compute what the op `like` does."""

    def run(**given: Any) -> Any:
        return as_function(pair, name)(**given)

    at = {key: f"{name}Backward.saved_tensors[{n}]" for n, key in enumerate(pair.needed)}
    dtypes = {key: i.dtype for key, i in pair.inputs.items() if key in at and i.dtype}
    saves = spec.Saves(pair, at, dtypes)
    return spec.Implementation(pair.id, title, run, cpu=saves, cuda=saves, like=like)

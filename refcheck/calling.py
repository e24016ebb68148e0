"""Calls a reader's case, and says in one line what stopped it and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_leaves

from refcheck import Problem
from refcheck.trace import Device


def call(case: Callable[..., Any], device: Device, dtype: torch.dtype, arguments: Mapping[str, Any]) -> Any:
    """(output tensors, parameters) of a case.  Raises `Problem`."""
    if not torch.is_grad_enabled():
        raise Problem(
            "gradients are switched off around the audit, so nothing is saved: leave no_grad or inference_mode"
        )
    name = getattr(case, "__name__", repr(case))
    try:
        returned = case(device, dtype, **arguments)
    except Problem:
        raise
    except Exception as error:
        raise Problem(f"{name} {_where(error)}{_why(error)}") from error
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise Problem(
            f"{name} returned {_kind(returned)}: a case returns (outputs, params), params being a list, if need be []"
        )
    outputs = [t for t in tree_leaves(returned[0]) if isinstance(t, torch.Tensor)]
    params = returned[1].parameters() if isinstance(returned[1], torch.nn.Module) else returned[1]
    params = [params] if isinstance(params, torch.Tensor) else list(params or [])
    if not outputs:
        raise Problem(
            f"{name} returned no tensor as its output, but {_kind(returned[0])}: return the loss or the output"
        )
    if not any(o.requires_grad for o in outputs):
        raise Problem(
            f"no output of {name} has a gradient, so no graph is kept: let an input or a parameter require grad, and "
            "don't detach the output or run under no_grad"
        )
    if not all(isinstance(p, torch.Tensor) for p in params):
        raise Problem(f"{name} returned params that are no tensors: return a list of parameters, or a module")
    return outputs, params


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _where(error: BaseException) -> str:
    own = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if "/torch/" not in f.filename and "/refcheck/" not in f.filename
    ]
    return f"(line {own[-1].lineno} of {own[-1].filename}) " if own else ""


def _why(error: Exception) -> str:
    """What stopped a case, and what to do."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return (
            f"uses a value or a size that depends on data ({text}), which cuda-trace can't know: give it as a number, "
            "compare instead of selecting, or audit with --device cpu or cuda"
        )
    if (
        isinstance(error, UnsupportedOperatorException)
        or "fake impl" in text
        or "Meta" in text
        or "meta kernel" in text
    ):
        return (
            f"uses an operator that fake tensors can't run ({text}): register a fake kernel for it "
            "(torch.library.register_fake), or audit with --device cpu or cuda"
        )
    if "SymInt" in text or "SymFloat" in text:
        return (
            f"gives a symbol where only a number will do ({text}): name only sizes of what a model gets, as batch and "
            "length, and keep those of its modules numbers"
        )
    if "hasPrimaryContext" in text:
        return (
            "runs a backward, or compiles one, which fake CUDA tensors can't without a GPU: return the loss before "
            "backward, or audit with --device cpu or cuda"
        )
    if "no NVIDIA driver" in text:
        return f"asks for a GPU itself ({text}), and there is none: audit with --device cpu, or cuda on a GPU machine"
    if isinstance(error, torch.OutOfMemoryError) or "not enough memory" in text:
        return f"ran out of memory ({text}): give smaller sizes, or use --device cuda-trace, which allocates nothing"
    return f"raised {type(error).__name__}: {text}"

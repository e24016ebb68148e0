"""Where a reader's code runs: real devices as they are, and PyTorch's CUDA dispatch path on fake tensors.

Two things would quietly be another run without a GPU.  `torch.autocast("cuda")` switches itself off: here it is told
that the device can do it.  `F.scaled_dot_product_attention` falls back to its math path: where the reader has chosen
another one with `sdpa_kernel` it is called by name, else the fallback is noted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from refcheck import Problem

FELL_BACK = "scaled_dot_product_attention fell back to its math path: no fused kernel takes these arguments here"
NO_CHOICE = (
    "scaled_dot_product_attention ran its math path, as there is no GPU to choose another, which may keep less: choose "
    "with torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION), or MATH if that is meant"
)


class Device(str):
    """A device as code in the wild asks for it: ``device == "cuda"``, `torch.autocast(device)`, ``device.type``."""

    @property
    def type(self) -> str:
        return str(self)


@contextmanager
def running(traced: bool, notes: list[str], shape_env: Any = None) -> Iterator[Callable[[Any], None]]:
    """Runs a block, on fake CUDA tensors if `traced`; adds to `notes` a line for whatever quietly ran otherwise.

    `shape_env` is where symbolic sizes are made, if any are symbols.

    Gives what is to be called with every operator that runs.
    """
    caught: list[warnings.WarningMessage] = []
    try:
        with ExitStack() as stack:
            heard = stack.enter_context(warnings.catch_warnings(record=True))
            caught = heard if heard is not None else caught
            warnings.simplefilter("always")
            if traced:
                _pretend_gpu(stack, shape_env)
            yield lambda operator: _heed(operator, traced, notes)
    finally:
        for w in caught:
            text = str(w.message)
            if "autocast" in text.lower() and "disabl" in text.lower():
                _add(notes, f"autocast switched itself off: {text.splitlines()[0]}")
            else:
                warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)


def _pretend_gpu(stack: ExitStack, shape_env: Any) -> None:
    """Fake tensors, and the few answers of torch that would differ with a GPU."""
    mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True, shape_env=shape_env))
    memo = mode.fake_tensor_converter.meta_converter.tensor_memo
    swap, sdpa = torch.utils.swap_tensors, F.scaled_dot_product_attention

    def swap_tensors(a: torch.Tensor, b: torch.Tensor) -> None:
        memo.clear()  # its weak references would forbid `Module.to`
        swap(a, b)

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        fused, math_allowed = _allowed()
        return _call_fused(fused[0], *args, **kwargs) if fused and not math_allowed else sdpa(*args, **kwargs)

    stack.enter_context(patch("torch.utils.swap_tensors", swap_tensors))
    stack.enter_context(patch("torch.nn.functional.scaled_dot_product_attention", attention))
    stack.enter_context(patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False))
    stack.enter_context(patch("torch.cuda.is_bf16_supported", lambda *a, **k: True))


def _heed(operator: Any, traced: bool, notes: list[str]) -> None:
    """Only the math path of attention calls `_safe_softmax`; where a fused path is allowed too, nobody asked for it."""
    if operator._schema.name == "aten::_safe_softmax":
        fused, math_allowed = _allowed()
        if fused and math_allowed:
            _add(notes, NO_CHOICE if traced else FELL_BACK)


def _add(notes: list[str], line: str) -> None:
    if line not in notes:
        notes.append(line)


def _allowed() -> tuple[list[str], bool]:
    """The fused paths that are switched on, in the order in which a GPU tries them, and whether math is."""
    flags = torch.backends.cuda
    on = {
        "flash": flags.flash_sdp_enabled(),
        "efficient": flags.mem_efficient_sdp_enabled(),
        "cudnn": flags.cudnn_sdp_enabled(),
    }
    return [name for name, enabled in on.items() if enabled], flags.math_sdp_enabled()


def _call_fused(
    path: str,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Calls the chosen kernel by name, as a GPU's dispatch would.  Raises `Problem` where it would refuse."""
    if attn_mask is not None:
        raise Problem(f"tracing can't send a mask to {path} attention: use is_causal, choose MATH, or audit on a GPU")
    if torch.is_autocast_enabled("cuda"):
        low = torch.get_autocast_dtype("cuda")
        query, key, value = (t.to(low) if t.dtype == torch.float32 else t for t in (query, key, value))
    if path in ("flash", "cudnn") and query.dtype not in (torch.float16, torch.bfloat16):
        raise Problem(f"{path} attention takes float16 and bfloat16 only, and this is {query.dtype}")
    aten, width = torch.ops.aten, query.shape[-1]
    scale = 1 / math.sqrt(width) if scale is None else scale
    if path == "flash":
        padded = [F.pad(t, (0, -width % 8)) if width % 8 else t for t in (query, key, value)]
        out = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, scale=scale)[0]
        return out[..., :width] if width % 8 else out
    if enable_gqa:
        raise Problem(f"tracing can't run {path} attention with enable_gqa: choose FLASH_ATTENTION, or audit on a GPU")
    if path == "efficient":
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_cudnn_attention(query, key, value, None, True, dropout_p, is_causal, scale=scale)[0]

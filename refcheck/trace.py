"""Where a reader's code runs: real devices as they are, and PyTorch's CUDA dispatch path on fake tensors, without a GPU.

Two things would quietly be another run without a GPU.  `torch.autocast("cuda")` switches itself off: here it is told
that the device can do it.  `F.scaled_dot_product_attention` falls back to its math path: where the reader has chosen
another one with `sdpa_kernel` it is called by name, else the fallback is noted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from refcheck import Problem

MATH = 0  # what torch._fused_sdp_choice returns for the math path


class Device(str):
    """A device as code in the wild asks for it: ``device == "cuda"``, ``torch.autocast(device)`` and ``device.type``."""

    index: int | None = None

    @property
    def type(self) -> str:
        return str(self)


@contextmanager
def running(traced: bool, notes: list[str]) -> Iterator[None]:
    """Runs a block, on fake CUDA tensors if `traced`; adds to `notes` a line for whatever quietly ran otherwise."""
    caught: list[warnings.WarningMessage] = []
    try:
        with ExitStack() as stack:
            caught = stack.enter_context(warnings.catch_warnings(record=True)) or []
            warnings.simplefilter("always")
            if traced:
                stack.enter_context(FakeTensorMode())
                stack.enter_context(patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False))
                stack.enter_context(patch("torch.cuda.is_bf16_supported", lambda *a, **k: True))
            stack.enter_context(Sdpa(traced, notes))
            yield
    finally:
        for w in caught:
            if "disabl" in str(w.message).lower() and "autocast" in str(w.message).lower():
                _add(notes, f"autocast switched itself off: {str(w.message).splitlines()[0]}")
            else:
                warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)


def _add(notes: list[str], line: str) -> None:
    if line not in notes:
        notes.append(line)


class Sdpa(TorchFunctionMode):
    """Sees which path `F.scaled_dot_product_attention` takes."""

    def __init__(self, traced: bool, notes: list[str]) -> None:
        super().__init__()
        self.traced, self.notes = traced, notes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        fused, math_allowed = _allowed()
        if self.traced and fused and not math_allowed:
            return _call_fused(fused[0], *args, **kwargs)
        if fused and math_allowed and torch._fused_sdp_choice(*args, **kwargs) == MATH:
            self._fell_back()
        return func(*args, **kwargs)

    def _fell_back(self) -> None:
        if self.traced:
            why = (
                "scaled_dot_product_attention ran its math path, because there is no GPU to choose another; a GPU may keep "
                "less: say which with torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION), or MATH if that is meant"
            )
        else:
            why = "scaled_dot_product_attention fell back to its math path: no fused kernel takes these arguments here"
        _add(self.notes, why)


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

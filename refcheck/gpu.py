"""A GPU before it is measured, and what stops it in the middle: said in one line, so that the rest goes on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import cache

import torch

from refcheck import Problem

GIB = 1024**3
CAP = 4 * GIB  # all that we ever take of a GPU's memory; a row takes a few MiB, cuBLAS's workspace 32
NEEDED = 1 * GIB  # free, to begin with
CONTEXT = 1.5 * GIB  # more than what CUDA itself takes in a process

# What a GPU, its driver or its build of torch can't do, as torch says it.  Anything else that goes wrong is a finding.
LIMITS = re.compile(
    r"out of memory"
    r"|no kernel image"
    r"|not compiled (with|for)|was not (compiled|enabled)|compiled without"
    r"|gpu architecture|compute capability|\bsm_?\d\d"
    r"|does not support bfloat16|bfloat16 is not supported"
    r"|cudnn (version|is not|not available)",
    re.IGNORECASE,
)


class Unfit(Problem):
    """This GPU can't run a row; the message says why."""


class Lost(Problem):
    """The GPU answers no more, as after an illegal access: nothing else can be measured in this process."""


@cache
def prepare() -> None:
    """Caps the memory that we take.  Raises `Problem` if the GPU's allocator can't be asked, or its memory is full."""
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        raise Problem(f"the allocator is {backend}, whose blocks can't be seen: unset PYTORCH_CUDA_ALLOC_CONF")
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        raise Problem("torch's allocator is switched off: unset PYTORCH_NO_CUDA_MEMORY_CACHING")
    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError as error:
        raise Problem(
            f"the GPU can't be used: {first_line(error)}; see nvidia-smi, or use --device cuda-trace"
        ) from None
    if free < NEEDED:
        raise Problem(
            f"only {free / GIB:.1f} GiB of the GPU's {total / GIB:.0f} are free, and {NEEDED // GIB} are needed: wait, "
            "or choose another with CUDA_VISIBLE_DEVICES"
        )
    torch.cuda.set_per_process_memory_fraction(min(1.0, CAP / total))


def notes() -> Iterator[str]:
    """What a reader of the measurements should know of the GPU."""
    at = torch.cuda.get_device_properties()
    free, total = torch.cuda.mem_get_info()
    yield f"{at.name}, sm_{at.major}{at.minor}, {total / GIB:.0f} GiB; we take {min(CAP, total) // GIB} at most"
    if (others := total - free - torch.cuda.memory_reserved()) > CONTEXT:
        yield f"somebody else is on it, with about {others / GIB:.0f} GiB: our allocator's ledger doesn't count that"
    if at.major < 8:
        yield f"sm_{at.major}{at.minor} is too old for FlashAttention and for bf16 in hardware: both need sm_80"


def unfit(error: RuntimeError, warned: Iterable[str]) -> Problem | None:
    """Why this GPU can't run a row, from the error and the warnings before it; None if that is no fault of the GPU."""
    try:
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
    except RuntimeError as lost:
        return Lost(f"the GPU answers no more ({first_line(lost)}): run again, perhaps with --layer or --dtype")
    said = [first_line(error), *(text.splitlines()[0] for text in warned)]
    reasons = [text for text in said if LIMITS.search(text)]
    return Unfit(reasons[0][:200]) if reasons else None


def first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__

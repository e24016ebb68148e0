"""What the two allocators, of the GPU and of the CPU, have in use before and after a piece of code."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile

from refcheck.join import Block, Snapshot

os.environ.setdefault(
    "KINETO_LOG_LEVEL", "99"
)  # the profiler says on stderr whenever it starts, and that it sees no GPU
FRAMES = 6  # as many of a block's stack are told
Result = TypeVar("Result")


def watched(device: str, run: Callable[[], Result], thoroughly: bool) -> tuple[Snapshot, Snapshot, Result]:
    """What is in use on ``"cpu"`` or ``"cuda"`` before and after `run()`, and what it returned.

    `thoroughly` collects what reference cycles still hold, and asks who asked for each block.
    """

    def collected() -> Result:
        result = run()
        if thoroughly:
            gc.collect()
        return result

    if thoroughly:
        gc.collect()
    return _on_cuda(collected, thoroughly) if device == "cuda" else _on_cpu(collected)


def _on_cuda(run: Callable[[], Result], thoroughly: bool) -> tuple[Snapshot, Snapshot, Result]:
    history = torch.cuda.memory._record_memory_history
    torch.clear_autocast_cache()
    if thoroughly:
        history("state", context="state", stacks="python")
    try:
        before = _cuda_now()
        result = run()
        return before, _cuda_now(), result
    finally:
        if thoroughly:
            history(None)


def _cuda_now() -> Snapshot:
    """The current GPU's blocks in use; one that waits for another stream is in use as well."""
    torch.cuda.synchronize()
    counts, here = torch.cuda.memory_stats(), torch.cuda.current_device()
    blocks = (b for segment in torch.cuda.memory_snapshot() if segment["device"] == here for b in segment["blocks"])
    return Snapshot(
        tuple(
            Block(b["address"], b["requested_size"], b["size"], _frames(b.get("frames", ())))
            for b in blocks
            if b["state"].startswith("active")
        ),
        counts["requested_bytes.all.current"],
        counts["allocated_bytes.all.current"],
    )


def _frames(frames: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The innermost calls in Python, innermost first."""
    python = [f for f in frames if f["filename"].endswith(".py")]
    return tuple(f"{f['name']} ({os.path.basename(f['filename'])}:{f['line']})" for f in python[:FRAMES])


def _on_cpu(run: Callable[[], Result]) -> tuple[Snapshot, Snapshot, Result]:
    """From the profiler's events, which know nothing of what was there before; what is asked for is set aside."""
    with profile(profile_memory=True, use_device=None) as seen:
        result = run()
    made: dict[int, Block] = {}
    for address, nbytes, stack in _by_time(seen.kineto_results.experimental_event_tree()):
        if nbytes > 0:
            made[address] = Block(address, nbytes, nbytes, stack)
        else:
            made.pop(address, None)
    total = sum(b.requested for b in made.values())
    return Snapshot((), 0, 0), Snapshot(tuple(made.values()), total, total), result


def _by_time(tree: Iterable[Any]) -> list[tuple[int, int, tuple[str, ...]]]:
    """(address, bytes or -bytes, operators that asked for them, innermost first) of the CPU, in time."""
    return [event[1:] for event in sorted(_events(tree, ()), key=lambda event: event[0])]


def _events(tree: Iterable[Any], above: tuple[str, ...]) -> Iterator[tuple[int, int, int, tuple[str, ...]]]:
    for event in tree:
        if event.tag == _EventType.Allocation and event.extra_fields.device.type == "cpu":
            of = event.extra_fields
            yield event.start_time_ns, of.ptr, of.alloc_size, above[:FRAMES]
        yield from _events(event.children, (event.name, *above))

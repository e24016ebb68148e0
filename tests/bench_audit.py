"""What the audit costs, and what other tools see: one run on this machine, as ratios.

``python -m tests.bench_audit`` prints the ledger's overhead over a bare forward of GPT-2 on the CPU, what four other
ways of counting say of it, and the time and memory that Llama-3.1-405B takes: whole, and as one layer times 126.
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

import refcheck
from refcheck.depth import by_depth
from tests.cases import gpt2, llama

ROUNDS = 5
B, T = 2, 256


def main() -> None:
    if sys.argv[1:2] == ["llama"]:
        print(json.dumps(_llama(sys.argv[2])))
        return
    torch.manual_seed(0)
    model = gpt2.GPT2(L=12, D=768, h=12, V=50257, C=1024, p=0.0, device="cpu", dtype=torch.float32)
    tokens = torch.zeros(B, T, dtype=torch.long)
    _deep()
    _compare(lambda: model(tokens), model)


def _compare(forward: Callable[[], Any], model: Any) -> None:
    """Times in turns, so that a busy machine slows all alike.

    MemTracker's activations leave out the mask, a buffer, and count the loss.  The profiler sees what the forward
    itself allocated: neither mask nor tokens, but the loss and the Python numbers.
    """
    ways = {
        "bare forward": lambda: (forward(), None)[1],
        "refcheck.ledger": lambda: _ledger(forward, model),
        "hooks, de-duplicated by hand": lambda: _hooks(forward, model),
        "hooks, every tensor counted": lambda: _naive(forward),
        "MemTracker": lambda: _mem_tracker(forward, model),
        "torch.profiler": lambda: _profiler(forward),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    said: dict[str, int | None] = {}
    for turn in range(ROUNDS + 1):  # the first warms up
        for name, way in ways.items():
            gc.collect()
            started = time.perf_counter()
            said[name] = way()
            if turn:
                times[name].append(time.perf_counter() - started)
    bare, truth = times["bare forward"], said["refcheck.ledger"]
    assert truth is not None
    print(f"GPT-2, 12 layers, B = {B}, T = {T}, fp32, CPU, {ROUNDS} rounds, median of the ratios of each round")
    for name, taken in times.items():
        ratio = median(a / b for a, b in zip(taken, bare, strict=True))
        seen = said[name]
        told = f"{seen:>13,} bytes, {seen / truth:.3f} of the ledger's" if seen is not None else ""
        print(f"  {name:<30} {median(taken):6.2f} s  × {ratio:.2f}  {told}".rstrip())


def _ledger(forward: Callable[[], Any], model: Any) -> int:
    with refcheck.ledger(model) as led:
        loss = forward()
    del loss
    return led.nbytes


def _hooks(forward: Callable[[], Any], model: Any) -> int:
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = forward()
    del loss
    return sum(sizes.values())


def _naive(forward: Callable[[], Any]) -> int:
    total = 0

    def pack(t: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total += t.nbytes
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = forward()
    del loss
    return total


def _mem_tracker(forward: Callable[[], Any], model: Any) -> int:
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(model)
    with tracker:
        loss = forward()
        kept = tracker.get_tracker_snapshot("current")[torch.device("cpu")]
    del loss
    return next(n for kind, n in kept.items() if "ACT" in str(kind))


def _profiler(forward: Callable[[], Any]) -> int:
    """What the forward allocated and did not free: the profiler names neither nodes nor modules."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        loss = forward()
    total = sum(event.self_cpu_memory_usage for event in seen.events())
    del loss
    return total


def _deep() -> None:
    """Each in a process of its own, so that memory is its own."""
    print("Llama-3.1-405B, 126 layers, B = 2, T = 8192, bf16, traced for CUDA; seconds without imports, peak with them")
    facts = {}
    for way in ("nothing", "layer", "whole"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench_audit", "llama", way], capture_output=True, text=True, check=True
        )
        facts[way] = json.loads(done.stdout)
    names = {
        "nothing": "imports alone",
        "layer": "one layer × 126 (B, T symbols)",
        "whole": "all 126 layers (B, T numbers)",
    }
    for way, fact in facts.items():
        print(
            f"  {names[way]:<30} {fact['seconds']:6.1f} s  {fact['peak'] / 1024:6.0f} MiB  {fact['nbytes']:>19,} bytes"
        )
    same = facts["layer"]["nbytes"] == facts["whole"]["nbytes"]
    ratio = facts["whole"]["seconds"] / facts["layer"]["seconds"]
    print(f"  the same to the byte: {'yes' if same else 'NO'}; the whole takes × {ratio:.1f} the time")
    if not same:
        sys.exit(1)


def _llama(way: str) -> dict[str, Any]:
    started, nbytes = time.perf_counter(), 0
    if way == "layer":
        nbytes = by_depth(llama.case, "L", symbolic=("B", "T")).at(B=2, T=8192, L=126)
    if way == "whole":
        nbytes = refcheck.record(llama.case).nbytes
    return {"seconds": time.perf_counter() - started, "peak": _peak(), "nbytes": nbytes}


def _peak() -> int:
    """KiB that this process had resident at most; on Linux `ru_maxrss` would be the parent's, if that was larger."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()

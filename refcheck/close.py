"""Closes the allocator's ledger of a forward: every byte it left in use is one saved storage, a leaf or an output.

The forward runs as users run it, with no hooks and no mode on.  What it saved is found afterwards by a walk of its
graph, which unpacks nothing and is over before anybody could allocate again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from refcheck.allocators import watched
from refcheck.graph import explore
from refcheck.join import Storage, Unexplained, join
from refcheck.observe import Kept, by_storage, key
from refcheck.saved import Allocated

Build = Callable[[], tuple[Sequence[torch.Tensor], Any]]
WARM_UPS = 2  # of cuBLAS, whose workspace comes from the same allocator and stays


def close(build: Build, device: str, kept: Sequence[Kept]) -> Allocated:
    """Runs ``build() -> (outputs, inputs)`` again and joins what its allocator then has in use with what is alive.

    `kept` is what was observed: without hooks the graph must keep the same.  Raises `Unexplained`.
    """
    for _ in range(WARM_UPS if device == "cuda" else 0):
        build()
    try:
        return _closed(build, device, kept, thoroughly=False)
    except Unexplained:  # perhaps only a reference cycle, let go in between
        return _closed(build, device, kept, thoroughly=True)


def _closed(build: Build, device: str, kept: Sequence[Kept], thoroughly: bool) -> Allocated:
    before, after, outputs = watched(device, lambda: build()[0], thoroughly)  # the inputs are let go
    graph = explore(o.grad_fn for o in outputs if o.grad_fn is not None)
    saved = by_storage(graph.holders)
    now = Counter((" = ".join(sorted(map(str, hs))), _nbytes(hs[0].tensor)) for hs in saved.values())
    seen = Counter((" = ".join(sorted(map(str, k.holders))), k.nbytes) for k in kept)
    if now != seen:
        raise Unexplained(f"without hooks the graph keeps {[*(now - seen)]} instead of {[*(seen - now)]}")
    leaves = _others(graph.leaves, {*saved})
    live = _others(outputs, {*saved, *map(key, leaves)})
    named = [(holders[0].tensor, str(holders[0])) for holders in saved.values()]
    named += [(t, "a leaf") for t in leaves] + [(t, "an output") for t in live]
    allocated = join(before, after, (_storage(t, what) for t, what in named if _lies_on(t, device)))
    return Allocated(
        requested=after.requested - before.requested,
        allocated=allocated,
        outputs=tuple(_nbytes(t) for t in live),
        leaves=tuple(_nbytes(t) for t in leaves),
    )


def _others(tensors: Iterable[torch.Tensor], known: set[int]) -> list[torch.Tensor]:
    """One tensor of each storage that is not known yet."""
    return list({key(t): t for t in tensors if key(t) not in known}.values())


def _lies_on(t: torch.Tensor, device: str) -> bool:
    return t.device.type == device


def _storage(t: torch.Tensor, what: str) -> Storage:
    return Storage(t.untyped_storage().data_ptr(), _nbytes(t), what)


def _nbytes(t: torch.Tensor) -> int:
    return t.untyped_storage().nbytes()

"""What an autograd graph keeps, seen in three independent ways.

* **packed**: what autograd hands to `saved_tensors_hooks` when it saves a tensor;
* **walked**: what the graph's nodes show as ``_saved_*`` and ``saved_tensors``; it knows node and attribute;
* **census**: which of the storages made in the forward are still alive when nothing but the graph is left.

A storage counts once, whole, whoever holds it and through whatever view.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from refcheck import Problem

RNG_ATTRIBUTES = frozenset({"rng_state", "unused", "philox_seed", "philox_offset"})


@dataclass(frozen=True)
class Holder:
    """A place in the graph that holds a tensor: a node, its attribute, and the tensor as seen there."""

    node: str
    attr: str
    tensor: torch.Tensor

    def __str__(self) -> str:
        return f"{self.node}.{self.attr}"


@dataclass(frozen=True)
class Kept:
    """A storage that the graph keeps: its bytes, its class, its holders, and the names of inputs and outputs in it."""

    nbytes: Any  # bytes of the whole storage: int, or SymInt when traced
    cls: str
    holders: tuple[Holder, ...]
    names: tuple[str, ...]
    is_output: bool


@dataclass(frozen=True)
class Given:
    """A tensor that a forward starts from, with its name and class."""

    name: str
    cls: str
    tensor: torch.Tensor


class Disagreement(Problem):
    """The three ways of seeing don't show the same storages; the message says which."""


class Census(TorchDispatchMode):
    """Remembers, weakly, every storage that an operator returns while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in tree_iter(out):
            if isinstance(t, torch.Tensor):
                remember(self.seen, t)
        return out


def key(t: torch.Tensor) -> int:
    """What tells storages apart for as long as they, or a weak reference to them, live."""
    return t.untyped_storage()._cdata


def remember(seen: dict[int, StorageWeakRef], t: torch.Tensor) -> None:
    seen.setdefault(key(t), StorageWeakRef(t.untyped_storage()))  # the weak reference keeps the address from reuse


def alive(seen: Mapping[int, StorageWeakRef]) -> set[int]:
    return {k for k, ref in seen.items() if not ref.expired()}


def observe(build: Callable[[], tuple[Iterable[torch.Tensor], Iterable[Given]]], device: str) -> tuple[Kept, ...]:
    """Runs ``build() -> (outputs, givens)`` and lists the storages that the graph of the outputs keeps.

    Every reference to the forward's tensors must be inside `build`.  Raises `Disagreement`.
    """
    census = Census()
    packed: dict[int, StorageWeakRef] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        remember(packed, t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), census:
        outputs, givens = build()
    outputs, givens = tuple(outputs), tuple(givens)
    roots = [o.grad_fn for o in outputs if o.grad_fn is not None]
    output_keys = {key(o) for o in outputs}
    known = [(key(g.tensor), g.name, g.cls) for g in givens]
    leaves = {key(t) for t in leaf_tensors(roots)} | {key(g.tensor) for g in givens if g.tensor.is_leaf}
    del outputs, givens  # from here on the graph alone keeps things
    found = by_storage(walk(roots))
    _agree(set(found), packed, census, leaves)
    return tuple(
        Kept(
            nbytes=holders[0].tensor.untyped_storage().nbytes(),
            cls=next((cls for at, _, cls in known if at == k), None) or _class(holders, k in census.seen, device),
            holders=holders,
            names=tuple(name for at, name, _ in known if at == k),
            is_output=k in output_keys,
        )
        for k, holders in found.items()
    )


def _agree(walked: set[int], packed: Mapping[int, StorageWeakRef], census: Census, leaves: set[int]) -> None:
    """The census can't speak of leaves, which live anyway, nor of what was made before the forward."""
    counted = alive(census.seen) - leaves
    if counted - walked:
        gc.collect()  # a reference cycle is not the graph
        counted = alive(census.seen) - leaves
    told = {
        "packed by autograd but not in its graph": alive(packed) - walked,
        "in the graph but never packed": walked - set(packed),
        "alive although no node shows it (a ctx attribute or a closure)": counted - walked,
        "in the graph but counted as freed": (walked & set(census.seen)) - leaves - counted,
    }
    wrong = [f"{len(keys)} storage(s) {what}" for what, keys in told.items() if keys]
    if wrong:
        raise Disagreement("; ".join(wrong))


def _class(holders: tuple[Holder, ...], made_here: bool, device: str) -> str:
    t = holders[0].tensor
    if any(h.attr in RNG_ATTRIBUTES for h in holders):
        return "rng"
    if not made_here:
        return "number" if t.ndim == 0 and t.device.type == "cpu" else "buffer"
    return "host" if t.device.type == "cpu" and device != "cpu" else "activation"


def nodes(roots: Iterable[Any]) -> Iterator[Any]:
    """Every node of the graph once, outputs first."""
    stack, seen = [r for r in reversed(list(roots))], set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        stack += [n for n, _ in reversed(node.next_functions) if n is not None]


def leaf_tensors(roots: Iterable[Any]) -> list[torch.Tensor]:
    return [node.variable for node in nodes(roots) if hasattr(node, "variable")]


def walk(roots: Iterable[Any]) -> Iterator[Holder]:
    """Every tensor that a node of the graph shows as saved."""
    for node in nodes(roots):
        for attr in dir(node):
            if attr.startswith("_saved_"):
                yield from _holders(node, attr.removeprefix("_saved_"), getattr(node, attr))
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            yield from _holders(node, "saved_tensors", node.saved_tensors)


def _holders(node: Any, attr: str, value: Any) -> Iterator[Holder]:
    if isinstance(value, torch.Tensor):
        yield Holder(node.name(), attr, value)
    elif isinstance(value, (tuple, list)):
        for n, t in enumerate(value):
            if isinstance(t, torch.Tensor):
                yield Holder(node.name(), f"{attr}[{n}]", t)


def by_storage(holders: Iterable[Holder]) -> dict[int, tuple[Holder, ...]]:
    """The holders of each storage, in the order in which the walk met them."""
    found: dict[int, tuple[Holder, ...]] = {}
    for holder in holders:
        k = key(holder.tensor)
        found[k] = (*found.get(k, ()), holder)
    return found

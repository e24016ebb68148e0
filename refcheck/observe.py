"""What an autograd graph keeps, seen in three independent ways.

* **packed**: what autograd hands to `saved_tensors_hooks` when it saves a tensor;
* **walked**: what the graph's nodes show (`graph.explore`); it knows node and attribute;
* **census**: which of the storages made in the forward are still alive when nothing but the graph is left.

A storage counts once, whole, whoever holds it and through whatever view.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_iter

from refcheck import Problem
from refcheck.graph import Holder, Token, explore, plain

# Of attention's kernels, and of checkpoints.
RNG_ATTRIBUTES = frozenset({"rng_state", "unused", "philox_seed", "philox_offset"}) | frozenset(
    {"fwd_cpu_state", "fwd_device_states", "fwd_gpu_states"}
)


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


@dataclass(frozen=True)
class Birth:
    """How a storage was made: the operator, the first tensor seen in it, what it was made from, and in which module."""

    op: str
    shape: tuple[Any, ...]
    dtype: torch.dtype
    device: str
    nbytes: Any
    parents: frozenset[int]
    module: str = ""


class Disagreement(Problem):
    """The three ways of seeing don't show the same storages; the message says which."""


def key(t: torch.Tensor) -> int:
    """What tells storages apart for as long as they, or a weak reference to them, live."""
    return t.untyped_storage()._cdata


class Census(TorchDispatchMode):
    """Remembers, weakly, every storage that an operator returns, and how it was made.

    `where` names the module that is running; `heed` is called with every operator.
    """

    def __init__(self, where: Callable[[], str] = str, heed: Callable[[Any], Any] = id) -> None:
        super().__init__()
        self.where = where
        self.heed = heed
        self.seen: dict[int, StorageWeakRef] = {}
        self.births: dict[int, Birth] = {}
        self.traced = _tracing()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leaves torch.compile as it is: under any other mode it would quietly run eager code instead."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.heed(func)
        for t in _strided(out):
            self._note(func, t, args, kwargs)
        return out

    def _note(self, func: Any, t: torch.Tensor, args: Any, kwargs: Any) -> None:
        parents = frozenset(key(a) for a in _strided((args, kwargs)))
        if (k := key(t)) in self.seen or k in parents:  # a view, or written in place, of what was there before
            return
        if self.stray(t):
            return
        self.seen[k] = StorageWeakRef(t.untyped_storage())  # the weak reference keeps the address from reuse
        nbytes = t.untyped_storage().nbytes()
        self.births[k] = Birth(func._schema.name, tuple(t.shape), t.dtype, t.device.type, nbytes, parents, self.where())

    def stray(self, t: torch.Tensor) -> bool:
        """Whether a tensor is a fake one among real ones: a compiler's own, and no memory of anybody's."""
        return not self.traced and isinstance(t, FakeTensor)

    @property
    def alive(self) -> set[int]:
        return {k for k, ref in self.seen.items() if not ref.expired()}


def _tracing() -> bool:
    return any(isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack())


def _strided(values: Any) -> Iterable[torch.Tensor]:
    """The tensors in `values` that have a storage."""
    tensors = (p for t in tree_iter(values) if isinstance(t, torch.Tensor) for p in plain(t))
    return (t for t in tensors if t.layout is torch.strided)


class Watch:
    """A context that sees a forward: what autograd packs (unless `hooks` is false), what operators make.

    Where hooks of somebody else are already on, ours would switch theirs off, so they are left out: then `others` is
    true.  `on` says whether packing was watched.
    """

    def __init__(self, census: Census | None = None, hooks: bool = True) -> None:
        self.census = census or Census()
        self.on = hooks
        self.others = False
        self._tokens: list[weakref.ref[Token]] = []
        self._contexts = ExitStack()

    def __enter__(self) -> Watch:
        self.others = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        self.on = self.on and not self.others
        if self.on:
            self._contexts.enter_context(
                torch.autograd.graph.saved_tensors_hooks(self._pack, lambda token: token.tensor)
            )
        self._contexts.enter_context(self.census)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._contexts.close()

    def _pack(self, t: torch.Tensor) -> Token:
        token = Token(t)
        if not self.census.stray(t):
            self._tokens.append(weakref.ref(token))
        return token

    def packed(self) -> list[Token]:
        """What autograd packed and some node still keeps."""
        return [token for ref in self._tokens if (token := ref()) is not None]


def is_rng(h: Holder) -> bool:
    """Whether a place holds a state of random numbers."""
    return h.attr.rpartition(".")[2].partition("[")[0] in RNG_ATTRIBUTES


def is_number(t: torch.Tensor) -> bool:
    """Whether a tensor is a Python number that autograd wrapped: then it doesn't take part in type promotion."""
    if t.ndim or t.device.type != "cpu" or t.dtype not in (torch.float64, torch.int64, torch.complex128):
        return False
    smaller = {torch.float64: torch.float32, torch.int64: torch.int32, torch.complex128: torch.complex64}[t.dtype]
    return torch.result_type(t, torch.empty((), dtype=smaller, device="meta")) == smaller


def observe(
    build: Callable[[], tuple[Iterable[torch.Tensor], Iterable[Given]]],
    device: str,
    past_autograd: Container[str] = (),
) -> tuple[Kept, ...]:
    """Runs ``build() -> (outputs, givens)`` and lists the storages that the graph of the outputs keeps.

    Every reference to the forward's tensors must be inside `build`.  `past_autograd` are the places known to hold a
    tensor past autograd: attributes of a ctx, as ``node.ctx.name``, and frames of checkpoints.  Raises `Disagreement`.
    """
    with Watch() as watch:
        outputs, givens = build()
    outputs, givens = tuple(outputs), tuple(givens)
    sinks = [o.sum().grad_fn for o in outputs if o.grad_fn is not None]  # a node in Python alone keeps no graph alive
    graph = explore(sinks)
    output_keys = {key(o) for o in outputs}
    known = [(key(g.tensor), g.name, g.cls) for g in givens]
    parameters = {at for at, _, cls in known if cls == "parameter"}
    leaves = {key(t) for t in graph.leaves} | {key(g.tensor) for g in givens if g.tensor.is_leaf}
    del outputs, givens  # from here on the graph alone keeps things
    found = by_storage(graph.holders)
    _agree(found, watch, leaves, past_autograd)
    return tuple(
        Kept(
            nbytes=holders[0].tensor.untyped_storage().nbytes(),
            cls=next((cls for at, _, cls in known if at == k), None)
            or _class(holders, watch.census, parameters, device),
            holders=holders,
            names=tuple(name for at, name, _ in known if at == k),
            is_output=k in output_keys,
        )
        for k, holders in found.items()
    )


def _agree(
    found: Mapping[int, tuple[Holder, ...]], watch: Watch, leaves: set[int], past_autograd: Container[str] = ()
) -> None:
    """The census can't speak of leaves, which live anyway, nor of what was made before the forward.

    What is held past autograd, in an attribute of a ctx, say, counts as shown where it is known.
    """
    saved = {k for k, holders in found.items() if any(h.how == "saved" for h in holders)}
    shown = saved | {
        k for k, holders in found.items() if any(str(h) in past_autograd for h in holders if h.how != "saved")
    }
    numbers = {k for k in saved if is_number(found[k][0].tensor)}
    packed = {key(token.tensor) for token in watch.packed()}
    counted = watch.census.alive - leaves
    if counted - shown:
        gc.collect()  # a reference cycle is not the graph
        counted = watch.census.alive - leaves
    told = {
        "packed by autograd but not in its graph": packed - shown,
        "in the graph but never packed": saved - packed - numbers,
        "alive although no node shows it (a ctx attribute or a closure)": counted - shown,
        "in the graph but counted as freed": (shown & set(watch.census.seen)) - leaves - counted,
    }
    wrong = [f"{len(keys)} storage(s) {what}" for what, keys in told.items() if keys]
    if wrong:
        raise Disagreement("; ".join(wrong))


def _class(holders: tuple[Holder, ...], census: Census, parameters: set[int], device: str) -> str:
    t = holders[0].tensor
    birth = census.births.get(key(t))
    if is_number(t):
        return "number"
    if t.device.type == "cpu" and device != "cpu":
        return "host"
    if any(is_rng(h) for h in holders):
        return "rng"
    if birth is None:
        return "buffer"
    if birth.op == "aten::_to_copy" and birth.parents & parameters:
        return "weight copy"
    return "activation"


def by_storage(holders: Iterable[Holder]) -> dict[int, tuple[Holder, ...]]:
    """The holders of each storage, in the order in which they were met."""
    found: dict[int, tuple[Holder, ...]] = {}
    for holder in holders:
        k = key(holder.tensor)
        found[k] = (*found.get(k, ()), holder)
    return found

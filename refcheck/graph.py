"""What an autograd graph holds, found without running anything: no saved tensor is unpacked, no checkpoint recomputed.

Autograd's own saved tensors are read raw, as they lie in the nodes.  What Python holds for the graph (attributes of a
``ctx``, what other people's `saved_tensors_hooks` packed, the closures of their unpack hooks, the frames of a
checkpoint) is searched object by object; nodes and graphs met there belong to the graph too.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import SavedTensor
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from refcheck import Problem


class Token:
    """What our own pack hook leaves in a node: it lives for exactly as long as the node keeps the tensor."""

    __slots__ = ("__weakref__", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()  # an output with its grad_fn would hold its own node
        self.version = self.tensor._version

    @property
    def overwritten(self) -> bool:
        """Whether the tensor was written to after it was saved, as autograd itself would find in a backward."""
        return self.tensor._version != self.version


@dataclass(frozen=True)
class Holder:
    """A place that holds a tensor: a node, its attribute, and the tensor as seen there.

    `how` is ``"saved"`` (by autograd), ``"ctx"`` (an attribute in Python) or ``"hooks"`` (packed by somebody's hooks);
    `sequence` is the node's number, which grows in the order in which nodes are made.
    """

    node: str
    attr: str
    tensor: torch.Tensor
    how: str = "saved"
    sequence: int = -1
    token: Token | None = None

    def __str__(self) -> str:
        return f"{self.node}.{self.attr}"


@dataclass(frozen=True)
class Graph:
    """All nodes that some roots lead to, all holders, and the hooks, other than torch's and ours, that packed."""

    nodes: tuple[Any, ...]
    holders: tuple[Holder, ...]
    hooks: frozenset[str]

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The tensors in which gradients are accumulated; they live whether or not anything saves them."""
        return [node.variable for node in self.nodes if hasattr(node, "variable")]


def is_node(thing: Any) -> bool:
    return hasattr(type(thing), "next_functions")


def explore(roots: Iterable[Any]) -> Graph:
    """Everything that the nodes `roots` lead to, outputs first.  Raises `Problem` if a backward has freed it."""
    queue, nodes = list(reversed(list(roots))), dict[Any, None]()
    holders: list[Holder] = []
    search = _Search()
    while queue:
        node = queue.pop()
        if node in nodes:
            continue
        nodes[node] = None
        sequence = node._sequence_nr() if hasattr(node, "_sequence_nr") else -1
        behind = []
        for attr, thing, how, token in search.held_by(node):
            if isinstance(thing, torch.Tensor):
                holders += [Holder(node.name(), attr, t, how, sequence, token) for t in plain(thing)]
                behind.append(thing.grad_fn)
            else:
                behind.append(thing)
        behind += [n for n, _ in node.next_functions]
        queue += [n for n in reversed(behind) if n is not None]
    return Graph(tuple(nodes), tuple(holders), frozenset(search.hooks))


def plain(t: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that own storage behind `t`: itself, unless it is a wrapper around others."""
    if is_traceable_wrapper_subclass(t):
        for name in t.__tensor_flatten__()[0]:
            yield from plain(getattr(t, name))
    else:
        yield t


@functools.cache
def _attributes(kind: type, prefix: str) -> tuple[str, ...]:
    return tuple(attr for attr in dir(kind) if attr.startswith(prefix))


# Whether this torch shows what a saved tensor packs; older ones (2.9 is one) show it only unpacked, which runs the
# unpack hook: of a checkpoint, its whole forward.
SHOWN_RAW = hasattr(SavedTensor, "data")

Found = tuple[str, Any, str, Token | None]  # path, a tensor or a node, how it is held, our token


def _unpacked(node: Any) -> Iterator[Found]:
    """A node's saved tensors as older versions of torch show them."""
    if isinstance(node, BackwardCFunction):
        yield from ((f"saved_tensors[{n}]", t, "saved", None) for n, t in enumerate(node.saved_tensors))
        return
    for attr in _attributes(node.__class__, "_saved_"):
        name, value = attr.removeprefix("_saved_"), getattr(node, attr)
        if isinstance(value, torch.Tensor):
            yield name, value, "saved", None
        elif isinstance(value, (tuple, list)):
            yield from ((f"{name}[{n}]", t, "saved", None) for n, t in enumerate(value) if isinstance(t, torch.Tensor))


class _Search:
    """The search of one graph; containers are entered once, however many paths lead there."""

    def __init__(self) -> None:
        self.entered: dict[int, Any] = {}  # the values keep the ids from reuse
        self.hooks: set[str] = set()

    def held_by(self, node: Any) -> Iterator[Found]:
        """What a node holds: autograd's saved tensors, and what Python hangs on its ctx.

        Raises `Problem` if a backward has freed it.
        """
        try:
            yield from self._saved(node) if SHOWN_RAW else _unpacked(node)
        except RuntimeError as error:
            if "already been freed" not in str(error):
                raise
            raise Problem(f"{node.name()} is freed: a backward has run; look at the graph before backward") from None
        if isinstance(node, BackwardCFunction):
            yield from self._reach("ctx", vars(node), "ctx")

    def _saved(self, node: Any) -> Iterator[Found]:
        for attr in _attributes(node.__class__, "_raw_saved_"):
            name = attr.removeprefix("_raw_saved_")
            name = "saved_tensors" if name == "tensors" and isinstance(node, BackwardCFunction) else name
            value = getattr(node, attr)
            if isinstance(value, (tuple, list)):
                for n, raw in enumerate(value):
                    yield from self._raw(f"{name}[{n}]", raw, "saved")
                continue
            if value is not None and value.data is None and value.unpack_hook is None:
                getattr(node, attr.replace("_raw", "", 1))  # None if it was optional; an error if it was freed
            yield from self._raw(name, value, "saved")

    def _raw(self, path: str, raw: Any, how: str) -> Iterator[Found]:
        if raw is None or not SHOWN_RAW or raw.data is None:
            return
        hook = raw.unpack_hook
        if isinstance(raw.data, Token):
            yield path, raw.data.tensor, how, raw.data
        elif hook is None:
            yield path, raw.data, how, None
        else:
            if not str(getattr(hook, "__module__", "")).startswith("torch."):
                self.hooks.add(
                    f"{hook.__module__}.{hook.__qualname__}" if hasattr(hook, "__qualname__") else repr(hook)
                )
            yield from self._reach(f"{path} packed", raw.data, "hooks")
            yield from self._reach(f"{path} unpack", hook, "hooks")

    def _reach(self, path: str, thing: Any, how: str) -> Iterator[Found]:
        """Every tensor and node that a Python object holds.  A module is not entered: the model lives anyway."""
        stack = [(path, thing)]
        while stack:
            path, thing = stack.pop()
            if isinstance(thing, torch.Tensor) or is_node(thing):
                yield path, thing, how, None
            elif isinstance(thing, SavedTensor):
                yield from self._raw(path, thing, how)
            elif id(thing) not in self.entered and not isinstance(thing, _OPAQUE):
                self.entered[id(thing)] = thing
                stack += [(path + step, inner) for step, inner in reversed(list(_inside(thing)))]


_OPAQUE = (
    type,
    types.ModuleType,
    torch.nn.Module,
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
    torch.dtype,
    torch.device,
)


def _inside(thing: Any) -> Iterator[tuple[str, Any]]:
    """What a Python object holds, each with the step that leads there; weak references hold nothing."""
    match thing:
        case dict():
            yield from ((f".{k}" if isinstance(k, str) else f"[{k!r}]", v) for k, v in list(thing.items()))
        case list() | tuple() | set() | frozenset():
            yield from ((f"[{n}]", v) for n, v in enumerate(thing))
        case types.FunctionType():
            yield from _closure(thing)
        case types.MethodType():
            yield from (("", thing.__self__), ("", thing.__func__))
        case functools.partial():
            yield from (("", thing.func), ("", thing.args), ("", thing.keywords))
        case types.GeneratorType() if thing.gi_frame is not None:
            yield "", dict(thing.gi_frame.f_locals)
        case _:
            yield from ((f".{k}", v) for k, v in list(getattr(thing, "__dict__", {}).items()))
            slots = (s for kind in type(thing).__mro__ for s in _names(kind.__dict__.get("__slots__", ())))
            yield from ((f".{s}", getattr(thing, s)) for s in slots if s != "__weakref__" and hasattr(thing, s))


def _names(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _closure(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # an empty cell
            continue
    yield "", function.__defaults__
    yield "", function.__kwdefaults__
